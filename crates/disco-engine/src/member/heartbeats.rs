//! Heartbeats of a node to its controller.

use std::time::Instant;

use disco_core::wire::{Message, Times};

use super::serving::{Action, Member};
use crate::clock::MachineClock;
use crate::fault::{self, Fault};

impl Member {
    /// Sets the clock that the controller aligns with its own.
    pub fn with_clock(mut self, clock: MachineClock) -> Self {
        self.clock = clock;
        self
    }

    /// Answers a heartbeat of the controller at once: the shorter the round trip, the smaller is the error of the clocks.
    pub(super) fn receive_heartbeat(&mut self, times: Times, now: Instant) {
        self.echo.note(times, self.clock.at(now));
        if times.sent > 0 {
            self.answer(now);
        }
    }

    /// Sends a node's heartbeat if it is due.
    pub(super) fn send_heartbeat(&mut self, now: Instant) {
        if self.liveness.must_send(now) {
            self.answer(now);
        }
    }

    /// Sends a heartbeat, which answers the controller's last one.
    fn answer(&mut self, now: Instant) {
        self.liveness.sent(now);
        let is_silent =
            fault::is_planted(Fault::NoHeartbeat) || self.is_awaited() && fault::is_planted(Fault::SilentLeave);
        if !is_silent {
            self.actions.push_back(Action::Send(Message::Alive(self.echo.answer(self.clock.at(now)))));
        }
    }
}
