//! Which path has which handler.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{get, post};

use super::answer::answer;
use super::shared::Shared;
use super::{generate, origins, probes, tokenize, vectors};
use crate::api::ApiError;

/// All routes of a server.
pub(super) fn routes(shared: Arc<Shared>) -> Router {
    let routes = Router::new()
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completion))
        .route("/v1/messages", post(generate::message))
        .route("/v1/messages/count_tokens", post(tokenize::count))
        .route("/v1/responses", post(generate::response))
        .route("/v1/embeddings", post(vectors::embeddings))
        .route("/rerank", post(vectors::rerank))
        .route("/v1/rerank", post(vectors::rerank))
        .route("/v2/rerank", post(vectors::rerank))
        .route("/score", post(vectors::score))
        .route("/v1/score", post(vectors::score))
        .route("/v1/models", get(probes::models))
        .route("/v1/models/{*model}", get(probes::model))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/tokenizer_info", get(tokenize::info))
        .route("/version", get(probes::version))
        .route("/health", get(probes::health))
        .route("/ready", get(probes::ready))
        .route("/metrics", get(probes::metrics))
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
