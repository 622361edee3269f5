//! The TCP listener of a lane to nodes.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use disco_core::{Error, WorkerId, WorkerRange};
use disco_engine::controller::Origin;
use disco_engine::handshake::{ANSWER_BYTES, MAX_INTRODUCTION_BYTES};
use disco_engine::random;

use super::hosting::Hosting;
use super::printer::{Printer, Sink};
use crate::remote::nodes;
use crate::remote::reactor::Waker;
use crate::remote::reactor::{Accepted, Transport};

/// The TCP listener of a lane to nodes, and the printer of their workers' output.
pub(super) struct Tcp {
    listener: Option<TcpListener>,
    waker: Arc<Waker>,
    printer: Option<Printer>,
    hosting: Hosting,
}

impl Tcp {
    /// Accepts from `listener`; connections wake the thread of `waker`, lines of workers go to `sink`, and `hosting` is told
    /// of lost nodes.
    ///
    /// # Errors
    /// The listener can't be made non-blocking, or the printing thread can't be started.
    pub(super) fn new(listener: TcpListener, waker: Arc<Waker>, sink: Sink, hosting: Hosting) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener: Some(listener), waker, printer: Some(Printer::start(sink)?), hosting })
    }
}

impl Transport for Tcp {
    fn listener(&self) -> Option<BorrowedFd<'_>> {
        Some(self.listener.as_ref()?.as_fd())
    }

    fn accept(&mut self) -> io::Result<Option<Accepted>> {
        let listener = self.listener.as_ref().ok_or(io::ErrorKind::WouldBlock)?;
        let (stream, mut address) = listener.accept()?;
        // An address of IPv4 that came to a socket of IPv6.
        address.set_ip(address.ip().to_canonical());
        let enter = || Ok((nodes::connection(stream, self.waker.clone())?, random::bytes()?));
        let entered = enter()
            .inspect_err(|error: &io::Error| tracing::debug!(%address, %error, "closed right after it was accepted"));
        Ok(entered.ok().map(|(connection, nonce)| Accepted {
            connection,
            origin: Origin::Tcp { address, nonce },
            bytes: ANSWER_BYTES,
            limit: MAX_INTRODUCTION_BYTES,
        }))
    }

    fn stop_accepting(&mut self) {
        self.listener = None;
    }

    fn print(&self, node: u32, worker: WorkerId, is_err: bool, line: Arc<[u8]>) {
        self.printer.iter().for_each(|printer| printer.print(node, worker, is_err, line.clone()));
    }

    fn note_lost(&self, workers: WorkerRange, why: &Error) {
        self.hosting.note_lost(workers, why);
    }

    fn finish(&mut self) {
        self.printer.take().into_iter().for_each(Printer::finish);
    }
}
