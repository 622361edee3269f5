//! Routes about the server itself: its health, metrics and model.

use std::sync::Arc;

use axum::extract::{Path, State as Extract};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::respond;
use super::shared::Shared;
use crate::api::ApiError;
use crate::health::State;

/// Whether the engine works: it has not failed, and its step does not hang.
pub(super) async fn health(Extract(shared): Extract<Arc<Shared>>) -> Response {
    let snapshot = shared.health.snapshot();
    let state = shared.state();
    let hangs = snapshot.step.is_some_and(|step| step > shared.limits.step_time);
    let is_healthy = state != State::Failed && !hangs;
    let status = if is_healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let object = json!({
        "status": state,
        "step_hangs": hangs,
        "seconds_since_last_step": snapshot.last_step.map(|time| time.as_secs_f64()),
        "seconds_in_step": snapshot.step.map(|time| time.as_secs_f64()),
        "load": snapshot.load,
    });
    respond::json(status, &object)
}

/// Whether the server takes requests.
pub(super) async fn ready(Extract(shared): Extract<Arc<Shared>>) -> Response {
    match shared.state() {
        State::Ready => respond::json(StatusCode::OK, &json!({"status": State::Ready})),
        state => ApiError::NotReady(state).into_response(),
    }
}

/// The metrics of this process.
pub(super) async fn metrics(Extract(shared): Extract<Arc<Shared>>) -> Response {
    let Some(metrics) = &shared.metrics else {
        return ApiError::NoRoute("/metrics, because the server records no metrics".into()).into_response();
    };
    shared.meters.engine(&shared.health.snapshot());
    let mut response = metrics.render().into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    response
}

/// The version of the program.
pub(super) async fn version() -> Response {
    respond::json(StatusCode::OK, &json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// The models of the server, of which there is one.
pub(super) async fn models(Extract(shared): Extract<Arc<Shared>>) -> Response {
    respond::json(StatusCode::OK, &json!({"object": "list", "data": [description(&shared)]}))
}

/// The model with this name.
pub(super) async fn model(Extract(shared): Extract<Arc<Shared>>, Path(model): Path<String>) -> Response {
    if model == *shared.name {
        respond::json(StatusCode::OK, &description(&shared))
    } else {
        ApiError::NoModel { model, served: shared.name.to_string() }.into_response()
    }
}

fn description(shared: &Shared) -> Value {
    let name: &str = &shared.name;
    let length = shared.limits.longest();
    json!({"id": name, "object": "model", "created": shared.created, "owned_by": "disco", "max_model_len": length})
}
