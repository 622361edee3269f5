//! Bodies of requests.

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::time::timeout;

use super::Limits;
use crate::api::ApiError;

/// The bytes of a body of JSON.
///
/// # Errors
/// The body is too large or too slow, or something else than JSON.
pub(super) async fn read(request: Request, limits: &Limits) -> Result<Bytes, ApiError> {
    if !is_json(&request) {
        return Err(ApiError::MediaType);
    }
    let too_large = ApiError::TooLarge { limit: limits.body_bytes };
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > limits.body_bytes as u64) {
        return Err(too_large);
    }
    let body = Limited::new(request.into_body(), limits.body_bytes).collect();
    match timeout(limits.body_time, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large),
        Ok(Err(error)) => Err(ApiError::Body(error.to_string())),
        Err(_) => Err(ApiError::BodyTimeout(limits.body_time)),
    }
}

fn is_json(request: &Request) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}
