//! One worker process that waits for its invitation.

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use crate::remote::output::Pipe;
use crate::remote::process::Process;
use crate::remote::processes::invitation::Invitation;

/// A process that waits for its invitation.
pub(super) struct Spare {
    pub(super) process: Process,
    pub(super) socket: UnixStream,
    /// Its standard output and error.
    output: [OwnedFd; 2],
    /// Its program has started, and waits.
    pub(super) is_ready: bool,
    /// It has closed its end of the socket, so it can't be invited.
    pub(super) is_closed: bool,
}

impl Spare {
    pub(super) fn new(process: Process, socket: UnixStream, output: [OwnedFd; 2]) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { process, socket, output, is_ready: false, is_closed: false })
    }

    /// Sends the invitation. The spare reads it when its program takes it, also after this end of the socket is closed.
    pub(super) fn invite(mut self, invitation: &Invitation) -> io::Result<(Process, [Pipe; 2])> {
        self.socket.write_all(format!("{}\n", invitation.text()).as_bytes())?;
        let ([out, err], worker) = (self.output, invitation.worker);
        Ok((self.process, [Pipe::out(worker, out)?, Pipe::err(worker, err)?]))
    }

    /// Notes whether the program has started, and whether the process has ended.
    pub(super) fn look(&mut self) {
        match self.socket.read(&mut [0]) {
            Ok(0) => self.is_closed = true,
            Ok(_) => self.is_ready = true,
            Err(_) => {}
        }
        if let Err(error) = self.process.reap() {
            tracing::warn!(%error, "a spare worker can't be waited for");
        }
    }
}
