//! Requests to the engine, and their events.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use disco_models::serving::Params;
use tokio::sync::{Notify, mpsc};

use crate::grammar::Constraint;

/// One text to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// Name of the client's request, for logs.
    pub id: Arc<str>,
    /// Tokens of the prompt, at least one.
    pub prompt: Arc<[u32]>,
    /// How tokens are chosen.
    pub params: Params,
    /// The most tokens to generate. 0 only evaluates the prompt.
    pub max_tokens: usize,
    /// What constrains the text, of which no token is generated yet.
    pub grammar: Option<Constraint>,
    /// Requests with different salts share no blocks of the cache.
    pub salt: u64,
}

/// What happens to a request, in order. After [`End`](Event::End) or [`Failed`](Event::Failed) comes nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The tokens of the prompt, if the request asks for their logprobs. The first one has no probability: its logprob is
    /// NaN and `top` is empty.
    Prompt(Vec<Token>),
    /// The text begins, and so many tokens of its prompt were in the cache.
    Begun {
        /// These tokens.
        cached: usize,
    },
    /// Workers were lost, and nothing comes until they are replaced.
    Lost {
        /// What has failed.
        why: Arc<str>,
    },
    /// The workers are ready again, and what was there of the text is computed again.
    Replaced,
    /// The next token of the text.
    Token(Token),
    /// The text is complete.
    End(End),
    /// The text can't be completed.
    Failed(Failure),
}

/// A token of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its number in the vocabulary.
    pub id: u32,
    /// The logarithm of its probability, before temperature and penalties; NaN if the request does not ask for it.
    pub logprob: f32,
    /// The most probable tokens and their logprobs, the most probable first.
    pub top: Vec<(u32, f32)>,
    /// The digest of its logits; 0 if the request does not ask for it.
    pub digest: u64,
}

/// Why a text is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its last token, which was told before, is one of the request's `ends`.
    Token,
    /// It has `max_tokens` tokens.
    Length,
}

/// Why a text can't be completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It can't be served whatever the load is.
    #[error("{0}")]
    Invalid(String),
    /// Its steps have failed, or it was interrupted too often.
    #[error("{0}")]
    Failed(String),
    /// The server ends.
    #[error("the server is shutting down")]
    Shutdown,
    /// The client reads too slowly.
    #[error("the client has read nothing for too long")]
    SlowReader,
}

/// Why a request is not taken now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// As many requests wait as may.
    #[error("too many requests are waiting")]
    Full,
    /// The server ends, or its engine has.
    #[error("the server is shutting down")]
    Shutdown,
}

/// A request on its way to the engine.
#[derive(Debug)]
pub struct Submitted {
    /// The request.
    pub request: Request,
    /// Where its events go. A full channel pauses the request, until the client has read.
    pub events: mpsc::Sender<Event>,
    /// Whether the client has gone.
    pub cancelled: Arc<AtomicBool>,
}

/// The way to the engine.
#[derive(Clone, Debug)]
pub struct Requests {
    submit: mpsc::Sender<Submitted>,
    /// Tells the engine that something was cancelled.
    wake: Arc<Notify>,
}

/// The engine's end.
#[derive(Debug)]
pub struct Inbox {
    /// New requests.
    pub submitted: mpsc::Receiver<Submitted>,
    /// Notified when a request is cancelled.
    pub wake: Arc<Notify>,
}

/// Events of a request that the engine may be ahead of its reader.
pub const EVENTS_AHEAD: usize = 32;

/// The way to an engine that takes `waiting` requests before it has looked at them.
pub fn channel(waiting: usize) -> (Requests, Inbox) {
    let (submit, submitted) = mpsc::channel(waiting);
    let wake = Arc::new(Notify::new());
    (Requests { submit, wake: wake.clone() }, Inbox { submitted, wake })
}

impl Requests {
    /// Hands a request to the engine.
    ///
    /// # Errors
    /// Too many requests wait, or the engine has ended.
    pub fn submit(&self, request: Request) -> Result<Running, Refused> {
        let (events, reads) = mpsc::channel(EVENTS_AHEAD);
        let cancelled = Arc::new(AtomicBool::new(false));
        let submitted = Submitted { request, events, cancelled: cancelled.clone() };
        self.submit.try_send(submitted).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Refused::Full,
            mpsc::error::TrySendError::Closed(_) => Refused::Shutdown,
        })?;
        Ok(Running { events: reads, cancelled, wake: self.wake.clone() })
    }
}

/// A request that the engine has. Dropping it cancels the request.
#[derive(Debug)]
pub struct Running {
    events: mpsc::Receiver<Event>,
    cancelled: Arc<AtomicBool>,
    wake: Arc<Notify>,
}

impl Running {
    /// The next event; `None` after the last one, or if the engine has ended without one.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The same as [`next`](Self::next), for a task that waits for several requests.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let event = ready!(self.events.poll_recv(context));
        // The engine may wait for room.
        self.wake.notify_one();
        Poll::Ready(event)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}
