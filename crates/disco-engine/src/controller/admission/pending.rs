//! Connections that were not admitted yet, each for a limited time.

use std::collections::VecDeque;
use std::time::Instant;

use crate::controller::event::Conn;
use crate::handshake::HANDSHAKE_TIMEOUT;

/// Maximum number of pending connections, by default.
pub const MAX_PENDING: usize = 256;

/// Pending connections with their data, oldest first.
#[derive(Debug)]
pub(super) struct Pending<T>(VecDeque<(Conn, Instant, T)>);

impl<T> Pending<T> {
    pub(super) fn new() -> Self {
        Self(VecDeque::new())
    }

    pub(super) fn push(&mut self, conn: Conn, now: Instant, what: T) {
        self.0.push_back((conn, now, what));
    }

    pub(super) fn find(&mut self, conn: Conn) -> Option<&mut T> {
        self.0.iter_mut().find(|(other, ..)| *other == conn).map(|(.., what)| what)
    }

    pub(super) fn remove(&mut self, conn: Conn) -> Option<T> {
        let index = self.0.iter().position(|(other, ..)| *other == conn)?;
        self.0.remove(index).map(|(.., what)| what)
    }

    /// Removes the oldest connection that matches.
    pub(super) fn take_oldest(&mut self, is_meant: impl Fn(&T) -> bool) -> Option<(Conn, T)> {
        let index = self.0.iter().position(|(.., what)| is_meant(what))?;
        self.0.remove(index).map(|(conn, _, what)| (conn, what))
    }

    pub(super) fn count(&self, is_meant: impl Fn(&T) -> bool) -> usize {
        self.0.iter().filter(|(.., what)| is_meant(what)).count()
    }

    /// Removes a connection whose handshake has timed out.
    pub(super) fn expire(&mut self, now: Instant) -> Option<(Conn, T)> {
        let is_late =
            self.0.front().is_some_and(|(_, since, _)| now.saturating_duration_since(*since) >= HANDSHAKE_TIMEOUT);
        if !is_late {
            return None;
        }
        self.0.pop_front().map(|(conn, _, what)| (conn, what))
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.0.front().and_then(|(_, since, _)| since.checked_add(HANDSHAKE_TIMEOUT))
    }

    /// Removes all connections.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Conn> {
        self.0.drain(..).map(|(conn, ..)| conn)
    }
}
