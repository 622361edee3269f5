//! Steps common to all routes: the request's name, who may ask, and panics.

use std::sync::Arc;

use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use tracing::Instrument as _;

use super::places::{Answer, Place};
use super::request_id::{RequestId, X_REQUEST_ID};
use super::respond::{catching, of_anthropic};
use super::route::{is_of_anthropic, is_open};
use super::shared::Shared;
use crate::api::ApiError;

/// Answers a request. The answer names it, and so do the logs.
pub(super) async fn answer(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    let id = RequestId::of(request.headers(), || shared.random());
    let span = tracing::info_span!("request", %id, method = %request.method(), path = request.uri().path());
    request.extensions_mut().insert(id.clone());
    let place = request.extensions().get::<Arc<Place>>().cloned();
    if let Some(place) = &place
        && request.body().is_end_stream()
    {
        place.answers();
    }
    let refused = refused(&request, &shared, place.as_deref());
    let is_anthropic = is_of_anthropic(request.uri().path());
    let work = async {
        match refused {
            Some(error) => Err(error),
            None => Ok(next.run(request).await),
        }
    };
    let result = catching(work).instrument(span.clone()).await;
    let mut response = result.unwrap_or_else(|error| span.in_scope(|| error.into_response()));
    if is_anthropic {
        response = of_anthropic(response);
    }
    response.headers_mut().extend(id.header().map(|id| (X_REQUEST_ID, id)));
    let Some(place) = place else { return response };
    if place.is_reserve {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response.map(|body| Body::new(Answer::new(body, place)))
}

/// Why a request is not passed on.
fn refused(request: &Request, shared: &Shared, place: Option<&Place>) -> Option<ApiError> {
    let headers = request.headers();
    if let Some(host) = shared.hosts.as_ref().and_then(|hosts| hosts.refused(headers)) {
        return Some(ApiError::Host(host));
    }
    if is_open(request.uri().path()) {
        return None;
    }
    if shared.token.as_ref().is_some_and(|token| !token.is_in(headers)) {
        return Some(ApiError::Unauthorized);
    }
    let is_reserve = place.is_some_and(|place| place.is_reserve);
    is_reserve.then_some(ApiError::Connections { limit: shared.limits.connections })
}
