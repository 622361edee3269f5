//! Receives large tensors that are sent ahead of their frames.

use std::collections::BTreeMap;

use disco_core::Error;
use disco_core::error::Result;
use disco_core::wire::{Received, TransferBudget};

/// The transfers of one connection, complete or not, whose frames were not received yet.
#[derive(Debug)]
pub(crate) struct Transfers {
    /// Bytes that they may have together; one alone may have more, up to the limit of a packet.
    limit: usize,
    coming: BTreeMap<u64, Received>,
}

impl Transfers {
    /// Starts without transfers. All transfers together may have `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, coming: BTreeMap::new() }
    }

    /// Adds a part of transfer `id`, after which `left` bytes follow. The first part determines the size of the
    /// transfer.
    ///
    /// # Errors
    /// The part is not the next one; the transfers exceed the limit of bytes or of their number; memory is exhausted.
    pub(crate) fn add(&mut self, id: u64, left: u64, part: &[u8]) -> Result<()> {
        if let Some(received) = self.coming.get_mut(&id) {
            return received.push(left, part);
        }
        let used: usize = self.coming.values().map(Received::byte_len).sum();
        let bytes = usize::try_from(left).unwrap_or(usize::MAX).saturating_add(part.len());
        if bytes > self.limit.saturating_sub(used) || self.coming.len() == TransferBudget::MAX_TRANSFERS {
            let (count, limit) = (self.coming.len(), self.limit);
            return Err(Error::protocol(format!(
                "a transfer of {bytes} bytes beside {count} of {used} bytes, where all may have {limit}"
            )));
        }
        let mut received = Received::new(bytes)?;
        received.push(left, part)?;
        self.coming.insert(id, received);
        Ok(())
    }

    /// Takes the transfer of a frame that has come.
    ///
    /// # Errors
    /// The transfer is unknown or incomplete.
    pub(crate) fn take(&mut self, id: u64) -> Result<Received> {
        match self.coming.remove(&id) {
            Some(received) if received.left() == 0 => Ok(received),
            Some(received) => {
                Err(Error::protocol(format!("a frame before the last {} bytes of its transfer", received.left())))
            }
            None => Err(Error::protocol(format!("a frame after transfer {id}, which was not received"))),
        }
    }

    /// Drops a transfer that the controller withdraws.
    ///
    /// # Errors
    /// No part of the transfer has come.
    pub(crate) fn withdraw(&mut self, id: u64) -> Result<()> {
        let unknown = || Error::protocol(format!("transfer {id} is taken back, which was not received"));
        self.coming.remove(&id).map(drop).ok_or_else(unknown)
    }

    /// Frees the memory of all transfers.
    pub(crate) fn clear(&mut self) {
        self.coming.clear();
    }
}

#[cfg(test)]
mod tests {
    use disco_core::wire::{Frame, decode_frame_after};

    use super::*;

    fn text<T>(result: Result<T>) -> String {
        result.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_part_out_of_order_is_refused() {
        let mut transfers = Transfers::new(1000);
        transfers.add(1, 10, &[1; 10]).unwrap();
        for (left, len) in [(10, 0), (9, 0), (5, 4), (0, 11), (u64::MAX, 1), (10, 10)] {
            let refused = text(transfers.add(1, left, &vec![1; len]));
            assert!(refused.contains("expected the next part of a transfer"), "{refused}");
        }
        transfers.add(1, 0, &[1; 10]).unwrap();
        assert!(transfers.add(1, 0, &[1]).is_err(), "all of it has come");
        assert!(transfers.add(1, 10, &[1; 10]).is_err(), "its number is in use");
        assert!(transfers.add(2, 10, &[]).is_err(), "an empty part");
    }

    #[test]
    fn a_transfer_is_taken_once_and_only_when_complete() {
        let mut transfers = Transfers::new(1000);
        transfers.add(7, 1, &[1]).unwrap();
        assert!(text(transfers.take(7)).ends_with("a frame before the last 1 bytes of its transfer"));
        transfers.add(8, 0, &[1]).unwrap();
        let received = transfers.take(8).unwrap();
        assert!(text(transfers.take(8)).ends_with("a frame after transfer 8, which was not received"));
        let frame = Frame::new(3, [], disco_core::Command::SyncAll);
        assert_eq!(decode_frame_after(3, frame.bytes().unwrap(), received).unwrap().seq(), 3);
    }

    #[test]
    fn transfers_above_the_common_limit_are_refused() {
        let mut transfers = Transfers::new(1000);
        assert!(transfers.add(1, u64::MAX, &[1]).is_err());
        transfers.add(1, 899, &[1]).unwrap();
        let refused = text(transfers.add(2, 100, &[1]));
        assert!(
            refused.ends_with("a transfer of 101 bytes beside 1 of 900 bytes, where all may have 1000"),
            "{refused}"
        );
        transfers.withdraw(1).unwrap();
        assert!(text(transfers.withdraw(1)).ends_with("transfer 1 is taken back, which was not received"));
        (0..TransferBudget::MAX_TRANSFERS as u64).for_each(|id| transfers.add(id, 0, &[1]).unwrap());
        assert!(transfers.add(1 << 40, 0, &[1]).is_err());
    }
}
