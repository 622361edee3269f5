//! The frames and packets of the simulated controller: from the session to the ring and the links.

use std::sync::Arc;

use disco_core::wire::{Message, Pieces, Transfer};
use disco_core::{Frame, Result};

use super::link::Side;
use super::world::{What, World};
use crate::controller::{Event, Order, pack, pack_after};
use crate::limits::CHUNK_BYTES;

/// Largest frame that goes through the ring, in bytes.
const MAX_INLINE_BYTES: usize = 64 << 10;

impl World {
    /// Sends a frame to all members.
    pub(super) fn controller_sends(&mut self, mut frame: Frame) {
        let transfer = self.controller_sends_ahead(&frame);
        transfer.iter().for_each(|transfer| frame.set_transfer(transfer));
        let (now, frame) = (self.instant(), Arc::new(frame));
        // Kept until all hosts have the frame, as the session does.
        let pieces = frame.pieces();
        let size = match &pieces {
            Ok(Some(pieces)) => Ok(pieces.frame_len()),
            _ => frame.bytes().map(<[u8]>::len),
        };
        let size = match size {
            Ok(size) => size,
            Err(error) => return self.record_violation(format!("the controller could not send a frame: {error}")),
        };
        self.controller.engine.note_effect(frame.command());
        let is_inline = self.plan.has_ring && size <= MAX_INLINE_BYTES;
        let sent = match (self.plan.has_ring, pack_after(&frame), pack(&frame)) {
            (true, ..) if is_inline => Ok(()),
            (true, _, Ok(Some(load))) => {
                self.controller.engine.post(&load, None);
                Ok(())
            }
            (_, Ok(Some(load)), _) => self.controller.engine.submit_packed(&frame, Some(load), now),
            _ => self.controller.engine.submit(&frame, now),
        };
        if let Err(error) = sent {
            self.record_violation(format!("the controller could not send a frame: {error}"));
        }
        if !is_inline {
            self.controller.posted = (self.controller.posted.0 + 1, self.controller.posted.1 + size as u64);
            self.controller.posted_small += if size > MAX_INLINE_BYTES { 0 } else { size as u64 };
        }
        if self.plan.has_ring {
            self.controller.ring.written += 1;
            let frame = is_inline.then(|| frame.clone());
            for host in 0..self.hosts.len() {
                let ring = &mut self.hosts[host].ring;
                ring.push_back(frame.clone());
                if ring.len() == 1 {
                    let delay = self.events.random.of(1..50);
                    self.at(delay, What::Woken(host));
                }
            }
        }
        self.controller_was_called();
    }

    /// Sends large tensors ahead of their frame, as sessions do on lanes without shared memory, or withdraws them.
    fn controller_sends_ahead(&mut self, frame: &Frame) -> Option<Arc<Transfer>> {
        let Ok(Some(content)) = Pieces::of_tensors(frame.command().values()) else { return None };
        if self.plan.has_ring || self.events.random.percent(30) {
            return None;
        }
        let transfer = Arc::new(Transfer::new(frame.seq(), content.byte_len(), Arc::default()));
        self.controller.engine.send_ahead(None, &transfer, Some(&Arc::new(content)));
        self.controller_was_called();
        if self.events.random.percent(30) {
            self.controller.engine.send_ahead(None, &transfer, None);
            self.controller_was_called();
            return None;
        }
        Some(transfer)
    }

    pub(super) fn controller_writes(&mut self) {
        while let Some(write) = self.controller.engine.next_write() {
            let Some(link) = self.controller.conns.get(&write.conn).copied() else { continue };
            let packets = match (&write.pieces, write.order, &write.transfer) {
                (Some(content), Order::Ahead, Some(transfer)) => parts(transfer, content),
                (None, Order::Withdrawn, Some(transfer)) => {
                    Message::Withdraw(transfer.id()).encode().map(|packet| vec![packet.into()])
                }
                (Some(pieces), ..) => packet(pieces).map(|packet| vec![packet.into()]),
                (None, ..) => Ok(vec![write.bytes]),
            };
            let packets = match packets {
                Ok(packets) => packets,
                Err(error) => {
                    return self.record_violation(format!("the controller could not encode a packet: {error}"));
                }
            };
            let is_taken = packets.iter().all(|packet| self.write(link, Side::Member, packet, write.order));
            if !is_taken {
                let (now, unread) = (self.instant(), self.links[link].backlog(Side::Member));
                if let Some(host) = self.hosts.get_mut(self.links[link].host) {
                    host.is_disrupted = true;
                }
                self.controller.engine.handle(Event::Full(write.conn, unread), now);
            }
        }
    }
}

/// Reads a packet part by part, as the reactor does.
fn packet(pieces: &Pieces) -> Result<Vec<u8>> {
    let mut packet = Vec::with_capacity(pieces.byte_len());
    while packet.len() < pieces.byte_len() {
        packet.extend(pieces.read(packet.len(), CHUNK_BYTES)?);
    }
    Ok(packet)
}

/// The packets of a transfer.
fn parts(transfer: &Transfer, content: &Pieces) -> Result<Vec<Arc<[u8]>>> {
    let (bytes, mut parts, mut sent) = (content.byte_len(), Vec::new(), 0);
    while sent < bytes {
        let part = content.read(sent, CHUNK_BYTES.min(bytes - sent))?;
        sent += part.len();
        let message = Message::Ahead { transfer: transfer.id(), left: (bytes - sent) as u64, bytes: part.into() };
        parts.push(message.encode()?.into());
    }
    Ok(parts)
}
