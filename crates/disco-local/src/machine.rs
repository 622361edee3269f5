//! Whether ranks of several nodes share memory: they are on one machine, in one process namespace, and of one user.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use disco_core::{Error, Result, Store, Unavailable};

use crate::meeting::Token;

/// What a program that needs another backend has to do.
const REMEDY: &str = "between machines use mpi: `features = [\"mpi\"]` of the package `disco-runtime`, and a library \
                      (`pip install mpich`); no launcher is needed";

/// Compares the machine of this rank with that of the first rank that comes.
///
/// # Errors
/// [`Error::Unavailable`] if they differ, or the system does not tell; errors of the store.
pub(crate) fn check(store: &dyn Store, token: Token, rank: usize) -> Result<()> {
    let refuse = |why: String| {
        let what = "backend local, which shares memory between workers of one machine,";
        Err(Error::Unavailable(Unavailable::new(what).with_tried(format!("rank {rank}"), why).with_remedy(REMEDY)))
    };
    let Some(memory) = memory() else { return refuse("without /proc its machine is not known".into()) };
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mine = format!("{memory}\nrank {rank} on {}", name.trim());
    let first = store.compare_and_set(&format!("disco.local {token}: machine"), None, mine.as_bytes())?;
    let first = String::from_utf8_lossy(&first);
    match first.split_once('\n') {
        Some((theirs, _)) if theirs == memory => Ok(()),
        Some((_, peer)) => refuse(format!(
            "it is on {}, and shares no memory with {peer} (another machine, container or user)",
            name.trim()
        )),
        None => Err(Error::protocol("the machine of the first rank is not known")),
    }
}

/// The boot of the machine, the namespace of process ids, and the user: processes that have all three in common open
/// each other's descriptors.
fn memory() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let processes = fs::metadata("/proc/self/ns/pid").ok()?.ino();
    let user = fs::metadata("/proc/self").ok()?.uid();
    Some(format!("{} {processes} {user}", boot.trim()))
}
