//! The member's end of a simulated node or worker process, from its connection to its end.

use std::time::Instant;

use disco_core::wire::{Join, Message};
use disco_core::{Error, Result, function};

use super::terms::{SECRET, secret};
use crate::handshake::{ANSWER_BYTES, GREETING_BYTES, NodeHandshake, Request, VERDICT_BYTES};
use crate::member::joining::{self, Joining};
use crate::member::serving::{self, Event, Member};

/// The state of a member.
#[derive(Default)]
pub(super) enum Phase {
    #[default]
    Away,
    /// Waits for the greeting, or for the verdict.
    Proving(Option<Box<NodeHandshake>>),
    Joining(Joining),
    Serving(Box<Member>),
    Done,
}

/// An action of a member's engine.
pub(super) enum Action {
    Join(joining::Action),
    Serve(serving::Action),
}

/// The next step of a handshake.
pub(super) enum Step {
    Answer([u8; ANSWER_BYTES]),
    /// The token is proved, and the node is to introduce itself.
    Introduce,
    /// The bytes are no greeting.
    Unknown,
}

impl Phase {
    pub(super) fn is_serving(&self) -> bool {
        matches!(self, Self::Serving(_))
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Handles bytes of the handshake.
    ///
    /// # Errors
    /// The controller refuses the node, which has the right token.
    pub(super) fn prove(&mut self, request: Request, bytes: &[u8]) -> Result<Step> {
        let Self::Proving(handshake) = self else { return Ok(Step::Unknown) };
        let Some(handshake) = handshake.take() else {
            let Ok(greeting) = <&[u8; GREETING_BYTES]>::try_from(bytes) else { return Ok(Step::Unknown) };
            let (handshake, answer) = NodeHandshake::answer(&secret(SECRET), greeting, request)?;
            *self = Self::Proving(Some(Box::new(handshake)));
            return Ok(Step::Answer(answer));
        };
        let verdict = <&[u8; VERDICT_BYTES]>::try_from(bytes).map_err(|_| Error::protocol("it is no verdict"))?;
        handshake.judge(verdict).map(|_| Step::Introduce)
    }

    pub(super) fn handle(&mut self, event: Event, now: Instant) {
        match self {
            Self::Joining(joining) => joining.handle(event, now),
            Self::Serving(member) => member.handle(event, now),
            _ => {}
        }
    }

    pub(super) fn next_action(&mut self) -> Option<Action> {
        match self {
            Self::Joining(joining) => joining.next_action().map(Action::Join),
            Self::Serving(member) => member.next_action().map(Action::Serve),
            _ => None,
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        match self {
            Self::Joining(joining) => joining.next_timeout(),
            Self::Serving(member) => member.next_timeout(),
            _ => None,
        }
    }

    /// Tells the member of room in its lane, if frames wait. Returns whether it did.
    pub(super) fn offer_room(&mut self, room: usize, now: Instant) -> bool {
        match self {
            Self::Serving(member) if room > 0 && member.wants_room() => {
                member.handle(Event::Room(room), now);
                true
            }
            _ => false,
        }
    }
}

/// The introduction of a node of this program, with this host name.
pub(super) fn join(name: String) -> Message {
    Message::Join(Join { name, rack: String::new(), is_spare: false, functions: functions() })
}

/// The worker functions of this program.
pub(super) fn functions() -> Vec<String> {
    function::names().into_iter().map(str::to_owned).collect()
}
