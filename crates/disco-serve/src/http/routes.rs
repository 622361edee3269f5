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

const JSON: &[&str] = &["application/json"];
const JSON_OR_EVENTS: &[&str] = &["application/json", "text/event-stream"];

const RERANKING: Route = Route {
    path: "/rerank",
    does: "Orders documents by their scores",
    bodies: &[&RERANK],
    replies: JSON,
    handler: || post(vectors::rerank),
};
const SCORING: Route = Route {
    path: "/score",
    does: "Scores pairs of texts",
    bodies: &[&SCORE],
    replies: JSON,
    handler: || post(vectors::score),
};

/// All routes of a server.
pub(super) static ROUTES: &[Route] = &[
    Route {
        path: "/v1/chat/completions",
        does: "Answers a chat",
        bodies: &[&CHAT],
        replies: JSON_OR_EVENTS,
        handler: || post(generate::chat),
    },
    Route {
        path: "/v1/completions",
        does: "Continues texts",
        bodies: &[&COMPLETION],
        replies: JSON_OR_EVENTS,
        handler: || post(generate::completion),
    },
    Route {
        path: "/v1/responses",
        does: "Answers in OpenAI's newer form",
        bodies: &[&RESPONSE],
        replies: JSON_OR_EVENTS,
        handler: || post(generate::response),
    },
    Route {
        path: "/v1/messages",
        does: "Answers in Anthropic's form",
        bodies: &[&MESSAGE],
        replies: JSON_OR_EVENTS,
        handler: || post(generate::message),
    },
    Route {
        path: "/v1/messages/count_tokens",
        does: "Counts the tokens of a message's prompt",
        bodies: &[&COUNTED_MESSAGE],
        replies: JSON,
        handler: || post(tokenize::count),
    },
    Route {
        path: "/v1/embeddings",
        does: "Makes vectors of texts",
        bodies: &[&EMBED],
        replies: JSON,
        handler: || post(vectors::embeddings),
    },
    RERANKING,
    Route { path: "/v1/rerank", ..RERANKING },
    Route { path: "/v2/rerank", ..RERANKING },
    SCORING,
    Route { path: "/v1/score", ..SCORING },
    Route {
        path: "/tokenize",
        does: "Returns the tokens of a text or a chat",
        bodies: &[&TOKENIZE_TEXT, &TOKENIZE_CHAT],
        replies: JSON,
        handler: || post(tokenize::tokenize),
    },
    Route {
        path: "/detokenize",
        does: "Returns the text of tokens",
        bodies: &[&DETOKENIZE],
        replies: JSON,
        handler: || post(tokenize::detokenize),
    },
    Route {
        path: "/tokenizer_info",
        does: "Returns the texts of special tokens",
        bodies: &[],
        replies: JSON,
        handler: || get(tokenize::info),
    },
    Route {
        path: "/v1/models",
        does: "Lists the served model",
        bodies: &[],
        replies: JSON,
        handler: || get(probes::models),
    },
    Route {
        path: "/v1/models/{*model}",
        does: "Describes the served model",
        bodies: &[],
        replies: JSON,
        handler: || get(probes::model),
    },
    Route {
        path: "/version",
        does: "Returns the version of the program",
        bodies: &[],
        replies: JSON,
        handler: || get(probes::version),
    },
    Route {
        path: "/openapi.json",
        does: "Describes these routes and the fields of their requests (OpenAPI 3.1)",
        bodies: &[],
        replies: JSON,
        handler: || get(openapi),
    },
    Route {
        path: "/health",
        does: "Tells whether the engine works, when its last step has ended, and its load",
        bodies: &[],
        replies: JSON,
        handler: || get(probes::health),
    },
    Route {
        path: "/ready",
        does: "Tells whether the server takes requests",
        bodies: &[],
        replies: JSON,
        handler: || get(probes::ready),
    },
    Route {
        path: "/metrics",
        does: "Returns metrics for Prometheus",
        bodies: &[],
        replies: &["text/plain"],
        handler: || get(probes::metrics),
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
