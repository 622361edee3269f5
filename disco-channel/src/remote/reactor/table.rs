//! A generational table of connections.

use std::sync::Arc;

use crate::remote::reactor::Connection;
use disco_engine::controller::Conn;

/// Connections under ids that are never reused.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Each slot's generation and connection.
    slots: Vec<(u32, Option<Arc<Connection>>)>,
    /// Slots without a connection.
    free: Vec<u32>,
    /// Bytes that removed connections had sent when they were removed.
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

    /// Bytes that all connections have sent, removed connections up to their removal.
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
    use crate::remote::reactor::Waker;

    #[test]
    fn the_id_of_a_removed_connection_does_not_find_a_later_one() {
        let waker = Arc::new(Waker::new().unwrap());
        let connect = || Arc::new(Connection::new(UnixStream::pair().unwrap().0, waker.clone()).unwrap());
        let mut table = Table::default();
        let [first, second] = [table.insert(connect()), table.insert(connect())];
        assert!(table.remove(first).is_some() && table.remove(first).is_none());
        let third = table.insert(connect());
        assert_eq!((third.slot, table.slots.len()), (first.slot, 2));
        assert!(table.find(first).is_none() && table.find(second).is_some() && table.find(third).is_some());
    }

    #[test]
    fn sent_bytes_include_those_of_removed_connections() {
        let waker = Arc::new(Waker::new().unwrap());
        let (mut table, pairs) = (Table::default(), [0, 1].map(|_| UnixStream::pair().unwrap()));
        let conns = pairs.each_ref().map(|(ours, _)| {
            table.insert(Arc::new(Connection::new(ours.try_clone().unwrap(), waker.clone()).unwrap()))
        });
        for (conn, bytes) in conns.into_iter().zip([100, 23]) {
            table.find(conn).unwrap().send(vec![7; bytes], None).unwrap();
        }
        assert_eq!(table.sent_bytes(), 123);
        table.remove(conns[0]);
        assert_eq!(table.sent_bytes(), 123);
    }
}
