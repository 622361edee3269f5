//! Connections under numbers.

use std::sync::Arc;

use crate::engine::controller::Conn;
use crate::reactor::Connection;

/// Connections, each under a number that is used once.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<(u32, Option<Arc<Connection>>)>,
}

impl Table {
    pub(super) fn insert(&mut self, connection: Arc<Connection>) -> Conn {
        let slot = self.slots.iter().position(|(_, connection)| connection.is_none()).unwrap_or(self.slots.len());
        match self.slots.get_mut(slot) {
            None => self.slots.push((0, Some(connection))),
            Some((generation, free)) => {
                *generation += 1;
                *free = Some(connection);
            }
        }
        Conn { slot: slot as u32, generation: self.slots[slot].0 }
    }

    pub(super) fn find(&self, conn: Conn) -> Option<&Arc<Connection>> {
        let (generation, connection) = self.slots.get(conn.slot as usize)?;
        connection.as_ref().filter(|_| *generation == conn.generation)
    }

    pub(super) fn remove(&mut self, conn: Conn) -> Option<Arc<Connection>> {
        let (generation, connection) = self.slots.get_mut(conn.slot as usize)?;
        if *generation == conn.generation { connection.take() } else { None }
    }
}
