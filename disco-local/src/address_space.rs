//! Where the ranks of a group live, and so how each finds the memory of the others.

use std::ptr;
use std::sync::{Arc, OnceLock};

use disco_core::link::Descriptors;
use disco_core::shared_memory::{Arena, Segment};
use disco_core::{Error, Result};

use crate::identity::ProcessIdentity;

/// Where the ranks of a group live.
pub(crate) enum AddressSpace {
    /// All in this process: a place is an address.
    Threads,
    /// In processes of this machine: a place is an offset into a rank's arena.
    Processes(SharedArenas),
}

/// One rank's view of a group of processes.
pub(crate) struct SharedArenas {
    pub(crate) descriptors: Arc<dyn Descriptors>,
    pub(crate) arena: Arc<Arena>,
    /// All ranks, once they have come.
    peers: OnceLock<Box<[Peer]>>,
}

/// A rank among processes.
#[derive(Clone)]
pub(crate) struct Peer {
    /// Its arena, mapped here.
    pub(crate) arena: Arc<Segment>,
    pub(crate) process: ProcessIdentity,
}

/// The place of what peers can't reach.
pub(crate) const PRIVATE: u64 = u64::MAX;
/// The place of what lies in the letter about it.
pub(crate) const INLINE: u64 = PRIVATE - 1;

impl AddressSpace {
    /// Where peers find `bytes` bytes of this rank.
    pub(crate) fn location(&self, data: *mut u8, bytes: usize) -> u64 {
        match self {
            Self::Threads => data.expose_provenance() as u64,
            Self::Processes(arenas) => arenas.arena.offset_of(data, bytes).map_or(PRIVATE, |offset| offset as u64),
        }
    }

    /// The address here of `bytes` bytes that `rank` has published.
    ///
    /// # Errors
    /// They are not in its arena.
    pub(crate) fn find(&self, rank: usize, location: u64, bytes: usize) -> Result<*mut u8> {
        match self {
            Self::Threads => Ok(ptr::with_exposed_provenance_mut(location as usize)),
            Self::Processes(arenas) => arenas.find(rank, location as usize, bytes).ok_or_else(|| {
                Error::protocol(format!("rank {rank} published {bytes} bytes at {location:#x}, outside of its memory"))
            }),
        }
    }
}

impl SharedArenas {
    /// A rank's view of a group of its own, whose peers are yet to come.
    pub(crate) fn new(descriptors: Arc<dyn Descriptors>, arena: Arc<Arena>) -> Self {
        Self { descriptors, arena, peers: OnceLock::new() }
    }

    /// The same for some of the ranks.
    pub(crate) fn part(&self, ranks: &[usize]) -> Self {
        let part = Self::new(self.descriptors.clone(), self.arena.clone());
        if let Some(peers) = self.peers.get() {
            part.set_peers(ranks.iter().filter_map(|&rank| peers.get(rank).cloned()).collect());
        }
        part
    }

    /// All ranks have come: from now on their memory can be found.
    pub(crate) fn set_peers(&self, peers: Box<[Peer]>) {
        self.peers.get_or_init(|| peers);
    }

    /// Whether the process of `rank` is known to have ended.
    pub(crate) fn has_ended(&self, rank: usize) -> bool {
        self.peers.get().and_then(|peers| peers.get(rank)).is_some_and(|peer| peer.process.has_ended())
    }

    fn find(&self, rank: usize, offset: usize, bytes: usize) -> Option<*mut u8> {
        let segment = &self.peers.get()?.get(rank)?.arena;
        let is_inside = offset.checked_add(bytes)? <= segment.byte_len();
        is_inside.then(|| segment.pointer().wrapping_add(offset))
    }
}
