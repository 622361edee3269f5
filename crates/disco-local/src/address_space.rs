//! The address spaces of the ranks of a group: how a rank publishes its memory and resolves the memory of peers.

use std::ptr;
use std::sync::{Arc, OnceLock};

use disco_core::link::Descriptors;
use disco_core::shared_memory::{Arena, Segment};
use disco_core::{Error, Result};

use crate::identity::ProcessIdentity;

/// The address spaces of the ranks of a group.
pub(crate) enum AddressSpace {
    /// All ranks are threads of this process. A location is an address.
    Threads,
    /// Ranks are in processes of this machine. A location is an offset in the rank's arena.
    Processes(SharedArenas),
}

/// The arena of this rank, and the arenas of its peers as mapped in this process.
pub(crate) struct SharedArenas {
    pub(crate) descriptors: Arc<dyn Descriptors>,
    pub(crate) arena: Arc<Arena>,
    /// All ranks in order. Set once all have arrived.
    peers: OnceLock<Box<[Peer]>>,
}

/// A rank in some process.
#[derive(Clone)]
pub(crate) struct Peer {
    /// The rank's arena, mapped in this process.
    pub(crate) arena: Arc<Segment>,
    pub(crate) process: ProcessIdentity,
}

/// The location of memory that peers can't access.
pub(crate) const PRIVATE: u64 = u64::MAX;
/// The location of a tensor whose bytes are inside the message itself.
pub(crate) const INLINE: u64 = PRIVATE - 1;

impl AddressSpace {
    /// The location that this rank publishes for `bytes` bytes of its memory.
    pub(crate) fn location(&self, data: *mut u8, bytes: usize) -> u64 {
        match self {
            Self::Threads => data.expose_provenance() as u64,
            Self::Processes(arenas) => arenas.arena.offset_of(data, bytes).map_or(PRIVATE, |offset| offset as u64),
        }
    }

    /// The address in this process of `bytes` bytes that `rank` has published.
    ///
    /// # Errors
    /// The bytes are not inside the rank's arena.
    pub(crate) fn find(&self, rank: usize, location: u64, bytes: usize) -> Result<*mut u8> {
        match self {
            Self::Threads => Ok(ptr::with_exposed_provenance_mut(location as usize)),
            Self::Processes(arenas) => arenas.find(rank, location as usize, bytes).ok_or_else(|| {
                Error::protocol(format!(
                    "rank {rank} published {bytes} bytes at {location:#x}, which is outside its arena"
                ))
            }),
        }
    }
}

impl SharedArenas {
    /// The arena of this rank. The peers are set later, by [`SharedArenas::set_peers`].
    pub(crate) fn new(descriptors: Arc<dyn Descriptors>, arena: Arc<Arena>) -> Self {
        Self { descriptors, arena, peers: OnceLock::new() }
    }

    /// The arenas of `ranks` only, for a child group.
    pub(crate) fn part(&self, ranks: &[usize]) -> Self {
        let part = Self::new(self.descriptors.clone(), self.arena.clone());
        if let Some(peers) = self.peers.get() {
            part.set_peers(ranks.iter().filter_map(|&rank| peers.get(rank).cloned()).collect());
        }
        part
    }

    /// Sets the arenas of all ranks, in rank order.
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
