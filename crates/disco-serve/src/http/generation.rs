//! The texts of one request, while the engine generates them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use disco_models::serving::Digests;
use disco_models::text::Text;
use futures_lite::FutureExt as _;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep_until};

use super::calls::Calls;
use super::drain::{Phase, ending};
use super::shared::{Active, Shared};
use super::traced::{fail, leave};
use crate::admission::Seats;
use crate::api::{ApiError, Ending, Finish, Said, Usage};
use crate::calls::{Part, Parting};
use crate::engine::{End, Event, Running, Token};
use crate::text::{ChoiceText, Entry, Piece, prompt_entries};
use crate::trace::{self, Recorder};

/// All texts of a request. Dropping it cancels those that are not complete.
pub(super) struct Generation {
    choices: Vec<Choice>,
    /// The choice that is polled first. It moves with each event, so that no choice starves.
    first: usize,
    usage: Usage,
    /// Parts that are not taken yet.
    ready: VecDeque<Delta>,
    phase: watch::Receiver<Phase>,
    shared: Arc<Shared>,
    arrived: Instant,
    timeout: Pin<Box<Sleep>>,
    recorder: Recorder,
    /// Why texts have ended, in their order.
    finishes: Vec<Option<Finish>>,
    _active: Active,
}

/// The next part of one text.
#[derive(Debug)]
pub(super) struct Delta {
    pub(super) index: usize,
    pub(super) said: Said,
    pub(super) ending: Option<Ending>,
}

/// One text.
pub(super) struct Choice {
    /// `None` once the text is complete, or the client is not to get more of it.
    running: Option<Running>,
    /// Until the first event.
    seat: Option<Seats>,
    text: ChoiceText,
    ends: Vec<u32>,
    /// The prompt's text, until the client has it.
    echo: Option<String>,
    /// Whether the prompt's text comes with logprobs.
    awaits_prompt: bool,
    last_token: Option<Instant>,
    /// Whether it is the first one of its prompt.
    pub(super) counts_prompt: bool,
    /// The digests of its logits, if the client wants them.
    pub(super) digests: Option<Digests>,
    parting: Parting,
    calls: Calls,
}

impl Generation {
    pub(super) fn new(
        choices: Vec<Choice>,
        prompt_tokens: usize,
        shared: Arc<Shared>,
        active: Active,
        arrived: Instant,
    ) -> Self {
        let usage = Usage { prompt: prompt_tokens, ..Usage::default() };
        let timeout = Box::pin(sleep_until((arrived + shared.limits.request_time).into()));
        Self {
            finishes: vec![None; choices.len()],
            choices,
            first: 0,
            usage,
            ready: VecDeque::new(),
            phase: shared.drain.subscribe(),
            shared,
            arrived,
            timeout,
            recorder: Recorder::default(),
            _active: active,
        }
    }

    /// Records the times of the texts from now on.
    pub(super) fn record(&mut self, recorder: Recorder) {
        recorder.begin(trace::Part::Waiting);
        self.recorder = recorder;
    }

    /// Records an error of the request.
    pub(super) fn fail(&self, error: &ApiError) {
        fail(&self.recorder, error);
    }

    /// Number of texts.
    pub(super) fn count(&self) -> usize {
        self.choices.len()
    }

    /// The tokens so far.
    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    /// The server's state.
    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The next part of any text; `None` after the end of all texts. An error is the last item.
    ///
    /// # Cancel safety
    /// No event is lost.
    pub(super) async fn next(&mut self) -> Option<Result<Delta, ApiError>> {
        loop {
            if let Some(delta) = self.ready.pop_front() {
                return Some(Ok(delta));
            }
            let taken = match self.event().await? {
                Ok((index, event)) => self.take(index, event),
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                self.fail(&error);
                return Some(Err(error));
            }
        }
    }

