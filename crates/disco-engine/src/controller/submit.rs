//! Sends frames to peers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::wire::{Pieces, Transfer};
use disco_core::{Command, Frame, Result, WorkerId};

use super::batch::Load;
use super::event::Order;
use super::machine::Controller;
use super::phase::Leave;
use crate::credit::MAX_UNREAD_FRAMES;
use crate::fault::{self, Fault};

/// The largest frame that is also sent to peers that it does not concern; larger ones are replaced by a no-op for them.
const MAX_BYSTANDER_FRAME_BYTES: usize = 4 << 10;
/// How long a packet may be held for a peer that it does not concern, until another packet goes to that peer.
const MAX_HOLD_TIME: Duration = Duration::from_millis(200);

impl Controller {
    /// Frames that the lane would take now: the least credit of all peers.
    pub fn room(&self) -> usize {
        let here = self.peers.iter().filter(|peer| !peer.has_ended());
        here.map(|peer| peer.credit.left(self.batch.size())).min().unwrap_or(MAX_UNREAD_FRAMES) as usize
    }

    /// Frames of at most 64 KiB that the lane would take now; bytes of unacknowledged large frames do not count.
    pub fn room_for_small(&self) -> usize {
        if fault::is_planted(Fault::SmallWaits) {
            return self.room();
        }
        let here = self.peers.iter().filter(|peer| !peer.has_ended());
        here.map(|peer| peer.credit.left_for_small(self.batch.size())).min().unwrap_or(MAX_UNREAD_FRAMES) as usize
    }

    /// Sends the large tensors of a later frame to the peer of worker `to`, or to all peers. Without `content`,
    /// withdraws the transfer.
    pub fn send_ahead(&mut self, to: Option<WorkerId>, transfer: &Arc<Transfer>, content: Option<&Arc<Pieces>>) {
        let peer = to.and_then(|worker| self.place(worker)).map(|(peer, _)| peer);
        let peers = self.peers.iter().enumerate().filter(|(index, _)| to.is_none() || peer == Some(*index));
        peers.filter_map(|(_, peer)| peer.conn()).for_each(|conn| self.out.write_ahead(conn, transfer, content));
    }

    /// Records the effect of a command that is about to be sent.
    pub fn note_effect(&mut self, command: &Command) {
        match command {
            Command::Shutdown => self.leave = self.leave.max(Leave::InOrder),
            Command::Resize { members, .. } => self.members = Some(members.clone()),
            _ => {}
        }
        self.epoch = self.epoch.max(command.epoch().unwrap_or(0));
    }

    /// [`Controller::submit_packed`] with the frame packed here.
    #[cfg(test)]
    pub(crate) fn submit(&mut self, frame: &Frame, now: Instant) -> Result<()> {
        self.submit_packed(frame, super::pack(frame)?, now)
    }

    /// Sends a frame; the caller has checked [`room`](Self::room). A frame for whose effect a caller waits is sent at
    /// once; another may linger in the batch. `packed` is the result of [`pack`](super::pack): large packets are
    /// encoded before the engine is locked, since heartbeats need the lock.
    ///
    /// # Errors
    /// A value can't leave the process.
    pub fn submit_packed(&mut self, frame: &Frame, packed: Option<Load>, now: Instant) -> Result<()> {
        match frame.command() {
            Command::SyncWorker { worker } | Command::DebugGet { worker, .. } | Command::DebugSet { worker, .. } => {
                let peer = self.place(*worker).map(|(peer, _)| peer);
                let is_small = packed.is_none() && frame.bytes()?.len() <= MAX_BYSTANDER_FRAME_BYTES;
                let rest = (!is_small).then(|| frame.as_noop());
                self.submit_to((frame, packed), rest.as_ref(), peer, now)
            }
            command => {
                let is_awaited = matches!(
                    command,
                    Command::SyncAll
                        | Command::GetAll { .. }
                        | Command::Shutdown
                        | Command::Recover { .. }
                        | Command::Resize { .. }
                ) || command.answers().is_some();
                // A large frame would fill the batch.
                if is_awaited || packed.is_some() {
                    let load = self.add_and_take(frame, packed, now)?;
                    load.iter().for_each(|load| self.send_to_all(load));
                    return Ok(());
                }
                self.add_to_batch(frame, now)?;
                if self.batch.is_due(now) {
                    self.send_batch(now);
                } else if self.batch.linger(now) {
                    self.has_new_timeout = true;
                }
                Ok(())
            }
        }
    }

    /// Sends a large frame, for which a record in the ring keeps its place, to one peer or to all.
    pub fn post(&mut self, load: &Load, peer: Option<usize>) {
        match peer {
            Some(peer) => self.send_to_peer(peer, load, Order::Last),
            None => self.send_to_all(load),
        }
    }

    /// Sends the batch if its deadline has passed.
    pub(super) fn send_expired(&mut self, now: Instant) {
        if let Some(load) = self.batch.expire(now)
            // After a shutdown, peers take no more frames.
            && self.leave < Leave::AtOnce
        {
            self.send_to_all(&load);
        }
    }

    /// Sends a frame, and the batch before it, at once to the peer for whose reply a caller waits. Other peers get it,
    /// or `rest` in its place, with a later packet.
    fn submit_to(
        &mut self,
        (frame, packed): (&Frame, Option<Load>),
        rest: Option<&Frame>,
        peer: Option<usize>,
        now: Instant,
    ) -> Result<()> {
        if peer.is_none() || self.peers.len() > 1 {
            self.send_batch(now);
        }
        let load = self.add_and_take(frame, packed, now)?;
        let others = match rest {
            None => load.clone(),
            Some(rest) => {
                self.batch.add(rest)?;
                self.batch.take(now)
            }
        };
        for index in 0..self.peers.len() {
            let (load, order) = if peer == Some(index) { (&load, Order::Last) } else { (&others, Order::Held) };
            load.iter().for_each(|load| self.send_to_peer(index, load, order));
        }
        if self.held_until.is_none() && self.peers.len() > 1 {
            self.held_until = now.checked_add(MAX_HOLD_TIME);
            self.has_new_timeout = true;
        }
        Ok(())
    }

    /// Adds a frame to the batch and takes the batch; or sends the batch and takes the packed frame.
    fn add_and_take(&mut self, frame: &Frame, packed: Option<Load>, now: Instant) -> Result<Option<Load>> {
        match packed {
            None => {
                self.add_to_batch(frame, now)?;
                Ok(self.batch.take(now))
            }
            packed => {
                self.send_batch(now);
                self.batch.note_sent(now);
                Ok(packed)
            }
        }
    }

    fn add_to_batch(&mut self, frame: &Frame, now: Instant) -> Result<()> {
        if !self.batch.has_place_for(frame)? {
            self.send_batch(now);
        }
        self.batch.add(frame)
    }

    /// Sends the batch.
    fn send_batch(&mut self, now: Instant) {
        if let Some(load) = self.batch.take(now) {
            self.send_to_all(&load);
        }
    }

    fn send_to_all(&mut self, load: &Load) {
        (0..self.peers.len()).for_each(|index| self.send_to_peer(index, load, Order::Last));
    }

    fn send_to_peer(&mut self, index: usize, load: &Load, order: Order) {
        let peer = &mut self.peers[index];
        peer.use_credit(load.frames, load.bytes);
        if let Some(conn) = peer.conn() {
            self.out.write_load(conn, load, order);
        }
    }
}
