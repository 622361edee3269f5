//! The worker's endpoint.

use std::sync::Arc;

use disco_core::channel::Reply;
use disco_core::wire::Message;
use disco_core::{Endpoint, Frame, Link, Result, Value, WorkerId};
use disco_engine::reply;

use super::commands::Commands;

use crate::remote::reactor::Connection;
use crate::replies::Replies;

/// The [`Endpoint`] of a worker that is a process.
pub struct ProcessEndpoint {
    pub(super) worker: WorkerId,
    pub(super) connection: Arc<Connection>,
    pub(super) commands: Commands,
    pub(super) link: Arc<Link>,
    /// Largest value of one reply, in bytes.
    pub(super) value_limit: usize,
    /// Where replies to polling callers go, and this worker's index there.
    pub(super) replies: Option<(Replies, usize)>,
    /// Whether large tensors of replies go in shared memory.
    pub(super) shares_memory: bool,
}

impl Endpoint for ProcessEndpoint {
    fn recv(&mut self) -> Result<&Frame> {
        self.commands.next()
    }

    fn reply(&mut self, seq: u64, reply: Reply) -> Result<()> {
        if matches!(reply, Ok(Value::None))
            && let Some((replies, index)) = &self.replies
            && replies.leave(*index, seq)
        {
            return Ok(());
        }
        // Back-pressure: at most one large reply is in memory, besides the bytes in the socket.
        self.connection.wait_for_room(|| !self.commands.is_closed());
        let reply = reply::within(self.value_limit, self.worker, seq, reply);
        if self.shares_memory
            && let Some(beside) = Message::encode_beside(seq, &reply)
        {
            return self.connection.send_last_behind(beside.first, beside.snapshot, beside.packet);
        }
        let packet = reply::encode(self.worker, seq, reply, |message| message)?;
        self.connection.send_owned(packet)
    }

    fn link(&self) -> Arc<Link> {
        self.link.clone()
    }
}

disco_core::format_as!(Debug for ProcessEndpoint, |it| "ProcessEndpoint {{ worker: {:?}, .. }}", it.worker);

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use disco_core::activity::Activity;
    use disco_core::shared_memory::Arena;
    use disco_engine::limits::MAX_PACKET_BYTES;

    use super::super::commands::Letterbox;
    use super::super::link;
    use super::*;
    use crate::remote::reactor::{Incoming, Waker};
    use crate::remote::store::RemoteStore;

    /// More bytes than a socket buffers, and more than a connection holds before the next reply waits.
    const LARGE: usize = 20 << 20;

    /// An endpoint, the controller's connection, which does not read, and the letterbox, which closes the worker's
    /// commands.
    fn endpoint() -> (ProcessEndpoint, Connection, Arc<Letterbox>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let connect = |stream| Connection::new(stream, Arc::new(Waker::new().unwrap())).unwrap();
        let (worker, connection, letterbox) = (
            WorkerId::new(1),
            Arc::new(connect(ours)),
            Arc::new(Letterbox::new(None, Arc::new(Waker::new().unwrap()))),
        );
        let commands = Commands::new(worker, connection.clone(), None, letterbox.clone());
        let store = Arc::new(RemoteStore::new(connection.clone()));
        let link =
            Arc::new(link::over(&store, worker, Arena::new(1).unwrap(), Activity::default(), &connection, false));
        let endpoint = ProcessEndpoint {
            worker,
            connection,
            commands,
            link,
            value_limit: usize::MAX,
            replies: None,
            shares_memory: false,
        };
        (endpoint, connect(theirs), letterbox)
    }

    /// Sends `count` large replies on a thread of its own.
    fn reply(mut endpoint: ProcessEndpoint, count: u64) -> thread::JoinHandle<Result<()>> {
        let value = Value::from(vec![7u8; LARGE]);
        let thread = thread::spawn(move || (0..count).try_for_each(|seq| endpoint.reply(seq, Ok(value.clone()))));
        // Time in which it would send more replies than it may.
        thread::sleep(Duration::from_millis(200));
        thread
    }

    #[test]
    fn a_large_reply_waits_until_the_controller_reads_the_previous_one() {
        let (endpoint, controller, _letterbox) = endpoint();
        let connection = endpoint.connection.clone();
        // Together more than a connection holds (1 GiB).
        let thread = reply(endpoint, 60);
        assert!(connection.backlog() < 2 * LARGE, "{} bytes wait", connection.backlog());
        let (mut incoming, mut come) = (Incoming::new(MAX_PACKET_BYTES), 0);
        while come < 60 {
            _ = connection.flush();
            _ = incoming.fill(&controller).unwrap();
            come += usize::from(incoming.next().unwrap().is_some());
        }
        thread.join().unwrap().unwrap();
    }

    #[test]
    fn a_waiting_reply_goes_on_when_the_worker_s_commands_are_closed() {
        let (endpoint, _controller, letterbox) = endpoint();
        let thread = reply(endpoint, 2);
        assert!(!thread.is_finished());
        letterbox.close();
        thread.join().unwrap().unwrap();
    }
}
