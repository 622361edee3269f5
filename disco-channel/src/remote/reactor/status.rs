//! Answers clients that ask for the status of the session. That of many workers takes long to collect and to encode, so
//! it is made on a thread of its own, which ends once no client waits.

use std::sync::{Arc, Mutex};
use std::thread;

use disco_core::channel::Inbox;
use disco_core::wire::Message;
use disco_core::{Error, Result, sync};

use super::connection::Connection;
use super::lane::Lane;

/// The clients that wait for the status.
#[derive(Default)]
pub(super) struct Clients(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    connections: Vec<Arc<Connection>>,
    /// A thread answers them.
    has_thread: bool,
}

impl Clients {
    /// Sends the status of the session over `connection`, in the background. Clients that wait at the same time get the
    /// same snapshot.
    pub(super) fn answer(self: &Arc<Self>, connection: Arc<Connection>, lane: &Arc<Lane>, inbox: &Arc<dyn Inbox>) {
        let mut waiting = sync::lock(&self.0);
        waiting.connections.push(connection);
        if waiting.has_thread {
            return;
        }
        let (clients, lane, inbox) = (self.clone(), lane.clone(), inbox.clone());
        let answer = move || {
            while let Some(connections) = clients.take() {
                send_to(&connections, encode(&lane, &*inbox));
            }
        };
        let started = thread::Builder::new().name("disco-node-status".into()).spawn(answer);
        match started {
            Ok(_) => waiting.has_thread = true,
            Err(error) => {
                let error = Error::system("the controller can't start the thread that answers `disco status`", error);
                let connections = std::mem::take(&mut waiting.connections);
                drop(waiting);
                send_to(&connections, Message::Bye(error.to_string()).encode());
            }
        }
    }

    /// The clients that wait now; `None` ends the thread.
    fn take(&self) -> Option<Vec<Arc<Connection>>> {
        let mut waiting = sync::lock(&self.0);
        let connections = std::mem::take(&mut waiting.connections);
        waiting.has_thread = !connections.is_empty();
        waiting.has_thread.then_some(connections)
    }
}

fn encode(lane: &Lane, inbox: &dyn Inbox) -> Result<Vec<u8>> {
    let Some(mut status) = inbox.status() else {
        return Message::Bye("the lane is not part of a session".into()).encode();
    };
    // The session lists the nodes of its lanes. A lane to new workers is none of them before it has started.
    let (is_starting, workers) = lane.read(|engine| (engine.is_starting(), engine.workers().indices()));
    if is_starting && !status.nodes.iter().any(|node| workers.contains(&node.first_worker)) {
        status.nodes.extend(lane.nodes());
        status.nodes.sort_by_key(|node| node.first_worker);
    }
    Message::Status(Box::new(status)).encode()
}

fn send_to(connections: &[Arc<Connection>], packet: Result<Vec<u8>>) {
    let packet: Result<Arc<[u8]>> = packet.map(Into::into);
    for connection in connections {
        if let Err(error) = packet.clone().and_then(|packet| connection.send_last(packet)) {
            tracing::debug!(%error, "the status can't be sent");
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{self, Receiver, Sender};
    use std::time::{Duration, Instant};

    use disco_core::channel::{Notice, Reply};
    use disco_core::status::Status;
    use disco_core::wire::Welcome;
    use disco_core::{WorkerConfig, WorkerId, WorkerRange, World};
    use disco_engine::controller::{Controller, Terms};

    use super::*;
    use crate::remote::reactor::{Incoming, Waker};

    /// An inbox that reports each snapshot of the status, and makes it once it is told to.
    struct Slow(Sender<()>, Mutex<Receiver<()>>);

    impl Inbox for Slow {
        fn reply(&self, _: WorkerId, _: u64, _: Reply) {}
        fn notice(&self, _: WorkerId, _: Notice) {}
        fn room(&self, _: WorkerRange) {}
        fn left(&self, _: WorkerRange) {}
        fn lost(&self, _: WorkerRange, _: Error) {}

        fn status(&self) -> Option<Status> {
            self.0.send(()).unwrap();
            self.1.lock().unwrap().recv().unwrap();
            Some(Status::default())
        }
    }

    /// A lane to one worker process that has not connected.
    pub(in crate::remote::reactor) fn lane() -> Lane {
        let config = WorkerConfig::new(World::new(1, 1).unwrap());
        let (start, silence) = (Duration::from_secs(1), Duration::MAX);
        let welcome = Welcome { config, ring: None, heartbeat: start };
        let (workers, token) = (WorkerRange::new(0..1), b"a token".as_slice().into());
        let terms = Terms::Processes { workers, token, welcome, start, silence };
        Lane::new(Controller::new(terms, Instant::now()), Arc::new(Waker::new().unwrap()), None)
    }

    #[test]
    fn a_slow_snapshot_delays_only_the_clients_and_those_that_come_meanwhile_share_the_next_one() {
        let ((begun, begins), (go, goes)) = (mpsc::channel(), mpsc::channel());
        let inbox: Arc<dyn Inbox> = Arc::new(Slow(begun, goes.into()));
        let (clients, lane) = (Arc::new(Clients::default()), Arc::new(lane()));
        let ask = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let connect = |socket| Connection::new(socket, Arc::new(Waker::new().unwrap())).unwrap();
            clients.answer(Arc::new(connect(ours)), &lane, &inbox);
            connect(theirs)
        };
        let first = ask();
        begins.recv().unwrap();
        // Each call returns although the first snapshot is not complete.
        let others = [ask(), ask()];
        go.send(()).unwrap();
        begins.recv().unwrap();
        go.send(()).unwrap();
        for connection in others.iter().chain([&first]) {
            let mut incoming = Incoming::new(1 << 20);
            while !incoming.fill(connection).unwrap() {
                thread::yield_now();
            }
            assert!(matches!(incoming.next().unwrap(), Some(Message::Status(_))));
        }
        assert!(begins.try_recv().is_err(), "two snapshots answer three clients");
    }
}
