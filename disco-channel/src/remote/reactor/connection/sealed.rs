//! The record that an encrypted connection is sending.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use disco_core::Result;
use disco_engine::noise::{Keys, Sealer};
use rustix::net::{self, SendFlags};

use super::parcel::Parcel;

/// Encrypts packets, and sends the records.
pub(super) struct Sealed {
    sealer: Sealer,
    record: Vec<u8>,
    /// Bytes of the record that the socket has taken.
    sent: usize,
    /// Bytes of packets in the record; 0 without a record.
    plain: usize,
}

impl Sealed {
    pub(super) fn new(keys: Keys) -> Self {
        Self { sealer: Sealer::new(keys), record: Vec::new(), sent: 0, plain: 0 }
    }

    /// Makes a record of the first packets of `line`, unless one was sent in part. A part of a large packet has a record of
    /// its own: a record is opened as a whole, so small packets in it would wait for the part.
    ///
    /// # Errors
    /// The packets can't be encrypted.
    pub(super) fn fill(&mut self, line: &VecDeque<Parcel>) -> Result<()> {
        if self.plain == 0 {
            let small = line.iter().take_while(|parcel| !parcel.is_part).count();
            let unsent = line.iter().take(small.max(1)).map(|parcel| &parcel.bytes[parcel.sent..]);
            self.plain = self.sealer.seal(unsent, &mut self.record)?;
            self.sent = 0;
        }
        Ok(())
    }

    /// Writes to the socket. Returns the bytes of packets that the socket has taken: all of the record once it is sent,
    /// none before.
    pub(super) fn pass_on(&mut self, socket: &OwnedFd) -> rustix::io::Result<usize> {
        self.sent += net::send(socket, &self.record[self.sent..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(if self.sent < self.record.len() { 0 } else { std::mem::take(&mut self.plain) })
    }
}
