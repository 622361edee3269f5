//! The process of a worker, as far as it is known.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};

use rustix::process::{self, Pid, PidfdFlags, Signal};

/// A process. Dropping one that this lane has started kills it.
#[derive(Debug)]
pub(super) enum Process {
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
    pub(super) fn child(mut child: Child) -> io::Result<Self> {
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
    pub(super) fn stranger(pid: u32) -> io::Result<Self> {
        watch(pid).map(Self::Stranger)
    }

    /// Its id, if this lane has started it.
    pub(super) fn child_id(&self) -> Option<u32> {
        if let Self::Child(child, _) = self { Some(child.id()) } else { None }
    }

    /// What becomes readable once it has ended.
    pub(super) fn exit(&self) -> Option<&OwnedFd> {
        match self {
            Self::Child(_, exit) | Self::Stranger(exit) => Some(exit),
            Self::Unknown | Self::Ended(_) => None,
        }
    }

    /// It may still run.
    pub(super) fn is_running(&self) -> bool {
        self.exit().is_some()
    }

    /// Its end was seen.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self, Self::Ended(_))
    }

    /// How it has ended.
    pub(super) fn status(&self) -> Option<ExitStatus> {
        if let Self::Ended(status) = self { *status } else { None }
    }

    /// Its descriptor is readable: takes its end in.
    pub(super) fn reap(&mut self) -> io::Result<()> {
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
    pub(super) fn kill(&mut self) -> io::Result<()> {
        match self {
            Self::Child(child, _) => child.kill(),
            Self::Stranger(exit) => match process::pidfd_send_signal(exit, Signal::KILL) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
                Err(errno) => Err(errno.into()),
            },
            Self::Unknown | Self::Ended(_) => Ok(()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Self::Child(child, _) = self {
            // No thread is there to wait for it.
            _ = child.kill();
            _ = child.wait();
        }
    }
}

fn watch(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(process::pidfd_open(pid, PidfdFlags::empty())?)
}
