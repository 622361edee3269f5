//! Transfers: large tensors that are sent ahead of their frame, outside the command stream.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use event_listener::{Event, EventListener};

use super::WireError;
use crate::dtype::DType;
use crate::error::Result;
use crate::sync;
use crate::tensor::Tensor;

/// The state of large tensors that are sent to other processes ahead of their frame. The session and the frame's
/// packets share a transfer. A lane counts its bytes as in flight until the last owner drops it.
#[derive(Debug)]
pub struct Transfer {
    id: u64,
    bytes: usize,
    /// Number of connections that have not taken all bytes.
    unsent: AtomicUsize,
    /// Bytes that connections have taken.
    moved: AtomicU64,
    budgets: Mutex<Vec<Arc<TransferBudget>>>,
    session: Arc<SessionTransfers>,
}

/// The state that all transfers of a session share.
#[derive(Debug, Default)]
pub struct SessionTransfers {
    /// Notified when all bytes of a transfer have been sent, and when a budget has capacity again.
    changed: Event,
    /// Bytes that connections have taken.
    moved: AtomicU64,
}

impl Transfer {
    /// A transfer of `bytes` bytes that has not begun. `id` is unique in the session.
    pub fn new(id: u64, bytes: usize, session: Arc<SessionTransfers>) -> Self {
        let (unsent, moved) = (AtomicUsize::new(0), AtomicU64::new(0));
        Self { id, bytes, unsent, moved, budgets: Mutex::default(), session }
    }

    /// The number of the transfer.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Size of the tensors with their alignment padding, in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes
    }

    /// Counts a connection that is about to send the transfer.
    pub fn begin(&self) {
        self.unsent.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts `bytes` bytes that a connection has taken. After the last bytes, the caller calls [`Transfer::notify`].
    pub fn note_sent(&self, bytes: usize, is_last: bool) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        self.session.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        if is_last {
            self.unsent.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Wakes the futures that wait for a transfer of the session. Wakers run arbitrary code, so the caller must hold no
    /// lock.
    pub fn notify(&self) {
        self.session.changed.notify(usize::MAX);
    }

    /// Whether all connections that have begun to send the transfer have taken all bytes.
    pub fn is_sent(&self) -> bool {
        self.unsent.load(Ordering::Acquire) == 0
    }

    /// Number of bytes that connections have taken.
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Number of bytes that connections have taken of all transfers of the session.
    pub(crate) fn moved_in_session(&self) -> u64 {
        self.session.moved.load(Ordering::Relaxed)
    }

    /// Waits for the next change of any transfer of the session.
    pub(crate) fn listen(&self) -> EventListener {
        self.session.changed.listen()
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        for budget in sync::lock(&self.budgets).drain(..) {
            let mut used = sync::lock(&budget.used);
            *used = (used.0 - 1, used.1 - self.bytes);
        }
        self.notify();
    }
}

/// Number and total size of the transfers that a lane has in flight.
#[derive(Debug, Default)]
pub struct TransferBudget {
    used: Mutex<(usize, usize)>,
}

impl TransferBudget {
    /// Largest number of transfers that a lane has in flight.
    pub const MAX_TRANSFERS: usize = 256;

    /// Counts a transfer as in flight until its last owner drops it. Returns false if the lane would have too many
    /// transfers in flight, or more than `limit` bytes together. A transfer larger than `limit` is accepted if it is
    /// the only one.
    pub fn reserve(self: &Arc<Self>, transfer: &Transfer, limit: usize) -> bool {
        let mut used = sync::lock(&self.used);
        let bytes = used.1.saturating_add(transfer.bytes);
        if used.0 > 0 && bytes > limit || used.0 == Self::MAX_TRANSFERS {
            return false;
        }
        *used = (used.0 + 1, bytes);
        sync::lock(&transfer.budgets).push(self.clone());
        true
    }
}

/// The receiver's memory for the tensors of a transfer.
#[derive(Debug)]
pub struct Received {
    memory: Tensor,
    filled: usize,
}

impl Received {
    /// Allocates memory for `bytes` bytes.
    ///
    /// # Errors
    /// The memory can't be allocated.
    pub fn new(bytes: usize) -> Result<Self> {
        Ok(Self { memory: Tensor::zeros(DType::U8, [bytes as i64])?, filled: 0 })
    }

    /// Size of the transfer in bytes.
    pub fn byte_len(&self) -> usize {
        self.memory.byte_len()
    }

    /// Number of bytes that have not arrived.
    pub fn left(&self) -> usize {
        self.byte_len() - self.filled
    }

    /// Appends a part that `left` more bytes follow.
    ///
    /// # Errors
    /// The part is not the next one.
    pub fn push(&mut self, left: u64, part: &[u8]) -> Result<()> {
        let is_next = !part.is_empty() && left.checked_add(part.len() as u64) == Some(self.left() as u64);
        if !is_next {
            return Err(WireError::Expected("the next part of a transfer").into());
        }
        self.memory.bytes_mut()?[self.filled..][..part.len()].copy_from_slice(part);
        self.filled += part.len();
        Ok(())
    }

    /// The memory, whose only owner is the caller; none unless all parts have arrived.
    pub(super) fn into_memory(self) -> Option<Tensor> {
        (self.filled == self.byte_len()).then_some(self.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_in_flight_are_limited_in_number_and_bytes() {
        let budget = Arc::new(TransferBudget::default());
        let transfer = |bytes| Transfer::new(1, bytes, Arc::default());
        let (large, half) = (transfer(200), transfer(50));
        assert!(budget.reserve(&large, 100), "alone, it may be larger");
        assert!(!budget.reserve(&half, 100));
        drop(large);
        assert!(budget.reserve(&half, 100));
        let (fits, exceeds) = (transfer(50), transfer(1));
        assert!(budget.reserve(&fits, 100) && !budget.reserve(&exceeds, 100));
        drop((half, fits));
        let many: Vec<_> = (0..TransferBudget::MAX_TRANSFERS).map(|_| transfer(0)).collect();
        assert!(many.iter().all(|transfer| budget.reserve(transfer, 100)));
        assert!(!budget.reserve(&exceeds, 100));
    }

    #[test]
    fn a_transfer_is_sent_when_all_connections_have_taken_it() {
        let transfer = Transfer::new(1, 10, Arc::default());
        transfer.begin();
        transfer.begin();
        transfer.note_sent(4, false);
        transfer.note_sent(6, true);
        transfer.note_sent(4, false);
        assert!(!transfer.is_sent());
        transfer.note_sent(6, true);
        assert!(transfer.is_sent() && transfer.moved() == 20);
    }
}
