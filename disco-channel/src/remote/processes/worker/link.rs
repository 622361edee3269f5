//! The [`Link`] of a worker process: its store, descriptors and notices, over the connection.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use disco_core::activity::Activity;
use disco_core::link::{Descriptors, Keeper, KeeperCall, KeptName, ProcDescriptors, SharedFd};
use disco_core::shared_memory::Arena;
use disco_core::wire::{self, Message};
use disco_core::{Error, Link, Result, Value, WorkerId};

use crate::remote::reactor::Connection;
use crate::remote::store::{ANSWER_LIMIT, RemoteStore};

/// Makes the link of a worker process, in a session that may have other nodes on this machine.
pub(super) fn over(
    store: &Arc<RemoteStore>,
    worker: WorkerId,
    arena: Arc<Arena>,
    activity: Activity,
    to: &Arc<Connection>,
    has_nodes: bool,
) -> Link {
    let connection = to.clone();
    let of_lane =
        || RemoteDescriptors { worker, connection: to.clone(), store: store.clone(), shared: AtomicU32::new(0) };
    let descriptors: Arc<dyn Descriptors> =
        if has_nodes { Arc::new(ProcDescriptors::default()) } else { Arc::new(of_lane()) };
    let link = Link::new(store.clone(), descriptors, activity, move |notice| {
        let packet = wire::encode_notice(&notice);
        let result = packet.and_then(|packet| connection.send(Message::Notice(packet.into()).encode()?, None));
        if let Err(error) = result {
            tracing::warn!(%notice, %error, "a notice can't be sent to the controller");
        }
    });
    link.in_arena(arena).kept_by(Arc::new(RemoteKeeper(store.clone())))
}

/// Shares descriptors with peers through the controller.
#[derive(Debug)]
struct RemoteDescriptors {
    worker: WorkerId,
    connection: Arc<Connection>,
    store: Arc<RemoteStore>,
    /// Number of descriptors that this worker has shared.
    shared: AtomicU32,
}

impl Descriptors for RemoteDescriptors {
    fn share(&self, fd: OwnedFd) -> Result<SharedFd> {
        let name = SharedFd::of(self.worker, self.shared.fetch_add(1, Ordering::Relaxed));
        // Waits for the answer: the name may reach a peer by another way, and must be known to the controller by then.
        self.store.ask(Some(fd), "share", ANSWER_LIMIT, |id| Message::Share { id, name: name.to_bits() })?;
        Ok(name)
    }

    fn unshare(&self, fd: SharedFd) {
        let sent = Message::Unshare(fd.to_bits()).encode().and_then(|packet| self.connection.send(packet, None));
        if let Err(error) = sent {
            tracing::debug!(%error, ?fd, "the controller can't be told that a descriptor is no longer shared");
        }
    }

    fn receive(&self, fd: SharedFd, deadline: Duration) -> Result<OwnedFd> {
        let question = |id| Message::Receive { id, name: fd.to_bits() };
        let (_, came) = self.store.ask(None, "receive", deadline, question)?;
        came.ok_or_else(|| Error::protocol(format!("the controller's answer has no descriptor for {fd:?}")))
    }
}

/// The program that has started this process, which keeps memory for it.
#[derive(Debug)]
struct RemoteKeeper(Arc<RemoteStore>);

impl RemoteKeeper {
    fn ask(&self, fd: Option<OwnedFd>, operation: &str, call: KeeperCall) -> Result<(Value, Option<OwnedFd>)> {
        self.0.ask(fd, operation, ANSWER_LIMIT, |id| Message::KeeperRequest { id, call })
    }
}

impl Keeper for RemoteKeeper {
    fn find(&self, name: &KeptName) -> Result<Option<OwnedFd>> {
        Ok(self.ask(None, "find kept memory", KeeperCall::Find(name.clone()))?.1)
    }

    fn keep(&self, name: &KeptName, memory: OwnedFd) -> Result<Option<OwnedFd>> {
        Ok(self.ask(Some(memory), "keep memory", KeeperCall::Keep(name.clone()))?.1)
    }

    fn discard(&self, name: &KeptName) -> Result<bool> {
        Ok(matches!(self.ask(None, "discard kept memory", KeeperCall::Discard(name.clone()))?.0, Value::Bool(true)))
    }
}
