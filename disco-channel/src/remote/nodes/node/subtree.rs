//! The lane to the workers of a node that relays: its own, and those of the nodes behind it.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use disco_core::channel::{FrameSize, LaneFacts, Polled, Progress, Signal};
use disco_core::status::Status;
use disco_core::{Channel, Error, Frame, Inbox, Result, WorkerId, WorkerRange};

/// Two lanes that are used as one. The workers of the second follow those of the first.
#[derive(Debug)]
pub(super) struct Subtree {
    parts: [Arc<dyn Channel>; 2],
}

impl Subtree {
    /// Joins the lane to a node's `own` workers and the lane to the nodes `behind` it.
    pub(super) fn new(own: Arc<dyn Channel>, behind: Arc<dyn Channel>) -> Self {
        Self { parts: [own, behind] }
    }

    /// Acts on both parts: the nodes behind first, since they are farther away. A part whose workers have all ended, which
    /// it has reported, does not end the other one.
    fn each(&self, act: impl Fn(&dyn Channel) -> Result<()>) -> Result<()> {
        let [own, behind] = &self.parts;
        match (act(&**behind), act(&**own)) {
            (Err(Error::Closed(_)), other) | (other, Err(Error::Closed(_))) => other,
            (behind, own) => behind.and(own),
        }
    }
}

impl Channel for Subtree {
    fn facts(&self) -> LaneFacts {
        let [own, behind] = [0, 1].map(|part| self.parts[part].facts());
        let (first, end) = (own.workers.indices().start, behind.workers.indices().end);
        let mut facts = LaneFacts::new(WorkerRange::new(first as u32..end.max(own.workers.indices().end) as u32));
        facts.needs_bytes = own.needs_bytes || behind.needs_bytes;
        facts.value_limit = own.value_limit.min(behind.value_limit);
        facts
    }

    /// Starts both parts at once. The first error ends the start of the other part.
    fn start(&self, inbox: Arc<dyn Inbox>) -> Result<()> {
        let (sender, results) = mpsc::channel();
        for part in &self.parts {
            let (part, inbox, sender) = (part.clone(), inbox.clone(), sender.clone());
            // The other part may have failed before.
            let start = move || _ = sender.send(part.start(inbox));
            let started = thread::Builder::new().name("disco-start".into()).spawn(start);
            started.map_err(|error| Error::system("a node's thread can't be started", error))?;
        }
        drop(sender);
        let panicked = || Error::state("the start of a lane panicked");
        let started = (0..self.parts.len()).try_for_each(|_| results.recv().map_err(|_| panicked())?);
        started.inspect_err(|_| self.parts.iter().for_each(|part| _ = part.close(Duration::ZERO)))
    }

    fn room(&self, size: FrameSize) -> usize {
        self.parts.iter().map(|part| part.room(size)).min().unwrap_or(0)
    }

    fn send(&self, frame: &Arc<Frame>) -> Result<()> {
        self.each(|part| part.send(frame))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        self.each(|part| part.signal(signal.clone()))
    }

    fn progress(&self, worker: WorkerId) -> Progress {
        let part = self.parts.iter().find(|part| part.facts().workers.contains(worker));
        part.map(|part| part.progress(worker)).unwrap_or_default()
    }

    fn describe(&self, status: &mut Status) {
        self.parts.iter().for_each(|part| part.describe(status));
    }

    fn polled(&self) -> Option<&dyn Polled> {
        Some(self)
    }

    /// Closes both parts at once.
    fn close(&self, limit: Duration) -> Result<()> {
        let [own, behind] = &self.parts;
        let (own, behind) = thread::scope(|scope| {
            let behind = scope.spawn(|| behind.close(limit));
            let own = own.close(limit);
            (own, behind.join().unwrap_or_else(|_| Err(Error::state("the end of a lane panicked"))))
        });
        match (own, behind) {
            (Err(Error::Stuck { workers: own, after }), Err(Error::Stuck { workers: behind, .. })) => {
                Err(Error::Stuck { workers: format!("{own}, {behind}"), after })
            }
            (own, behind) => own.and(behind),
        }
    }
}

impl Polled for Subtree {
    fn note_caller(&self, polls: bool) {
        self.parts.iter().filter_map(|part| part.polled()).for_each(|part| part.note_caller(polls));
    }

    fn poll(&self) {
        self.parts.iter().filter_map(|part| part.polled()).for_each(Polled::poll);
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};

    use disco_core::wire::Assignment;
    use disco_core::{WorkerConfig, World};
    use disco_engine::handshake::Secret;
    use disco_engine::token::Token;

    use super::super::children::{Children, Listener};
    use super::super::doubles::{Ignored, Lane};
    use std::time::Instant;

    use super::*;
    use crate::remote::lane::RemoteLane;

    #[test]
    fn a_failed_start_of_the_own_workers_ends_the_wait_for_the_nodes_behind() {
        let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), false).unwrap();
        let address: SocketAddr = listener.addresses()[0].parse().unwrap();
        let (hour, config) = (Duration::from_secs(3600), WorkerConfig::new(World::new(3, 1).unwrap()));
        let assignment = Assignment {
            node: 1,
            workers: WorkerRange::new(1..3),
            behind: [1].into(),
            processes: false,
            config,
            heartbeat: hour,
            silence: hour,
            start: hour,
        };
        let secret = Secret::new(Token::random().unwrap(), Some(true)).unwrap();
        let sink = Box::new(|_, _, _, _: &[u8]| {});
        let children = Children::new(listener, secret, &assignment, sink).unwrap();
        let behind = RemoteLane::new(WorkerRange::new(2..3), Arc::default(), children);
        let subtree = Subtree::new(Arc::new(Lane::default()), Arc::new(behind));
        assert_eq!(subtree.start(Arc::new(Ignored)).unwrap_err().to_string(), "there is no program");
        // The lane to the children may close its listener a moment later, if it was closed before it began to start.
        let end = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).err().is_none_or(|error| error.kind() != ErrorKind::ConnectionRefused) {
            assert!(Instant::now() < end, "the listener is still open");
            thread::yield_now();
        }
    }
}