    /// The next event of any text.
    async fn event(&mut self) -> Option<Result<(usize, Option<Event>), ApiError>> {
        if let Some(index) = self.choices.iter().position(|choice| choice.echo.is_some() && !choice.awaits_prompt) {
            return Some(Ok((index, None)));
        }
        let Self { choices, first, phase, timeout, shared, .. } = self;
        let limit = shared.limits.request_time;
        let ended = async {
            ending(phase).await;
            Some(Err(ApiError::Shutdown))
        };
        let late = async {
            timeout.as_mut().await;
            Some(Err(ApiError::Timeout(limit)))
        };
        let event = poll_fn(|context| {
            let count = choices.len();
            let mut runs = false;
            for index in (0..count).map(|step| (*first + step) % count) {
                let Some(running) = &mut choices[index].running else { continue };
                runs = true;
                if let Poll::Ready(event) = running.poll_next(context) {
                    *first = (index + 1) % count;
                    let event = event.ok_or_else(|| ApiError::Failed("the engine has ended".into()));
                    return Poll::Ready(Some(event.map(|event| (index, Some(event)))));
                }
            }
            if runs { Poll::Pending } else { Poll::Ready(None) }
        });
        // An engine that always has events must not delay the end.
        ended.or(late).or(event).await
    }

    /// Takes the parts of a text that an event completes. An event of `None` stands for the prompt's text.
    fn take(&mut self, index: usize, event: Option<Event>) -> Result<(), ApiError> {
        let text = &*self.shared.text;
        let is_first = self.choices[..index].iter().all(|choice| choice.running.is_none());
        let choice = &mut self.choices[index];
        let Some(event) = event else {
            self.ready.extend(choice.echo.take().map(|text| Delta::of_prompt(index, text, Vec::new())));
            return Ok(());
        };
        match &event {
            Event::Begun { cached } => {
                if choice.counts_prompt {
                    self.usage.cached += cached;
                }
                self.recorder.begin(trace::Part::Prompt);
                return Ok(());
            }
            // The first one of the texts that are not complete tells it.
            Event::Lost { .. } | Event::Replaced if !is_first => return Ok(()),
            Event::Lost { why } => {
                self.recorder.event("workers lost", || vec![("exception.message", (&**why).into())]);
                return Ok(());
            }
            Event::Replaced => {
                self.recorder.event("workers replaced", Vec::new);
                return Ok(());
            }
            _ => {}
        }
        choice.seat = None;
        let piece = match event {
            Event::Prompt(tokens) => {
                let entries = prompt_entries(tokens, text)?;
                choice.awaits_prompt = false;
                self.ready.extend(choice.echo.take().map(|text| Delta::of_prompt(index, text, entries)));
                return Ok(());
            }
            // As above.
            Event::Begun { .. } | Event::Lost { .. } | Event::Replaced => return Ok(()),
            Event::Token(token) => {
                self.usage.completion += 1;
                if let Some(digests) = &mut choice.digests {
                    digests.push(token.id, token.digest);
                }
                let now = Instant::now();
                let last = choice.last_token.replace(now);
                if last.is_none() {
                    self.recorder.begin(trace::Part::Generation);
                }
                self.shared.meters.token(last.is_none(), now.duration_since(last.unwrap_or(self.arrived)));
                choice.token(token, text)?
            }
            Event::End(end) => {
                let piece = choice.text.finish(text)?;
                let finish = if end == End::Token { Finish::Stop } else { Finish::Length };
                self.finish(index, piece, finish);
                return Ok(());
            }
            Event::Failed(failure) => return Err(failure.into()),
        };
        if piece.stop.is_some() {
            self.finish(index, piece, Finish::Stop);
        } else {
            let is_thought = self.part(index, piece, false) || self.choices[index].parting.thinks();
            self.usage.reasoning += usize::from(is_thought);
        }
        Ok(())
    }

    /// Takes the last parts of a text, which is cancelled if the engine has not ended it.
    fn finish(&mut self, index: usize, piece: Piece, finish: Finish) {
        let finish = if piece.stop.is_some() { Finish::Stop } else { finish };
        self.choices[index].running = None;
        self.shared.meters.finished(finish == Finish::Stop, self.arrived.elapsed());
        let stop = piece.stop.clone();
        self.part(index, piece, true);
        let finish = match finish {
            Finish::Stop if self.choices[index].calls.end_a_text() => Finish::ToolCalls,
            finish => finish,
        };
        self.finishes[index] = Some(finish);
        let digests = self.choices[index].digests.take();
        let ending = Some(Ending { finish, stop, digests });
        match self.ready.back_mut().filter(|last| last.index == index) {
            Some(last) => last.ending = ending,
            None => self.ready.push_back(Delta { index, said: Said::default(), ending }),
        }
    }

