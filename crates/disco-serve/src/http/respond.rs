//! Responses that are one JSON object.

use std::panic::AssertUnwindSafe;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_lite::FutureExt as _;
use serde_json::Value;

use crate::api::ApiError;

/// A response with this object.
pub(super) fn json(status: StatusCode, object: &Value) -> Response {
    let mut response = Response::new(Body::from(object.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The error of a response, as Anthropic's clients know it.
#[derive(Clone, Debug)]
struct OfAnthropic(Value);

/// The same response for clients of Anthropic.
pub(super) fn of_anthropic(response: Response) -> Response {
    let Some(OfAnthropic(object)) = response.extensions().get().cloned() else { return response };
    response.map(|_| Body::from(object.to_string()))
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            // Probes ask again and again.
            tracing::debug!(error = %self, "a request is refused");
        } else {
            tracing::info!(status = status.as_u16(), error = %self, "a request is refused");
        }
        let mut response = json(status, &self.object());
        response.extensions_mut().insert(OfAnthropic(self.anthropic()));
        if let Some(seconds) = self.retry_after() {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The result of one request's work. A panic ends this request only.
///
/// # Errors
/// Those of the work, and a panic.
pub(super) async fn catching<T>(work: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    // What the work has borrowed is not used after a panic, but for locks, which ignore it.
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(result) => result,
        Err(_) => Err(ApiError::Panicked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_with_the_status_500() {
        let panics = async { if true { panic!("a bug") } else { Ok(()) } };
        let error = catching(panics).await.unwrap_err();
        assert!(matches!(error, ApiError::Panicked));
        assert_eq!(error.into_response().status(), 500);
    }

    #[test]
    fn an_error_that_passes_says_when_to_try_again() {
        let response = ApiError::Shutdown.into_response();
        assert_eq!((response.status(), &response.headers()[RETRY_AFTER]), (StatusCode::SERVICE_UNAVAILABLE, &5.into()));
    }
}
