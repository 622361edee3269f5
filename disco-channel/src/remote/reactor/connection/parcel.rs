//! One packet that waits for the socket.

use std::os::fd::AsFd;
use std::sync::Arc;

use disco_core::wire::{Pieces, Transfer};

/// A packet, of which `sent` bytes were sent, and the descriptor that goes with its first byte.
pub(super) struct Parcel {
    pub(super) bytes: Arc<[u8]>,
    /// A large packet, in place of `bytes`.
    pub(super) pieces: Option<Arc<Pieces>>,
    pub(super) sent: usize,
    pub(super) fd: Option<Descriptor>,
    /// Whether this is a part of a large packet.
    pub(super) is_part: bool,
    /// The transfer of a part sent ahead; or the transfer that has carried the frame's tensors.
    pub(super) transfer: Option<Arc<Transfer>>,
    /// For a part of a transfer: its bytes, and the bytes left after it.
    pub(super) brings: Option<(usize, usize)>,
}

/// A descriptor that is sent with a packet. Other owners may keep using it.
pub(crate) type Descriptor = Arc<dyn AsFd + Send + Sync>;

impl Parcel {
    /// Makes a parcel of a packet alone.
    pub(super) fn of(bytes: Arc<[u8]>) -> Self {
        Self { bytes, pieces: None, sent: 0, fd: None, is_part: false, transfer: None, brings: None }
    }
}
