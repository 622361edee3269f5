//! The process of a worker or a node, as far as it is known.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};

use rustix::process::{self, Pid, PidfdFlags, Signal};

/// A process, held by a descriptor (pidfd), so that no signal reaches another one that has got its id since. Dropping one that this
/// lane has started kills it.
#[derive(Debug)]
pub(crate) enum Process {
    /// Somebody else starts it, and it has not come; or it can't be watched.
    Unknown,
    /// Started by this lane; the descriptor is readable once it has ended.
    Child(Child, OwnedFd),
    /// Started by somebody else.
    Stranger(OwnedFd),
    /// It has ended; how is known of children only.
    Ended(Option<ExitStatus>),
}

impl Process {
    /// A child of this process, which is killed if it can't be watched.
    pub(crate) fn child(mut child: Child) -> io::Result<Self> {
        match watch(child.id()) {
            Ok(exit) => Ok(Self::Child(child, exit)),
            Err(error) => {
                // It has just been started, and nobody knows it yet.
                _ = child.kill();
                _ = child.wait();
                Err(error)
            }
        }
    }

    /// Any other.
    pub(crate) fn stranger(pid: u32) -> io::Result<Self> {
        watch(pid).map(Self::Stranger)
    }

    /// Its id, if this lane has started it.
    pub(crate) fn child_id(&self) -> Option<u32> {
        if let Self::Child(child, _) = self { Some(child.id()) } else { None }
    }

    /// What becomes readable once it has ended.
    pub(crate) fn exit(&self) -> Option<&OwnedFd> {
        match self {
            Self::Child(_, exit) | Self::Stranger(exit) => Some(exit),
            Self::Unknown | Self::Ended(_) => None,
        }
    }

    /// Its end was seen.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Ended(_))
    }

    /// How it has ended.
    pub(crate) fn status(&self) -> Option<ExitStatus> {
        if let Self::Ended(status) = self { *status } else { None }
    }

    /// Its descriptor is readable: takes its end in.
    pub(crate) fn reap(&mut self) -> io::Result<()> {
        let status = match self {
            Self::Child(child, _) => match child.try_wait() {
                Ok(None) => return Ok(()),
                Ok(status) => status,
                Err(error) => {
                    *self = Self::Ended(None);
                    return Err(error);
                }
            },
            Self::Stranger(_) => None,
            Self::Unknown | Self::Ended(_) => return Ok(()),
        };
        *self = Self::Ended(status);
        Ok(())
    }

    /// Ends it.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match self.exit().map(|exit| process::pidfd_send_signal(exit, Signal::KILL)) {
            None | Some(Ok(()) | Err(rustix::io::Errno::SRCH)) => Ok(()),
            Some(Err(errno)) => Err(errno.into()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Self::Child(child, exit) = self {
            // No thread is there to wait for it.
            _ = process::pidfd_send_signal(exit, Signal::KILL);
            _ = child.wait();
        }
    }
}

fn watch(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(process::pidfd_open(pid, PidfdFlags::empty())?)
}
