//! The operating-system process of a worker or a node.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};

use disco_core::Owner;
use rustix::process::{self, Pid, PidfdFlags, Signal};

/// A process, referred to by a pidfd, so that a signal can't reach another process that has reused the id. Dropping a
/// [child](Self::Child) kills it, except in a forked child of this process.
#[derive(Debug)]
pub(crate) enum Process {
    /// Started elsewhere and not connected yet, or it can't be watched.
    Unknown,
    /// Started by this process. The pidfd is readable once the child has ended.
    Child(Child, OwnedFd, Owner),
    /// Started elsewhere.
    Foreign(OwnedFd),
    /// It has ended. The status is known for children only.
    Ended(Option<ExitStatus>),
}

impl Process {
    /// Watches a child of this process. A child that can't be watched is killed.
    pub(crate) fn child(mut child: Child) -> io::Result<Self> {
        match watch(child.id()) {
            Ok(exit) => Ok(Self::Child(child, exit, Owner::default())),
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
        if let Self::Child(child, ..) = self { Some(child.id()) } else { None }
    }

    /// The pidfd, which is readable once the process has ended.
    pub(crate) fn exit(&self) -> Option<&OwnedFd> {
        match self {
            Self::Child(_, exit, _) | Self::Foreign(exit) => Some(exit),
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

    /// Records the end of the process; called when its pidfd is readable.
    pub(crate) fn reap(&mut self) -> io::Result<()> {
        let status = match self {
            Self::Child(child, ..) => match child.try_wait() {
                Ok(None) => return Ok(()),
                Ok(status) => status,
                Err(error) => {
                    *self = Self::Ended(None);
                    return Err(error);
                }
            },
            Self::Foreign(_) => None,
            Self::Unknown | Self::Ended(_) => return Ok(()),
        };
        *self = Self::Ended(status);
        Ok(())
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
        if let Self::Child(child, exit, owner) = self
            && owner.is_here()
        {
            // The reactor thread no longer watches this child, so it is reaped here.
            _ = process::pidfd_send_signal(exit, Signal::KILL);
            _ = child.wait();
        }
    }
}

fn watch(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(process::pidfd_open(pid, PidfdFlags::empty())?)
}
