//! The operating-system process of a worker or a node.

use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus};

use disco_core::Owner;
use disco_core::error::ProcessEnd;
use rustix::process::{self, Pid, PidfdFlags, Signal};

/// A process, referred to by a pidfd, so that a signal can't reach another process that has reused the id. Dropping a
/// [child](Self::Child) kills it, except in a forked child of this process.
#[derive(Debug)]
pub(crate) enum Process {
    /// Started elsewhere and not connected yet, or it can't be watched.
    Unknown,
    /// Started by this process.
    Child {
        child: Child,
        /// The pidfd, readable once the child has ended.
        exit: OwnedFd,
        /// That of a launcher, which runs the peer on another machine and writes why the peer can't go on.
        socket: Option<UnixStream>,
        owner: Owner,
    },
    /// Started elsewhere.
    Foreign(OwnedFd),
    /// It has ended. The status is known for children only.
    Ended(Option<ExitStatus>),
}

/// Longest reason of a launcher.
const MAX_REASON_BYTES: usize = 4096;

impl Process {
    /// Watches a child of this process. A child that can't be watched is killed.
    pub(crate) fn child(child: Child) -> io::Result<Self> {
        Self::new(child, None)
    }

    /// As [`Self::child`], for a launcher, which has the other end of `socket`.
    pub(crate) fn launcher(child: Child, socket: UnixStream) -> io::Result<Self> {
        Self::new(child, Some(socket))
    }

    fn new(mut child: Child, socket: Option<UnixStream>) -> io::Result<Self> {
        match watch(child.id()) {
            Ok(exit) => Ok(Self::Child { child, exit, socket, owner: Owner::default() }),
            Err(error) => {
                // No peer has been told of this child yet.
                _ = child.kill();
                _ = child.wait();
                Err(error)
            }
        }
    }

    /// Watches a process that was started elsewhere.
    pub(crate) fn foreign(pid: u32) -> io::Result<Self> {
        watch(pid).map(Self::Foreign)
    }

    /// The id of a child.
    pub(crate) fn child_id(&self) -> Option<u32> {
        if let Self::Child { child, .. } = self { Some(child.id()) } else { None }
    }

    /// The pidfd, which is readable once the process has ended.
    pub(crate) fn exit(&self) -> Option<&OwnedFd> {
        match self {
            Self::Child { exit, .. } | Self::Foreign(exit) => Some(exit),
            Self::Unknown | Self::Ended(_) => None,
        }
    }

    /// Whether the process is known to have ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Ended(_))
    }

    /// The exit status of a child that has ended.
    pub(crate) fn status(&self) -> Option<ExitStatus> {
        if let Self::Ended(status) = self { *status } else { None }
    }

    /// Records the end of the process; called when its pidfd is readable. Returns why the peer of a launcher can't go on.
    pub(crate) fn reap(&mut self) -> io::Result<Option<String>> {
        let mut why = None;
        let status = match self {
            Self::Child { child, socket, .. } => match child.try_wait() {
                Ok(None) => return Ok(None),
                Ok(Some(status)) => {
                    why = socket.as_ref().and_then(|socket| reason(socket, status));
                    Some(status)
                }
                Err(error) => {
                    *self = Self::Ended(None);
                    return Err(error);
                }
            },
            Self::Foreign(_) => None,
            Self::Unknown | Self::Ended(_) => return Ok(None),
        };
        *self = Self::Ended(status);
        Ok(why)
    }

    /// Kills the process.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match self.exit().map(|exit| process::pidfd_send_signal(exit, Signal::KILL)) {
            None | Some(Ok(()) | Err(rustix::io::Errno::SRCH)) => Ok(()),
            Some(Err(errno)) => Err(errno.into()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Self::Child { child, exit, owner, .. } = self
            && owner.is_here()
        {
            // The reactor thread no longer watches this child, so it is reaped here.
            _ = process::pidfd_send_signal(exit, Signal::KILL);
            _ = child.wait();
        }
    }
}

/// Why the peer of a launcher can't go on, which has ended with `status`.
fn reason(mut socket: &UnixStream, status: ExitStatus) -> Option<String> {
    let mut text = [0; MAX_REASON_BYTES];
    // A program that the launcher has started may have the other end.
    match socket.set_nonblocking(true).and_then(|()| socket.read(&mut text)) {
        Ok(length @ 1..) => Some(String::from_utf8_lossy(&text[..length]).into_owned()),
        _ if status.success() => None,
        _ => Some(format!("its launcher ended: {}", ProcessEnd::from(status))),
    }
}

fn watch(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(process::pidfd_open(pid, PidfdFlags::empty())?)
}
