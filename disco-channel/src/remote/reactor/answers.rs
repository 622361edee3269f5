//! Answers requests: calls of the store and of the keeper of memory, shared descriptors, and the status of the session.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use disco_core::link::{KeeperCall, SharedFd};
use disco_core::wire::{Message, StoreCall};
use disco_core::{Error, Result, Value, WorkerId};
use disco_engine::controller::{Conn, Event};

use super::connection::Connection;
use super::service::{Reactor, Reading};
use super::transport::Transport;

impl<T: Transport> Reactor<T> {
    /// Carries out a worker's call of the store.
    pub(super) fn ask(&self, conn: Conn, id: u64, epoch: u64, call: StoreCall) {
        let Some(Reading { connection, .. }) = self.connections.get(&conn) else { return };
        let connection = connection.clone();
        let reply = move |result| answer(&connection, id, result);
        self.shared.store().call(epoch, call, Box::new(reply));
    }

    /// Sends the status of the session to a client.
    pub(super) fn send_status(&self, conn: Conn) {
        let Some(Reading { connection, .. }) = self.connections.get(&conn) else { return };
        self.clients.answer(connection.clone(), &self.lane, &self.inbox);
    }

    /// Stores a descriptor that a worker shares.
    pub(super) fn share(&mut self, conn: Conn, id: u64, name: SharedFd) {
        let Some(Reading { connection, incoming, .. }) = self.connections.get_mut(&conn) else { return };
        match incoming.take_fd() {
            Ok(fd) => {
                self.shared.put(name, fd);
                answer(connection, id, Ok(Value::None));
            }
            Err(error) => self.lane.step(Event::InvalidMessage(conn, error), &mut self.actions),
        }
    }

    /// Sends a shared descriptor to a worker.
    pub(super) fn hand(&self, conn: Conn, id: u64, name: SharedFd) {
        let Some(Reading { connection, .. }) = self.connections.get(&conn) else { return };
        match self.shared.copy(name) {
            Ok(fd) => send_fd(connection, id, fd),
            Err(error) => answer(connection, id, Err(error)),
        }
    }

    /// Carries out a worker's call of the keeper.
    pub(super) fn call_keeper(&mut self, conn: Conn, id: u64, worker: WorkerId, call: &KeeperCall) {
        let Some(Reading { connection, incoming, .. }) = self.connections.get_mut(&conn) else { return };
        let found = match call {
            KeeperCall::Find(name) => self.shared.find(worker, name),
            KeeperCall::Keep(name) => match incoming.take_fd() {
                Ok(memory) => self.shared.keep(worker, name, memory),
                Err(error) => return self.lane.step(Event::InvalidMessage(conn, error), &mut self.actions),
            },
            KeeperCall::Discard(name) => {
                return answer(connection, id, Ok(Value::Bool(self.shared.discard(worker, name))));
            }
            other => Err(Error::protocol(format!("{other:?}"))),
        };
        match found {
            Ok(Some(fd)) => send_fd(connection, id, fd),
            Ok(None) => answer(connection, id, Ok(Value::None)),
            Err(error) => answer(connection, id, Err(error)),
        }
    }
}

/// Sends the requested descriptor.
fn send_fd(connection: &Connection, id: u64, fd: OwnedFd) {
    let sent = Message::Descriptor { id }.encode().and_then(|packet| connection.send(packet, Some(Arc::new(fd))));
    if let Err(error) = sent {
        tracing::debug!(%error, "a descriptor can't be sent to a worker");
    }
}

/// Sends an answer. A closed connection is noticed when it is read.
fn answer(connection: &Connection, id: u64, result: Result<Value>) {
    let packet = Message::Answer { id, result }.encode();
    // If the value can't be encoded, the worker gets that error.
    let packet = packet.or_else(|error| Message::Answer { id, result: Err(error) }.encode());
    if let Err(error) = packet.and_then(|packet| connection.send(packet, None)) {
        tracing::debug!(%error, "an answer can't be sent to a worker");
    }
}
