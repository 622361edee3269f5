//! A double of the engine: tests send its events.

use disco_serve::engine::{End, Event, Inbox, Request, Submitted, Token};

use super::model::{bytes, token};

/// Stands for the engine. It takes requests, and says what a test tells it to.
pub(crate) struct EngineDouble {
    inbox: Inbox,
}

/// A request that the double has taken.
pub(crate) struct Taken(Submitted);

impl EngineDouble {
    pub(crate) fn new(inbox: Inbox) -> Self {
        Self { inbox }
    }

    /// The next request.
    pub(crate) async fn take(&mut self) -> Taken {
        Taken(self.inbox.submitted.recv().await.unwrap())
    }

    /// Whether no request has come that was not taken.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.inbox.submitted.try_recv().is_err()
    }

    /// Answers all requests by the same events, until the server is gone. Returns the requests.
    pub(crate) async fn answer_all(mut self, events: impl Fn(&Request) -> Vec<Event>) -> Vec<Request> {
        let mut requests = Vec::new();
        while let Some(submitted) = self.inbox.submitted.recv().await {
            for event in events(&submitted.request) {
                // A client may have gone.
                let _ = submitted.events.send(event).await;
            }
            requests.push(submitted.request);
        }
        requests
    }
}

impl Taken {
    pub(crate) fn request(&self) -> &Request {
        &self.0.request
    }

    pub(crate) async fn send(&self, event: Event) {
        self.0.events.send(event).await.unwrap();
    }

    /// Sends the tokens of a text, one for each byte.
    pub(crate) async fn say(&self, text: &str) {
        for token in bytes(text) {
            self.send(Event::Token(token)).await;
        }
    }

    /// Sends events until the reader is gone. Returns whether the request was cancelled, and the number of events that were
    /// sent.
    pub(crate) async fn say_for_ever(&self, text: &str) -> (bool, usize) {
        let mut sent = 0;
        loop {
            for token in bytes(text) {
                if self.0.events.send(Event::Token(token)).await.is_err() {
                    return (self.is_cancelled(), sent);
                }
                sent += 1;
            }
        }
    }

    pub(crate) async fn end(self, end: End) {
        self.send(Event::End(end)).await;
    }

    /// Waits until nobody reads the events any more. Returns whether the request was cancelled.
    pub(crate) async fn abandoned(&self) -> bool {
        self.0.events.closed().await;
        self.is_cancelled()
    }

    fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(std::sync::atomic::Ordering::Acquire)
    }
}

/// The events of a text that ends by itself.
pub(crate) fn text(text: &str) -> Vec<Event> {
    let tokens = bytes(text).into_iter().chain([token(super::model::END)]);
    tokens.map(Event::Token).chain([Event::End(End::Token)]).collect()
}

/// A token with logprobs.
pub(crate) fn likely(id: u32, logprob: f32, top: &[(u32, f32)]) -> Token {
    Token { id, logprob, top: top.to_vec(), digest: 0 }
}
