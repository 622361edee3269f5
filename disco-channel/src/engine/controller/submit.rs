//! Frames, on their way down.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::wire::{Pieces, Transfer};
use disco_core::{Command, Frame, Result, WorkerId};

use super::batch::Load;
use super::closing::Leave;
use super::event::Order;
use super::machine::Controller;
use crate::engine::credit::CAPACITY;
use crate::engine::fault::{self, Fault};
use crate::shared_ring::Whom;

/// The largest frame that peers get that it does not concern.
const SMALL: usize = 4 << 10;
/// How long a packet that a peer does not wait for may wait for others to the same peer.
const HELD_LIMIT: Duration = Duration::from_millis(200);

impl Controller {
    /// Frames that would be taken now: as many as the slowest peer has credit for.
    pub(crate) fn room(&self) -> usize {
        let here = self.peers.iter().filter(|peer| !peer.is_gone());
        here.map(|peer| peer.credit.left(self.batch.size())).min().unwrap_or(CAPACITY) as usize
    }

    /// Frames of at most 64 KiB that would be taken now, whatever large ones are under way.
    pub(crate) fn room_for_small(&self) -> usize {
        if fault::is_planted(Fault::SmallWaits) {
            return self.room();
        }
        let here = self.peers.iter().filter(|peer| !peer.is_gone());
        here.map(|peer| peer.credit.left_for_small(self.batch.size())).min().unwrap_or(CAPACITY) as usize
    }

    /// Sends the large tensors of a frame that is still to come, to the peer of worker `to` or to all; without `content` they are taken
    /// back.
    pub(crate) fn send_ahead(&mut self, to: Option<WorkerId>, transfer: &Arc<Transfer>, content: Option<&Arc<Pieces>>) {
        let peer = to.and_then(|worker| self.place(worker)).map(|(peer, _)| peer);
        let peers = self.peers.iter().enumerate().filter(|(index, _)| to.is_none() || peer == Some(*index));
        peers.filter_map(|(_, peer)| peer.conn()).for_each(|conn| self.out.write_ahead(conn, transfer, content));
    }

    /// A command goes.
    pub(crate) fn note(&mut self, command: &Command) {
        match command {
            Command::Shutdown => self.leave = self.leave.max(Leave::InOrder),
            Command::Recover { epoch } => self.epoch = self.epoch.max(*epoch),
            _ => {}
        }
    }

    /// As [`Controller::submit_packed`].
    #[cfg(test)]
    pub(crate) fn submit(&mut self, frame: &Frame, now: Instant) -> Result<()> {
        self.submit_packed(frame, super::pack(frame)?, now)
    }

    /// Passes a frame on, for which there is room: at once if somebody waits for its effect; else it may linger for others to go with
    /// it. `packed` is what [`pack`](super::pack) gives: large packets are made before the engine is locked, since heartbeats need the lock.
    ///
    /// # Errors
    /// A value that can't leave the process.
    pub(crate) fn submit_packed(&mut self, frame: &Frame, packed: Option<Load>, now: Instant) -> Result<()> {
        match frame.command() {
            Command::SyncWorker { worker } | Command::DebugGet { worker, .. } | Command::DebugSet { worker, .. } => {
                let peer = self.place(*worker).map(|(peer, _)| peer);
                let is_small = packed.is_none() && frame.bytes()?.len() <= SMALL;
                let rest = (!is_small).then(|| frame.without_command());
                self.submit_to((frame, packed), rest.as_ref(), peer, now)
            }
            command => {
                let is_awaited = matches!(
                    command,
                    Command::SyncAll | Command::GetAll { .. } | Command::Shutdown | Command::Recover { .. }
                );
                // A batch would be full with a large frame.
                if is_awaited || packed.is_some() {
                    let load = self.take(frame, packed, now)?;
                    load.iter().for_each(|load| self.load_all(load));
                    return Ok(());
                }
                self.add(frame, now)?;
                if self.batch.is_due(now) {
                    self.go(now);
                } else if self.batch.wait(now) {
                    self.has_new_timeout = true;
                }
                Ok(())
            }
        }
    }

    /// Passes a large frame on to those whom its record in the ring concerns.
    pub(crate) fn post(&mut self, load: &Load, whom: Whom) {
        match whom {
            Whom::All => self.load_all(load),
            Whom::One(index) => self.load(index, load, Order::Last),
            Whom::Nobody => {}
        }
    }

    /// Passes on what has lingered.
    pub(super) fn linger(&mut self, now: Instant) {
        if let Some(load) = self.batch.expire(now)
            // Else peers were told to leave, ahead of it.
            && self.leave < Leave::AtOnce
        {
            self.load_all(&load);
        }
    }

    /// Passes a frame on at once, behind those that linger, to the peer of which somebody waits; the others may get `rest` in its place,
    /// and that when something else goes to them.
    fn submit_to(
        &mut self,
        (frame, packed): (&Frame, Option<Load>),
        rest: Option<&Frame>,
        peer: Option<usize>,
        now: Instant,
    ) -> Result<()> {
        if peer.is_none() || self.peers.len() > 1 {
            self.go(now);
        }
        let load = self.take(frame, packed, now)?;
        let others = match rest {
            None => load.clone(),
            Some(rest) => {
                self.batch.add(rest)?;
                self.batch.take(now)
            }
        };
        for index in 0..self.peers.len() {
            let (load, order) = if peer == Some(index) { (&load, Order::Last) } else { (&others, Order::Held) };
            load.iter().for_each(|load| self.load(index, load, order));
        }
        if self.held_until.is_none() && self.peers.len() > 1 {
            self.held_until = now.checked_add(HELD_LIMIT);
            self.has_new_timeout = true;
        }
        Ok(())
    }

    /// What is to go at once with a frame.
    fn take(&mut self, frame: &Frame, packed: Option<Load>, now: Instant) -> Result<Option<Load>> {
        match packed {
            None => {
                self.add(frame, now)?;
                Ok(self.batch.take(now))
            }
            packed => {
                self.go(now);
                self.batch.note_sent(now);
                Ok(packed)
            }
        }
    }

    fn add(&mut self, frame: &Frame, now: Instant) -> Result<()> {
        if !self.batch.has_place_for(frame)? {
            self.go(now);
        }
        self.batch.add(frame)
    }

    /// Passes on what lingers.
    fn go(&mut self, now: Instant) {
        if let Some(load) = self.batch.take(now) {
            self.load_all(&load);
        }
    }

    fn load_all(&mut self, load: &Load) {
        (0..self.peers.len()).for_each(|index| self.load(index, load, Order::Last));
    }

    fn load(&mut self, index: usize, load: &Load, order: Order) {
        let peer = &mut self.peers[index];
        peer.credit.use_up(load.frames, load.bytes);
        if let Some(conn) = peer.conn() {
            self.out.write_load(conn, load, order);
        }
    }
}
