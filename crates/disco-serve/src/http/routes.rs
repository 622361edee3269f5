//! Which path has which handler.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::answer::answer;
use super::openapi::document;
use super::route::Route;
use super::shared::Shared;
use super::{generate, origins, probes, respond, tokenize, vectors};
use crate::api::{
    ApiError, CHAT, COMPLETION, COUNTED_MESSAGE, DETOKENIZE, EMBED, MESSAGE, RERANK, RESPONSE, SCORE, TOKENIZE_CHAT,
    TOKENIZE_TEXT,
};

static RERANKING: Route =
    Route::asked("/rerank", "Orders documents by their scores", &[&RERANK], || post(vectors::rerank));
static SCORING: Route = Route::asked("/score", "Scores pairs of texts", &[&SCORE], || post(vectors::score));

/// All routes of a server.
pub(super) static ROUTES: &[Route] = &[
    Route::streamed("/v1/chat/completions", "Answers a chat", &[&CHAT], || post(generate::chat)),
    Route::streamed("/v1/completions", "Continues texts", &[&COMPLETION], || post(generate::completion)),
    Route::streamed("/v1/responses", "Answers in OpenAI's newer form", &[&RESPONSE], || post(generate::response)),
    Route::streamed("/v1/messages", "Answers in Anthropic's form", &[&MESSAGE], || post(generate::message)),
    Route::asked("/v1/messages/count_tokens", "Counts the tokens of a message's prompt", &[&COUNTED_MESSAGE], || {
        post(tokenize::count)
    }),
    Route::asked("/v1/embeddings", "Makes vectors of texts", &[&EMBED], || post(vectors::embeddings)),
    RERANKING,
    Route { path: "/v1/rerank", ..RERANKING },
    Route { path: "/v2/rerank", ..RERANKING },
    SCORING,
    Route { path: "/v1/score", ..SCORING },
    Route::asked("/tokenize", "Returns the tokens of a text or a chat", &[&TOKENIZE_TEXT, &TOKENIZE_CHAT], || {
        post(tokenize::tokenize)
    }),
    Route::asked("/detokenize", "Returns the text of tokens", &[&DETOKENIZE], || post(tokenize::detokenize)),
    Route::read("/tokenizer_info", "Returns the texts of special tokens", || get(tokenize::info)),
    Route::read("/v1/models", "Lists the served model", || get(probes::models)),
    Route::read("/v1/models/{*model}", "Describes the served model", || get(probes::model)),
    Route::read("/version", "Returns the version of the program", || get(probes::version)),
    Route::read("/openapi.json", "Describes these routes and the fields of their requests (OpenAPI 3.1)", || {
        get(openapi)
    }),
    Route::read("/health", "Tells whether the engine works, when its last step has ended, and its load", || {
        get(probes::health)
    }),
    Route::read("/ready", "Tells whether the server takes requests", || get(probes::ready)),
    Route {
        replies: &["text/plain"],
        ..Route::read("/metrics", "Returns metrics for Prometheus", || get(probes::metrics))
    },
];

/// The router of a server.
pub(super) fn routes(shared: Arc<Shared>) -> Router {
    let routes = ROUTES.iter().fold(Router::new(), |router, route| router.route(route.path, (route.handler)()));
    let routes = routes
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(shared.clone(), answer));
    // Browsers get errors, too, so this is around the checks of requests.
    let routes = match &shared.origins[..] {
        [] => routes,
        origins => routes.layer(origins::layer(origins)),
    };
    routes.with_state(shared)
}

/// The description of all routes.
async fn openapi(State(shared): State<Arc<Shared>>) -> Response {
    respond::json(StatusCode::OK, &document(ROUTES, shared.token.is_some()))
}

async fn no_route(request: Request) -> impl IntoResponse {
    ApiError::NoRoute(path(&request))
}

async fn no_method(request: Request) -> impl IntoResponse {
    ApiError::Method { route: path(&request), method: request.method().to_string() }
}

/// The beginning of a request's path.
fn path(request: &Request) -> String {
    request.uri().path().chars().take(200).collect()
}
