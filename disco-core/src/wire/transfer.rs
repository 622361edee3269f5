//! Large tensors that travel ahead of their frame, outside the command stream.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use event_listener::{Event, EventListener};

use super::WireError;
use crate::dtype::DType;
use crate::error::Result;
use crate::sync;
use crate::tensor::Tensor;

/// The state of large tensors on their way to other processes, ahead of their frame. The session and the frame's packets share it: a
/// lane counts its bytes as under way until the last one drops it.
#[derive(Debug)]
pub struct Transfer {
    id: u64,
    bytes: usize,
    /// Connections that have not taken all bytes.
    unsent: AtomicUsize,
    /// Bytes that connections have taken.
    moved: AtomicU64,
    budgets: Mutex<Vec<Arc<TransferBudget>>>,
    /// Notified when all bytes have gone, and when a budget has room again.
    changed: Arc<Event>,
}

impl Transfer {
    /// A transfer of `bytes` bytes, which has not begun. Its number is unique in its session.
    pub fn new(id: u64, bytes: usize, changed: Arc<Event>) -> Self {
        let (unsent, moved) = (AtomicUsize::new(0), AtomicU64::new(0));
        Self { id, bytes, unsent, moved, budgets: Mutex::default(), changed }
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Bytes of its tensors, with what aligns them.
    pub fn byte_len(&self) -> usize {
        self.bytes
    }

    /// It is about to go over one more connection.
    pub fn begin(&self) {
        self.unsent.fetch_add(1, Ordering::AcqRel);
    }

    /// A connection has taken so many bytes, perhaps the last ones.
    pub fn note_sent(&self, bytes: usize, is_last: bool) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        if is_last && self.unsent.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.changed.notify(usize::MAX);
        }
    }

    /// Whether all connections over which it has begun to go have taken all bytes.
    pub fn is_sent(&self) -> bool {
        self.unsent.load(Ordering::Acquire) == 0
    }

    /// Bytes that connections have taken.
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Waits for the next change of any transfer of the session.
    pub(crate) fn listen(&self) -> EventListener {
        self.changed.listen()
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        for budget in sync::lock(&self.budgets).drain(..) {
            let mut used = sync::lock(&budget.used);
            *used = (used.0 - 1, used.1 - self.bytes);
        }
        self.changed.notify(usize::MAX);
    }
}

/// How many transfers a lane has under way, and their bytes.
#[derive(Debug, Default)]
pub struct TransferBudget {
    used: Mutex<(usize, usize)>,
}

impl TransferBudget {
    /// Transfers that a lane has under way at most.
    pub const MAX_TRANSFERS: usize = 256;

    /// Counts a transfer as under way until its last owner drops it. Returns false if the lane has too many under way, or more than
    /// `limit` bytes of them together; a larger transfer may go alone.
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

/// The tensors of a transfer, as they come.
#[derive(Debug)]
pub struct Received {
    memory: Tensor,
    filled: usize,
}

impl Received {
    /// Memory for `bytes` bytes, of which none has come.
    ///
    /// # Errors
    /// There is no room.
    pub fn new(bytes: usize) -> Result<Self> {
        Ok(Self { memory: Tensor::zeros(DType::U8, [bytes as i64])?, filled: 0 })
    }

    /// Bytes that all its parts have together.
    pub fn byte_len(&self) -> usize {
        self.memory.byte_len()
    }

    /// Bytes that are still to come.
    pub fn left(&self) -> usize {
        self.byte_len() - self.filled
    }

    /// Appends a part, of which `left` bytes follow.
    ///
    /// # Errors
    /// It is not the next part.
    pub fn push(&mut self, left: u64, part: &[u8]) -> Result<()> {
        let is_next = !part.is_empty() && left.checked_add(part.len() as u64) == Some(self.left() as u64);
        if !is_next {
            return Err(WireError::Expected("the next part of a transfer").into());
        }
        self.memory.bytes_mut()?[self.filled..][..part.len()].copy_from_slice(part);
        self.filled += part.len();
        Ok(())
    }

    /// The memory, once all has come. Nobody else has it.
    pub(super) fn into_memory(self) -> Option<Tensor> {
        (self.filled == self.byte_len()).then_some(self.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_that_are_under_way_together_have_a_limit() {
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
