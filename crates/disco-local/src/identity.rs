//! Identities of processes, which distinguish a peer that was killed from a peer that is stopped.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process;

use rustix::event::{self, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process of this machine: its id and its start time, in clock ticks since boot. A later process with the same id
/// has another start time. Both are valid only in the namespaces of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessIdentity {
    pub(crate) id: u32,
    pub(crate) started: u64,
    /// The inodes of its namespaces of process ids and of clocks, 0 where they are unknown.
    pub(crate) namespaces: u64,
}

impl ProcessIdentity {
    /// This process.
    pub(crate) fn own() -> Self {
        Self::of(process::id())
    }

    /// The process that currently has this id in the namespaces of this process.
    pub(crate) fn of(id: u32) -> Self {
        Self { id, started: start_time(id).unwrap_or(0), namespaces: namespaces().unwrap_or(0) }
    }

    /// Whether all threads of the process have ended, so that it no longer accesses memory. False if the system does
    /// not report it, and for a process of other namespaces.
    pub(crate) fn has_ended(self) -> bool {
        if self.namespaces == 0 || namespaces() != Some(self.namespaces) {
            return false;
        }
        let Some(pid) = i32::try_from(self.id).ok().and_then(Pid::from_raw) else { return false };
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(errno) => return errno == Errno::SRCH,
        };
        // Read after the descriptor was opened: if the id still belongs to this process, so does the descriptor.
        if start_time(self.id).is_some_and(|started| self.started != 0 && started != self.started) {
            return true;
        }
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        matches!(event::poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1))
    }
}

/// The inodes of this process's namespaces of process ids and of clocks; see namespaces(7).
fn namespaces() -> Option<u64> {
    let inode = |name: &str| fs::metadata(format!("/proc/self/ns/{name}")).map(|file| file.ino()).ok();
    // Systems before Linux 5.6 have one clock for all.
    Some(inode("pid")? << 32 | inode("time").unwrap_or(0) & 0xffff_ffff)
}

/// Field 22 of `/proc/PID/stat`, `starttime`; see proc(5).
#[allow(clippy::disallowed_methods, reason = "a text of the kernel")]
fn start_time(id: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name, field 2, is in parentheses and may hold spaces and parentheses.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_of_these_namespaces_has_ended_once_it_is_killed_or_its_id_is_reused() {
        let own = ProcessIdentity::own();
        assert!(own.started > 0 && !own.has_ended());
        assert!(ProcessIdentity { started: own.started - 1, ..own }.has_ended());
        assert!(!ProcessIdentity { started: own.started - 1, namespaces: own.namespaces + 1, ..own }.has_ended());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let id = child.id();
        let theirs = ProcessIdentity::of(id);
        assert!(!theirs.has_ended());
        child.kill().unwrap();
        // The process is a zombie first, which accesses no memory either.
        while !theirs.has_ended() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(theirs.has_ended());
    }
}
