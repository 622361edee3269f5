//! Bodies of requests.

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::Limits;
use crate::api::ApiError;

/// Bytes of a permit.
const PERMIT: usize = 1024;

/// The memory of all bodies that are read or parsed.
pub(super) struct Bodies(Semaphore);

impl Bodies {
    pub(super) fn new(limits: &Limits) -> Self {
        Self(Semaphore::new(limits.bodies_bytes.div_ceil(PERMIT).min(Semaphore::MAX_PERMITS)))
    }

    /// Room for a body, until the permit is dropped.
    fn reserve(&self, bytes: usize, limits: &Limits) -> Result<SemaphorePermit<'_>, ApiError> {
        let permits = u32::try_from(bytes.div_ceil(PERMIT)).unwrap_or(u32::MAX);
        self.0.try_acquire_many(permits).map_err(|_| ApiError::Bodies { limit: limits.bodies_bytes })
    }
}

/// The bytes of a body of JSON, and their room.
///
/// # Errors
/// The body is too large or too slow, something else than JSON, or there is no room for it.
pub(super) async fn read<'a>(
    request: Request,
    bodies: &'a Bodies,
    limits: &Limits,
) -> Result<(Bytes, SemaphorePermit<'a>), ApiError> {
    if !is_json(&request) {
        return Err(ApiError::MediaType);
    }
    let too_large = ApiError::TooLarge { limit: limits.body_bytes };
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let length = length.unwrap_or(limits.body_bytes);
    if length > limits.body_bytes {
        return Err(too_large);
    }
    let permit = bodies.reserve(length, limits)?;
    let body = Limited::new(request.into_body(), limits.body_bytes).collect();
    match timeout(limits.body_time, body).await {
        Ok(Ok(body)) => Ok((body.to_bytes(), permit)),
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
