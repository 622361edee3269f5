//! A request that the engine has taken: what it gets, and how far its client has read.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use disco_models::serving::{Chosen, Mask, Start};
use tokio::sync::mpsc::error::TrySendError;

use super::request::{EVENTS_AHEAD, End, Event, Failure, Submitted, Token};
use crate::grammar::Constraint;

/// Places of the channel for the tokens of steps under way and for the end.
const RESERVED: usize = 4;

/// A request that takes part in steps.
pub(super) struct Sequence {
    submitted: Submitted,
    /// The tokens that were generated.
    text: Vec<u32>,
    /// Tokens of the prompt with their logprobs, by position; empty if nobody wants them.
    prompt: Vec<Option<Token>>,
    /// Whether its first tokens were planned.
    has_begun: bool,
    /// What constrains the next token, until its row is planned.
    mask: Option<Mask>,
    /// Events for which the channel had no room.
    late: VecDeque<Event>,
    /// Since when the client has not read.
    pub(super) paused: Option<Instant>,
    /// Room of the channel when it was last looked at.
    room: usize,
}

impl Sequence {
    pub(super) fn new(submitted: Submitted) -> Self {
        let request = &submitted.request;
        let mut prompt = Vec::new();
        if request.params.prompt_logprobs.is_some() {
            prompt.resize(request.prompt.len(), None);
            // Nothing is before the first token.
            if let (Some(place), Some(id)) = (prompt.first_mut(), request.prompt.first()) {
                *place = Some(Token { id: *id, logprob: f32::NAN, top: Vec::new(), digest: 0 });
            }
        }
        Self {
            submitted,
            text: Vec::new(),
            prompt,
            has_begun: false,
            mask: None,
            late: VecDeque::new(),
            paused: None,
            room: 0,
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.submitted.request.id
    }

    /// Whether the client has gone.
    pub(super) fn is_cancelled(&self) -> bool {
        self.submitted.cancelled.load(Ordering::Acquire)
    }

    /// Whether the client is so far behind that the text must wait.
    pub(super) fn is_behind(&mut self) -> bool {
        self.flush();
        let room = self.submitted.events.capacity();
        let wanted = if self.paused.is_some() { EVENTS_AHEAD / 2 } else { RESERVED };
        !self.late.is_empty() || room < wanted
    }

    /// Whether the client of a paused text has read since the last call.
    pub(super) fn has_read(&mut self) -> bool {
        let room = self.submitted.events.capacity();
        let before = std::mem::replace(&mut self.room, room);
        room > before
    }

    /// The begin of this sequence of so many known tokens on the workers, whose first `cached` tokens are in its blocks.
    pub(super) fn start(&self, known: usize, cached: usize) -> Start {
        let request = &self.submitted.request;
        let mut start = Start::new(request.params.clone(), request.prompt.len());
        start.known = known as u32;
        if request.params.has_penalties() {
            start.cached = request.prompt.iter().chain(&self.text).take(cached).copied().collect();
        }
        start
    }

    /// The token of the prompt at a position, if its logprob is wanted.
    pub(super) fn prompt_token(&self, position: usize) -> Option<u32> {
        let request = &self.submitted.request;
        request.params.prompt_logprobs.and_then(|_| request.prompt.get(position).copied())
    }

    /// Tells how many tokens of the prompt the cache had when the text began.
    pub(super) fn begin(&mut self, cached: usize) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.tell(Event::Begun { cached });
        }
    }

    /// Keeps the logprobs of the prompt from a position on, and tells all of them once they are complete.
    pub(super) fn prompt(&mut self, first: usize, tokens: Vec<Chosen>) {
        for (place, chosen) in self.prompt.iter_mut().skip(first).zip(tokens) {
            *place = Some(of(chosen));
        }
        if !self.prompt.is_empty() && self.prompt.iter().all(Option::is_some) {
            let prompt = std::mem::take(&mut self.prompt).into_iter().flatten().collect();
            self.tell(Event::Prompt(prompt));
        }
    }

    /// Finds out which tokens can follow the text.
    ///
    /// # Errors
    /// The grammar takes too much work.
    pub(super) fn constrain(&mut self) -> Result<(), String> {
        self.mask = self.submitted.request.grammar.as_mut().map(Constraint::mask).transpose()?;
        Ok(())
    }

    /// The tokens that [`constrain`](Self::constrain) has found.
    pub(super) fn mask(&mut self) -> Option<Mask> {
        self.mask.take()
    }

    /// Adds a token to the text.
    ///
    /// # Errors
    /// The grammar of the text does not allow it.
    pub(super) fn token(&mut self, chosen: Chosen) -> Result<(), String> {
        let allowed = self.submitted.request.grammar.as_mut().map_or(Ok(()), |grammar| grammar.consume(chosen.id));
        self.text.push(chosen.id);
        self.tell(Event::Token(of(chosen)));
        allowed
    }

    /// Tells that workers were lost.
    pub(super) fn lost(&mut self, why: Arc<str>) {
        self.tell(Event::Lost { why });
    }

    /// Tells that they were replaced.
    pub(super) fn replaced(&mut self) {
        self.tell(Event::Replaced);
    }

    pub(super) fn end(mut self, end: End) {
        self.tell(Event::End(end));
    }

    pub(super) fn fail(mut self, failure: Failure) {
        self.tell(Event::Failed(failure));
    }

    fn tell(&mut self, event: Event) {
        self.late.push_back(event);
        self.flush();
    }

    fn flush(&mut self) {
        while let Some(event) = self.late.pop_front() {
            match self.submitted.events.try_send(event) {
                Ok(()) => (),
                Err(TrySendError::Full(event)) => return self.late.push_front(event),
                // Nobody reads, which `is_cancelled` will say.
                Err(TrySendError::Closed(_)) => self.late.clear(),
            }
        }
    }
}

fn of(chosen: Chosen) -> Token {
    Token { id: chosen.id, logprob: chosen.logprob, top: chosen.top, digest: chosen.digest }
}
