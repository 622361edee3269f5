//! Server-sent events.

use std::convert::Infallible;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use futures_lite::stream::unfold;
use tokio::time::timeout;
use tracing::{Instrument as _, Span};

use super::generation::{Delta, Generation};
use super::respond::catching;
use crate::api::{ApiError, Writer};
use crate::health::State;

/// Tells a proxy to pass events on at once.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// A response that sends the texts while they grow. Dropping it cancels them.
pub(super) fn response(generation: Generation, writer: Box<dyn Writer>) -> Response {
    let events = Events { generation, writer, stage: Stage::Opening, sent: Instant::now() };
    let span = Span::current();
    let body = unfold(events, move |events| next(events).instrument(span.clone()));
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

struct Events {
    generation: Generation,
    writer: Box<dyn Writer>,
    stage: Stage,
    /// When the client has got bytes last.
    sent: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Opening,
    Texts,
    Ended,
}

/// The next bytes of the body. An error, or a panic, is the last event.
async fn next(mut events: Events) -> Option<(Result<Bytes, Infallible>, Events)> {
    if events.stage == Stage::Ended {
        return None;
    }
    let bytes = catching(events.advance()).await.unwrap_or_else(|error| {
        tracing::info!(%error, "a stream ends with an error");
        events.generation.fail(&error);
        events.stage = Stage::Ended;
        events.writer.error(&error)
    });
    Some((Ok(bytes.into()), events))
}

impl Events {
    async fn advance(&mut self) -> Result<String, ApiError> {
        if self.stage == Stage::Opening {
            self.stage = Stage::Texts;
            let opening = self.writer.opening(self.generation.count(), self.generation.usage().prompt);
            if !opening.is_empty() {
                return Ok(opening);
            }
        }
        let keep_alive = self.generation.shared().limits.keep_alive;
        match timeout(keep_alive, self.generation.next()).await {
            Err(_) => {
                self.sent = Instant::now();
                let is_repairing = self.generation.shared().state() == State::Repairing;
                Ok(self.writer.waiting(if is_repairing { "repairing" } else { "keep-alive" }))
            }
            Ok(Some(delta)) => {
                let Delta { index, said, ending } = delta?;
                let bytes = self.writer.part(index, &said, ending.as_ref());
                // What the client does not want to see takes time, too.
                let is_late = bytes.is_empty() && self.sent.elapsed() >= keep_alive;
                let bytes = if is_late { self.writer.waiting("keep-alive") } else { bytes };
                if !bytes.is_empty() {
                    self.sent = Instant::now();
                }
                Ok(bytes)
            }
            Ok(None) => {
                self.stage = Stage::Ended;
                Ok(self.writer.closing(self.generation.usage()))
            }
        }
    }
}
