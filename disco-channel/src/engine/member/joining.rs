//! From the introduction until the controller takes or refuses a member.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use disco_core::error::LossCause;
use disco_core::wire::Message;
use disco_core::{Error, WorkerId};

use super::serving::{Event, lost};
use crate::engine::Liveness;

/// Limit for the answer to a worker process.
const WELCOME_LIMIT: Duration = Duration::from_secs(30);
/// Limit for the controller's silence towards a node. The controller sends more than one message each second.
const SILENCE: Duration = Duration::from_secs(10);
/// Time after which a node shows that it waits for other nodes.
const QUIET: Duration = Duration::from_secs(1);
/// Interval of a node's heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A member that has not been taken yet.
#[derive(Debug)]
pub(crate) struct Joining {
    /// None: a node.
    worker: Option<WorkerId>,
    since: Instant,
    liveness: Liveness,
    is_quiet: bool,
    is_over: bool,
    actions: VecDeque<Action>,
}

/// What the driver of a member that joins has to do.
#[derive(Debug)]
pub(crate) enum Action {
    Send(Message),
    /// Shows that other nodes are waited for.
    ShowWaiting,
    /// The controller has taken the member: WELCOME or ASSIGN.
    Taken(Box<Message>),
    /// This attempt has failed; another one may not.
    Retry(LossCause),
    /// The controller refuses the member.
    Refused(Error),
}

impl Joining {
    /// Sends HELLO or JOIN.
    pub(crate) fn new(introduction: Message, now: Instant) -> Self {
        let worker = if let Message::Hello(hello) = &introduction { Some(hello.worker) } else { None };
        let liveness = match worker {
            Some(_) => Liveness::new(Duration::MAX, WELCOME_LIMIT, now),
            None => Liveness::new(HEARTBEAT, SILENCE, now),
        };
        let actions = VecDeque::from([Action::Send(introduction)]);
        Self { worker, since: now, liveness, is_quiet: true, is_over: false, actions }
    }

    /// What the driver has to do next.
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When the engine wants [`Event::Timeout`].
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let quiet = self.is_quiet.then_some(self.since + QUIET).filter(|_| self.worker.is_none());
        self.liveness.next_timeout().into_iter().chain(quiet).min().filter(|_| !self.is_over)
    }

    /// Takes in what came.
    pub(crate) fn handle(&mut self, event: Event, now: Instant) {
        if self.is_over {
            return;
        }
        match event {
            // A worker process has one limit for the whole answer.
            Event::Heard if self.worker.is_none() => self.liveness.heard(now),
            Event::Said(message) => self.hear(message),
            Event::Closed => self.fail(LossCause::ConnectionClosed),
            Event::Failed(error) => self.end(Action::Refused(error)),
            Event::Timeout => self.look_at_time(now),
            _ => {}
        }
    }

    fn hear(&mut self, message: Message) {
        let refused = match (message, self.worker) {
            (Message::Alive, None) => return,
            (taken @ Message::Welcome(_), Some(_)) | (taken @ Message::Assign(_), None) => {
                return self.end(Action::Taken(Box::new(taken)));
            }
            (Message::Bye(why), Some(worker)) => Error::refused(format!("the controller refuses {worker}: {why}")),
            (Message::Bye(why), None) => lost(LossCause::Refused(why)),
            (other, Some(_)) => Error::protocol(format!("the controller says {other:?} before welcome")),
            (other, None) => lost(LossCause::Garbage(format!("it says {other} before it assigns"))),
        };
        self.end(Action::Refused(refused));
    }

    fn look_at_time(&mut self, now: Instant) {
        if let Some(limit) = self.liveness.is_silent(now) {
            return self.fail(match self.worker {
                Some(_) => LossCause::Other("it did not answer".into()),
                None => LossCause::Silent(limit),
            });
        }
        if self.worker.is_none() && now.saturating_duration_since(self.since) >= QUIET && self.is_quiet {
            self.is_quiet = false;
            self.actions.push_back(Action::ShowWaiting);
        }
        if self.liveness.must_say(now) {
            self.liveness.said(now);
            self.actions.push_back(Action::Send(Message::Alive));
        }
    }

    /// The attempt fails: a node may make another one, a worker process may not.
    fn fail(&mut self, why: LossCause) {
        self.end(match self.worker {
            Some(_) => Action::Refused(lost(why)),
            None => Action::Retry(why),
        });
    }

    fn end(&mut self, end: Action) {
        self.is_over = true;
        self.actions.push_back(end);
    }
}
