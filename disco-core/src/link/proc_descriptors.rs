//! Descriptors of processes of one machine that have no common lane.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process;
use std::sync::Mutex;
use std::time::Duration;

use super::descriptors::{Descriptors, SharedFd};
use crate::error::{Error, Result};
use crate::sync;

/// Shares descriptors with processes of this machine, process namespace and user, which open them in `/proc`. The name of
/// a descriptor is the process's id and its number there. Whoever uses it makes sure first that the peer is such a process.
#[derive(Debug, Default)]
pub struct ProcDescriptors {
    shared: Mutex<HashMap<SharedFd, OwnedFd>>,
}

impl Descriptors for ProcDescriptors {
    fn share(&self, fd: OwnedFd) -> Result<SharedFd> {
        let name = SharedFd::from_bits(u64::from(process::id()) << 32 | fd.as_raw_fd() as u64);
        sync::lock(&self.shared).insert(name, fd);
        Ok(name)
    }

    fn unshare(&self, fd: SharedFd) {
        sync::lock(&self.shared).remove(&fd);
    }

    fn receive(&self, fd: SharedFd, _: Duration) -> Result<OwnedFd> {
        let (process, number) = (fd.to_bits() >> 32, fd.to_bits() as u32);
        let opened = OpenOptions::new().read(true).write(true).open(format!("/proc/{process}/fd/{number}"));
        opened.map(Into::into).map_err(|error| {
            Error::system(format!("the memory of process {process}, a peer on this machine, can't be opened"), error)
        })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::shared_memory::Segment;

    #[test]
    fn a_shared_segment_is_opened_until_it_is_taken_back() {
        let (ours, theirs) = (ProcDescriptors::default(), ProcDescriptors::default());
        let segment = Segment::create(4096).unwrap();
        let name = ours.share(segment.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let opened = Segment::open(theirs.receive(name, Duration::ZERO).unwrap(), 4096).unwrap();
        segment.words()[7].store(3, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(opened.words()[7].load(std::sync::atomic::Ordering::Relaxed), 3);
        ours.unshare(name);
        let gone = theirs.receive(name, Duration::ZERO).unwrap_err().to_string();
        assert!(gone.contains(&format!("the memory of process {}", process::id())), "{gone}");
    }
}
