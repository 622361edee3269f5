//! Heartbeats to nodes, and the alignment of their clocks.

use std::sync::Arc;
use std::time::Instant;

use disco_core::activity::align;
use disco_core::wire::{Message, Times};
use disco_core::{Result, WorkerId};

use super::event::Conn;
use super::machine::Controller;
use super::peer::Kind;
use crate::clock::MachineClock;
use crate::fault::{self, Fault};

impl Controller {
    /// Sets the clock with which the clocks of nodes are aligned.
    pub fn with_clock(mut self, clock: MachineClock) -> Self {
        self.clock = clock;
        self
    }

    /// Sends a heartbeat, which the peer answers.
    pub(super) fn send_heartbeat(&mut self, index: usize, conn: Conn, now: Instant) {
        self.peers[index].liveness.sent(now);
        if !fault::is_planted(Fault::SilentController) {
            self.out.send(conn, &Message::Alive(self.clock.question(now)));
        }
    }

    /// Handles a heartbeat of a node.
    pub(super) fn receive_heartbeat(&mut self, index: usize, conn: Conn, times: Times, now: Instant) {
        let clock = &mut self.peers[index].clock;
        clock.add(times, self.clock.at(now));
        if times.echo > 0 && clock.is_young() {
            self.send_heartbeat(index, conn, now);
        }
    }

    /// Aligns the times in the recording of a node's worker with the clock here. Worker processes read this clock.
    ///
    /// # Errors
    /// The bytes are no recording.
    pub(super) fn align(&self, worker: WorkerId, recording: Arc<[u8]>) -> Result<Arc<[u8]>> {
        match self.place(worker).filter(|_| self.side.kind() == Kind::Node) {
            Some((peer, _)) => Ok(align(&recording, &self.peers[peer].clock.alignment())?.into()),
            None => Ok(recording),
        }
    }
}
