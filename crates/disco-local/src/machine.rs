//! Whether ranks of several nodes share memory: they are on one machine, in one process namespace, and of one user.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use disco_core::wire::{Reader, Writer};
use disco_core::{Error, Result, Store, Unavailable};

use crate::meeting::Token;

/// What a program that needs another backend has to do.
const REMEDY: &str = "between machines use the backend tcp (the feature `tcp` of the package `disco-runtime`)";

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
    let mut mine = Writer::default();
    mine.bytes(memory.as_bytes());
    mine.bytes(format!("rank {rank} on {}", name.trim()).as_bytes());
    let first = store.compare_and_set(&format!("disco.local {token}: machine"), None, &mine.into_bytes())?;
    let mut first = Reader::new(&first);
    let (theirs, peer) = (first.bytes()?, first.bytes()?);
    if theirs == memory.as_bytes() {
        return Ok(());
    }
    let peer = String::from_utf8_lossy(peer);
    refuse(format!("it is on {}, and shares no memory with {peer} (another machine, container or user)", name.trim()))
}

/// The boot of the machine, the namespace of process ids, and the user: processes that have all three in common open
/// each other's descriptors.
fn memory() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let processes = fs::metadata("/proc/self/ns/pid").ok()?.ino();
    let user = fs::metadata("/proc/self").ok()?.uid();
    Some(format!("{} {processes} {user}", boot.trim()))
}
