//! Queues of the writes and actions that follow from events.

use std::collections::VecDeque;
use std::sync::Arc;

use disco_core::Error;
use disco_core::wire::{Message, Pieces, Transfer};

use super::batch::Load;
use super::event::{Action, Conn, Order, Write};

/// Writes and actions, in order.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) writes: VecDeque<Write>,
    pub(super) actions: VecDeque<Action>,
}

impl Outbox {
    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(super) fn write(&mut self, conn: Conn, bytes: impl Into<Arc<[u8]>>, order: Order) {
        self.writes.push_back(Write { conn, bytes: bytes.into(), order, snapshot: None, pieces: None, transfer: None });
    }

    /// Writes frames, with their large tensors.
    pub(super) fn write_load(&mut self, conn: Conn, load: &Load, order: Order) {
        let Load { packets, snapshot, pieces, transfer, .. } = load.clone();
        self.writes.push_back(Write { conn, bytes: packets, order, snapshot, pieces, transfer });
    }

    /// Sends `content`, the tensors of a transfer; without content, withdraws the transfer.
    pub(super) fn write_ahead(&mut self, conn: Conn, transfer: &Arc<Transfer>, content: Option<&Arc<Pieces>>) {
        let order = if content.is_some() { Order::Ahead } else { Order::Withdrawn };
        let (pieces, transfer) = (content.cloned(), Some(transfer.clone()));
        self.writes.push_back(Write { conn, bytes: Arc::default(), order, snapshot: None, pieces, transfer });
    }

    /// Sends a message ahead of frames.
    pub(super) fn send(&mut self, conn: Conn, message: &Message) {
        self.send_as(conn, message, Order::Urgent);
    }

    pub(super) fn send_as(&mut self, conn: Conn, message: &Message, order: Order) {
        match message.encode() {
            Ok(packet) => self.write(conn, packet, order),
            Err(error) => tracing::error!(%error, %message, "can't be sent"),
        }
    }

    /// Tells the other end why it is refused, and closes the connection.
    pub(super) fn refuse(&mut self, conn: Conn, why: &Error) {
        self.send_as(conn, &Message::Bye(why.to_string()), Order::Last);
        self.act(Action::Close(conn));
    }
}
