//! The Unix socket listener of a lane to processes.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::time::Duration;

use disco_core::Inbox;
use disco_engine::controller::Origin;
use disco_engine::random;
use rustix::net::sockopt;

use crate::remote::lane::Ring;
use crate::remote::output::Output;
use crate::remote::reactor::{Accepted, Transport};
use crate::remote::reactor::{Connection, Waker};

/// The largest packet of a process that was not admitted yet; most of HELLO is names of worker functions.
const MAX_HELLO_BYTES: usize = 1 << 20;

/// The listener of a lane to processes, its ring, and the thread that forwards workers' output.
pub(super) struct Unix {
    listener: Option<UnixListener>,
    waker: Arc<Waker>,
    ring: Option<Arc<Ring>>,
    interval: Duration,
    output: Option<Output>,
}

impl Unix {
    /// Listens under a random abstract name, which it returns; other users of the machine can see it. Connections wake
    /// the thread of `waker`. Every `interval`, readers that sleep on records of other readers are woken.
    ///
    /// # Errors
    /// The system refuses the socket or random numbers.
    pub(super) fn listen(waker: Arc<Waker>, ring: Option<Arc<Ring>>, interval: Duration) -> io::Result<(Self, String)> {
        let name = format!("disco-{}", random::hex(&random::bytes::<16>()?));
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        Ok((Self { listener: Some(listener), waker, ring, interval, output: None }, name))
    }

    /// Takes ownership of the thread that forwards workers' output.
    pub(super) fn pass_on(&mut self, output: Output) {
        self.output = Some(output);
    }
}

impl Transport for Unix {
    fn listener(&self) -> Option<BorrowedFd<'_>> {
        Some(self.listener.as_ref()?.as_fd())
    }

    fn accept(&mut self) -> io::Result<Option<Accepted>> {
        let listener = self.listener.as_ref().ok_or(io::ErrorKind::WouldBlock)?;
        let (stream, _) = listener.accept()?;
        let peer = sockopt::socket_peercred(&stream);
        let (Ok(peer), Ok(connection)) = (peer, Connection::new(stream, self.waker.clone())) else { return Ok(None) };
        if peer.uid != rustix::process::geteuid() {
            tracing::warn!(?peer, "refused the process of another user");
            return Ok(None);
        }
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).ok();
        Ok(Some(Accepted { connection, origin: Origin::Unix { pid }, bytes: 0, limit: MAX_HELLO_BYTES }))
    }

    fn stop_accepting(&mut self) {
        self.listener = None;
    }

    fn retire(&self, peer: usize) {
        self.ring.iter().for_each(|ring| ring.lock().retire(peer));
    }

    fn deliver_replies(&self, inbox: &dyn Inbox) {
        self.ring.iter().for_each(|ring| ring.replies().deliver(inbox));
    }

    fn interval(&self) -> Duration {
        if self.ring.as_ref().is_some_and(|ring| ring.ticks()) { self.interval } else { Duration::MAX }
    }

    fn tick(&self) {
        self.ring.iter().for_each(|ring| ring.tick());
    }

    fn finish(&mut self) {
        self.output.take().into_iter().for_each(Output::finish);
    }
}
