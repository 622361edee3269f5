//! Steps common to all routes: the request's name, the token, and panics.

use std::sync::Arc;

use axum::Router;
use axum::response::{IntoResponse as _, Response};
use hyper::Request;
use hyper::body::Incoming;
use tower_service::Service as _;
use tracing::Instrument as _;

use super::request_id::{RequestId, X_REQUEST_ID};
use super::respond::catching;
use super::shared::Shared;
use crate::api::ApiError;

/// The routes that need no token: those of a machine that watches the server.
const OPEN: [&str; 2] = ["/health", "/ready"];

/// Answers a request. The answer names it, and so do the logs.
pub(super) async fn answer(mut request: Request<Incoming>, mut router: Router, shared: Arc<Shared>) -> Response {
    let id = RequestId::of(request.headers(), || shared.random());
    let span = tracing::info_span!("request", %id, method = %request.method(), path = request.uri().path());
    request.extensions_mut().insert(id.clone());
    let is_open = OPEN.contains(&request.uri().path());
    let is_permitted = is_open || shared.token.as_ref().is_none_or(|token| token.is_in(request.headers()));
    let work = async {
        if !is_permitted {
            return Err(ApiError::Unauthorized);
        }
        match router.call(request).await {
            Ok(response) => Ok(response),
        }
    };
    let result = catching(work).instrument(span.clone()).await;
    let mut response = result.unwrap_or_else(|error| span.in_scope(|| error.into_response()));
    response.headers_mut().extend(id.header().map(|id| (X_REQUEST_ID, id)));
    response
}
