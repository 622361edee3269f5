//! Answers to workers: what they ask of the store, and descriptors.

use std::sync::Arc;

use disco_core::link::SharedFd;
use disco_core::wire::{Message, StoreCall};
use disco_core::{Result, Value};

use super::connection::Connection;
use super::service::{Reactor, Reading};
use super::transport::Transport;
use crate::engine::controller::{Conn, Event};

impl<T: Transport> Reactor<T> {
    /// Does what a worker asks of the store.
    pub(super) fn ask(&self, conn: Conn, id: u64, epoch: u64, call: StoreCall) {
        let Some(Reading { connection, .. }) = self.connections.get(&conn) else { return };
        let connection = connection.clone();
        let tell = move |result| answer(&connection, id, result);
        self.shared.store().call(epoch, call, Box::new(tell));
    }

    /// A worker shares a descriptor.
    pub(super) fn share(&mut self, conn: Conn, id: u64, name: SharedFd) {
        let Some(Reading { connection, incoming, .. }) = self.connections.get_mut(&conn) else { return };
        match incoming.take_fd() {
            Ok(fd) => {
                self.shared.put(name, fd);
                answer(connection, id, Ok(Value::None));
            }
            Err(error) => self.lane.step(Event::Garbage(conn, error), &mut self.actions),
        }
    }

    /// Hands a descriptor to a worker.
    pub(super) fn hand(&self, conn: Conn, id: u64, name: SharedFd) {
        let Some(Reading { connection, .. }) = self.connections.get(&conn) else { return };
        let sent = match self.shared.copy(name) {
            Ok(fd) => Message::Handed { id }.encode().and_then(|packet| connection.send(packet, Some(Arc::new(fd)))),
            Err(error) => return answer(connection, id, Err(error)),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "nobody to answer");
        }
    }
}

/// Sends an answer. That the other end is gone shows when it is listened to.
fn answer(connection: &Connection, id: u64, result: Result<Value>) {
    let packet = Message::Answer { id, result }.encode();
    // A value that can't leave the process: the worker that asked is told so.
    let packet = packet.or_else(|error| Message::Answer { id, result: Err(error) }.encode());
    if let Err(error) = packet.and_then(|packet| connection.send(packet, None)) {
        tracing::debug!(%error, "an answer does not go on");
    }
}
