//! What a route is, for the router, for `/openapi.json` and for the guide.

use std::sync::Arc;

use axum::routing::MethodRouter;

use super::shared::Shared;
use crate::api::Body;

/// The routes that need no token, and that are answered however many connections there are: those of a machine that watches
/// the server.
const OPEN: [&str; 3] = ["/health", "/ready", "/metrics"];
/// What the paths begin with whose errors have Anthropic's form.
const ANTHROPIC: &str = "/v1/messages";

type Handler = fn() -> MethodRouter<Arc<Shared>>;

/// One path and its handler.
#[derive(Clone, Copy)]
pub(super) struct Route {
    pub(super) path: &'static str,
    /// What it does, in a sentence.
    pub(super) does: &'static str,
    /// The fields of a `POST` in the forms that it can have; none for a `GET`.
    pub(super) bodies: &'static [&'static Body],
    /// The media types of replies.
    pub(super) replies: &'static [&'static str],
    pub(super) handler: Handler,
}

impl Route {
    /// A `GET` with a JSON reply.
    pub(super) const fn read(path: &'static str, does: &'static str, handler: Handler) -> Self {
        Self::asked(path, does, &[], handler)
    }

    /// A `POST` with a JSON reply.
    pub(super) const fn asked(
        path: &'static str,
        does: &'static str,
        bodies: &'static [&'static Body],
        handler: Handler,
    ) -> Self {
        Self { path, does, bodies, replies: &["application/json"], handler }
    }

    /// A `POST` with a reply that is JSON or a stream of events.
    pub(super) const fn streamed(
        path: &'static str,
        does: &'static str,
        bodies: &'static [&'static Body],
        handler: Handler,
    ) -> Self {
        Self { path, does, bodies, replies: &["application/json", "text/event-stream"], handler }
    }

    pub(super) fn method(&self) -> &'static str {
        if self.bodies.is_empty() { "GET" } else { "POST" }
    }
}

/// Whether a path needs no token.
pub(super) fn is_open(path: &str) -> bool {
    OPEN.contains(&path)
}

/// Whether errors of a path have Anthropic's form.
pub(super) fn is_of_anthropic(path: &str) -> bool {
    path.starts_with(ANTHROPIC)
}