    /// Takes the next part of a text: what is thought, said and called in this order is one delta. Returns whether something is thought.
    fn part(&mut self, index: usize, piece: Piece, is_last: bool) -> bool {
        let choice = &mut self.choices[index];
        let mut said = Said { entries: piece.entries, ..Said::default() };
        let mut is_thought = false;
        for part in choice.parting.push(piece.text, is_last) {
            let is_late = match part {
                Part::Reasoning(_) => !(said.text.is_empty() && said.calls.is_empty()),
                Part::Text(_) => !said.calls.is_empty(),
                _ => false,
            };
            if is_late {
                self.ready.push_back(Delta { index, said: std::mem::take(&mut said), ending: None });
            }
            let called = match part {
                Part::Reasoning(reasoning) => {
                    is_thought = true;
                    said.reasoning += &reasoning;
                    None
                }
                Part::Text(text) => {
                    said.text += &text;
                    None
                }
                Part::Begin(name) => choice.calls.begin(name, self.shared.random()),
                Part::Arguments(arguments) => choice.calls.part(arguments),
                Part::End => choice.calls.end(),
            };
            called.into_iter().for_each(|called| said.call(called));
        }
        if !said.is_empty() {
            self.ready.push_back(Delta { index, said, ending: None });
        }
        is_thought
    }
}

impl Delta {
    /// The text of the prompt.
    fn of_prompt(index: usize, text: String, entries: Vec<Entry>) -> Self {
        Self { index, said: Said { text, entries, ..Said::default() }, ending: None }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let unfinished = self.choices.iter().filter(|choice| choice.running.is_some()).count();
        if unfinished > 0 {
            tracing::info!(texts = unfinished, "a request ends before its texts are complete");
            (0..unfinished).for_each(|_| self.shared.meters.aborted());
            leave(&self.recorder);
        }
        let Self { usage, finishes, shared, .. } = self;
        self.recorder.note(|| {
            let finishes = finishes.iter().map(|finish| finish.map_or("error", Finish::name).to_owned());
            [
                ("gen_ai.response.model", Some((&*shared.name).into())),
                ("gen_ai.response.finish_reasons", Some(finishes.collect::<Vec<_>>().into())),
                ("gen_ai.usage.input_tokens", Some(usage.prompt.into())),
                ("gen_ai.usage.output_tokens", Some(usage.completion.into())),
                ("gen_ai.usage.cache_read.input_tokens", (usage.cached > 0).then(|| usage.cached.into())),
            ]
        });
    }
}

impl Choice {
    pub(super) fn new(running: Running, seat: Seats, text: ChoiceText, ends: Vec<u32>) -> Self {
        Self {
            running: Some(running),
            seat: Some(seat),
            text,
            ends,
            echo: None,
            awaits_prompt: false,
            last_token: None,
            counts_prompt: false,
            digests: None,
            parting: Parting::default(),
            calls: Calls::default(),
        }
    }

    /// Parts the text.
    pub(super) fn part(&mut self, parting: Parting, calls: Calls) {
        (self.parting, self.calls) = (parting, calls);
    }

    /// Puts the prompt's text before the generated one, with logprobs once they come.
    pub(super) fn echo(&mut self, echo: String, has_logprobs: bool) {
        self.text.begin_after(echo.chars().count());
        self.echo = Some(echo);
        self.awaits_prompt = has_logprobs;
    }

    /// The text that is decided with a token. A token that ends the text has none.
    fn token(&mut self, token: Token, text: &Text) -> Result<Piece, ApiError> {
        if self.ends.contains(&token.id) {
            self.text.end(token);
            return Ok(Piece::default());
        }
        Ok(self.text.push(token, text)?)
    }
}
