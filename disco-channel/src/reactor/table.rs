//! A generational table of connections.

use std::sync::Arc;

use crate::engine::controller::Conn;
use crate::reactor::Connection;

/// Connections under ids that are never reused.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Each slot's generation and connection.
    slots: Vec<(u32, Option<Arc<Connection>>)>,
    /// Slots without a connection.
    free: Vec<u32>,
    /// Bytes that removed connections have sent.
    sent: u64,
}

impl Table {
    pub(super) fn insert(&mut self, connection: Arc<Connection>) -> Conn {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let (generation, place) = &mut self.slots[slot as usize];
        *place = Some(connection);
        Conn { slot, generation: *generation }
    }

    pub(super) fn find(&self, conn: Conn) -> Option<&Arc<Connection>> {
        let (generation, connection) = self.slots.get(conn.slot as usize)?;
        connection.as_ref().filter(|_| *generation == conn.generation)
    }

    /// Bytes that all connections have sent, also those that were removed.
    pub(super) fn sent_bytes(&self) -> u64 {
        let open = self.slots.iter().filter_map(|(_, connection)| connection.as_ref());
        self.sent + open.map(|connection| connection.sent()).sum::<u64>()
    }

    pub(super) fn remove(&mut self, conn: Conn) -> Option<Arc<Connection>> {
        let (generation, connection) = self.slots.get_mut(conn.slot as usize)?;
        let removed = connection.take_if(|_| *generation == conn.generation)?;
        *generation += 1;
        self.sent += removed.sent();
        self.free.push(conn.slot);
        Some(removed)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::reactor::Waker;

    #[test]
    fn the_id_of_a_removed_connection_does_not_find_a_later_one() {
        let waker = Arc::new(Waker::new().unwrap());
        let mut others = Vec::new();
        let mut connect = || {
            let (ours, other) = UnixStream::pair().unwrap();
            others.push(other);
            Arc::new(Connection::new(ours, waker.clone()).unwrap())
        };
        let mut table = Table::default();
        let [first, second] = [table.insert(connect()), table.insert(connect())];
        assert!(table.remove(first).is_some() && table.remove(first).is_none());
        table.find(second).unwrap().send(vec![7; 100], None).unwrap();
        let sent = table.sent_bytes();
        assert!(sent >= 100);
        table.remove(second);
        assert_eq!(table.sent_bytes(), sent);
        let second = table.insert(connect());
        let third = table.insert(connect());
        assert_eq!(table.slots.len(), 2);
        assert!(table.find(first).is_none() && table.find(second).is_some() && table.find(third).is_some());
    }
}
