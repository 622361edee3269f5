//! A count of the resources that sessions leave behind.

use std::fs;
use std::time::Duration;

use disco_conformance::waiting::poll;

/// Numbers of this process's resources that sessions use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) children: usize,
    pub(crate) descriptors: usize,
    pub(crate) segments: usize,
    /// Threads whose names start with `disco-`.
    pub(crate) threads: usize,
}

impl Resources {
    pub(crate) fn now() -> Self {
        let count = |folder: &str| fs::read_dir(folder).unwrap().count();
        let of_tasks = |file: &str| {
            // A thread may end meanwhile.
            let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
            tasks.filter_map(|task| fs::read_to_string(task.path().join(file)).ok()).collect::<Vec<_>>()
        };
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            children: of_tasks("children").iter().map(|list| list.split_whitespace().count()).sum(),
            descriptors: count("/proc/self/fd"),
            segments: maps.lines().filter(|line| line.contains("memfd:disco")).count(),
            threads: of_tasks("comm").iter().filter(|name| name.starts_with("disco-")).count(),
        }
    }

    /// Whether the resources equal these within 10 s: the system lists a thread for a moment after it was joined.
    pub(crate) fn are_restored(self) -> bool {
        poll(Duration::from_secs(10), || (Self::now() == self).then_some(())).is_some()
    }
}
