//! Bodies of requests.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::BodyExt as _;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::Limits;
use super::places::Place;
use crate::api::ApiError;

/// Bytes of a permit.
const PERMIT: usize = 1024;

/// The memory of all bodies that are read or parsed.
pub(super) struct Bodies(Semaphore);

/// The room of a body, until it is dropped.
#[derive(Default)]
pub(super) struct Room<'a>(Option<SemaphorePermit<'a>>);

impl Room<'_> {
    /// Bytes of the body, rounded up.
    pub(super) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |permits| permits.num_permits() * PERMIT)
    }
}

impl Bodies {
    pub(super) fn new(limits: &Limits) -> Self {
        Self(Semaphore::new(limits.bodies_bytes.div_ceil(PERMIT).min(Semaphore::MAX_PERMITS)))
    }

    /// More room for a body, which has `bytes` by now.
    fn extend<'a>(&'a self, Room(room): &mut Room<'a>, bytes: usize, limits: &Limits) -> Result<(), ApiError> {
        let had = room.as_ref().map_or(0, SemaphorePermit::num_permits);
        let more = u32::try_from(bytes.div_ceil(PERMIT).saturating_sub(had)).unwrap_or(u32::MAX);
        let more = self.0.try_acquire_many(more).map_err(|_| ApiError::Bodies { limit: limits.bodies_bytes })?;
        match room {
            Some(room) => room.merge(more),
            None => *room = Some(more),
        }
        Ok(())
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
) -> Result<(Bytes, Room<'a>), ApiError> {
    if !is_json(&request) {
        return Err(ApiError::MediaType);
    }
    let too_large = || ApiError::TooLarge { limit: limits.body_bytes };
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > limits.body_bytes as u64) {
        return Err(too_large());
    }
    let place = request.extensions().get::<Arc<Place>>().cloned();
    let mut body = request.into_body();
    let read = async {
        let (mut bytes, mut room) = (Vec::new(), Room::default());
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ApiError::Body(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > limits.body_bytes {
                return Err(too_large());
            }
            bodies.extend(&mut room, bytes.len() + data.len(), limits)?;
            bytes.extend_from_slice(&data);
        }
        place.iter().for_each(|place| place.answers());
        Ok((bytes.into(), room))
    };
    timeout(limits.body_time, read).await.unwrap_or(Err(ApiError::BodyTimeout(limits.body_time)))
}

fn is_json(request: &Request) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}
