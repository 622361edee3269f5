//! Joins a member: from its introduction until the controller accepts or refuses it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use disco_core::channel::Signal;
use disco_core::error::LossCause;
use disco_core::wire::{Message, Times};
use disco_core::{Error, WorkerId};

use super::serving::{Event, controller_lost};
use crate::Liveness;

/// Timeout of a worker process for the controller's answer.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(30);
/// Silence timeout of a node for the controller, which sends more than one message a second.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a node tells its user that it waits for other nodes.
const SHOW_WAITING_AFTER: Duration = Duration::from_secs(1);
/// Interval of a node's heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// A member that was not accepted yet.
#[derive(Debug)]
pub struct Joining {
    /// `None` for a node.
    worker: Option<WorkerId>,
    since: Instant,
    liveness: Liveness,
    is_quiet: bool,
    is_over: bool,
    actions: VecDeque<Action>,
}

/// An action for the driver of a joining member.
#[allow(
    clippy::exhaustive_enums,
    missing_docs,
    reason = "engine and lane know all variants, whose texts name the fields"
)]
#[derive(Debug)]
pub enum Action {
    /// Sends the message.
    Send(Message),
    /// Tells the user that the node waits for other nodes.
    ShowWaiting,
    /// Listens for children, which may be on other machines if `everywhere`, and sends LISTENS.
    Listen { everywhere: bool },
    /// The controller accepts the member, with WELCOME or ASSIGN, or sends it elsewhere, with REDIRECT. With SHUTDOWN, the
    /// session of a node that stands by has ended.
    Taken(Box<Message>),
    /// This attempt failed; another one may succeed.
    Retry(LossCause),
    /// The controller refuses the member.
    Refused(Error),
}

impl Joining {
    /// Begins with `introduction`: HELLO of a worker process, or JOIN of a node.
    pub fn new(introduction: Message, now: Instant) -> Self {
        let worker = if let Message::Hello(hello) = &introduction { Some(hello.worker) } else { None };
        let liveness = match worker {
            Some(_) => Liveness::new(Duration::MAX, WELCOME_TIMEOUT, now),
            None => Liveness::new(HEARTBEAT_INTERVAL, SILENCE_TIMEOUT, now),
        };
        let actions = VecDeque::from([Action::Send(introduction)]);
        Self { worker, since: now, liveness, is_quiet: true, is_over: false, actions }
    }

    /// The next action for the driver.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When the engine wants [`Event::Timeout`].
    pub fn next_timeout(&self) -> Option<Instant> {
        let quiet = self.is_quiet.then_some(self.since + SHOW_WAITING_AFTER).filter(|_| self.worker.is_none());
        self.liveness.next_timeout().into_iter().chain(quiet).min().filter(|_| !self.is_over)
    }

    /// Handles an event.
    pub fn handle(&mut self, event: Event, now: Instant) {
        if self.is_over {
            return;
        }
        match event {
            // The timeout of a worker process covers the whole answer.
            Event::PartReceived if self.worker.is_none() => self.liveness.received(now),
            Event::Message(message) => self.receive(message, now),
            Event::Closed => self.fail(LossCause::ConnectionClosed),
            Event::Failed(error) => self.end(Action::Refused(error)),
            Event::Timeout => self.on_timer(now),
            _ => {}
        }
    }

    fn receive(&mut self, message: Message, now: Instant) {
        if self.worker.is_none() {
            self.liveness.received(now);
        }
        let refused = match (message, self.worker) {
            (Message::Alive(_), None) => return,
            (Message::Relay { everywhere }, None) => return self.actions.push_back(Action::Listen { everywhere }),
            (taken @ Message::Welcome(_), Some(_))
            | (taken @ (Message::Assign(_) | Message::Redirect { .. } | Message::Signal(Signal::Shutdown)), None) => {
                return self.end(Action::Taken(Box::new(taken)));
            }
            (Message::Late, None) => {
                return self.fail(LossCause::ClosedWithReason("the session has started with all its nodes".into()));
            }
            (Message::Bye(why), Some(worker)) => Error::refused(format!("the controller refuses {worker}: {why}")),
            (Message::Bye(why), None) => controller_lost(LossCause::Refused(why)),
            (other, Some(_)) => Error::protocol(format!("the controller sent {other:?} before WELCOME")),
            (other, None) => controller_lost(LossCause::ProtocolViolation(format!("it sent {other} before ASSIGN"))),
        };
        self.end(Action::Refused(refused));
    }

    fn on_timer(&mut self, now: Instant) {
        if let Some(limit) = self.liveness.is_silent(now) {
            return self.fail(match self.worker {
                Some(_) => LossCause::Other("it did not answer".into()),
                None => LossCause::Silent(limit),
            });
        }
        if self.worker.is_none() && now.saturating_duration_since(self.since) >= SHOW_WAITING_AFTER && self.is_quiet {
            self.is_quiet = false;
            self.actions.push_back(Action::ShowWaiting);
        }
        if self.liveness.must_send(now) {
            self.liveness.sent(now);
            self.actions.push_back(Action::Send(Message::Alive(Times::default())));
        }
    }

    /// Fails the attempt. A node may retry, a worker process may not.
    fn fail(&mut self, why: LossCause) {
        self.end(match self.worker {
            Some(_) => Action::Refused(controller_lost(why)),
            None => Action::Retry(why),
        });
    }

    fn end(&mut self, end: Action) {
        self.is_over = true;
        self.actions.push_back(end);
    }
}
