//! Where a rank's words are, which peers write and its streams wait for: in the memory that it shares, or each in memory that the
//! library has for such words alone.

#![allow(unsafe_code)]

use disco_core::{Error, Result};

use super::signals::{SELF_TEST_SLOT, SLOTS_PER_PEER};
use crate::driver::{Driver, Peers, WORD_BYTES};

/// SignalCounters of each peer that are in use.
const WORDS_PER_PEER: usize = SELF_TEST_SLOT + 1;

/// Addresses of a rank's words, a row for each peer. None: they are in the memory that it shares.
#[derive(Clone, Default)]
pub(super) struct WordTable(Vec<u64>);

impl WordTable {
    /// The table of the driver's rank. A stream is told to wait for the word `shared`, which needs no wait since it is 0: if the library
    /// refuses that, each word gets memory of its own, which is 0 when the stream has got there.
    ///
    /// # Errors
    /// The wait is refused, and the library has no other memory for words; the driver's own.
    pub(super) fn new(driver: &dyn Driver, (rank, size): (usize, usize), shared: *const u32) -> Result<Self> {
        let peers = driver.peers().map_err(Error::missing)?;
        // SAFETY: the word is part of the rank's memory, which stays until the stream is done.
        let Err(refusal) = (unsafe { peers.wait_word(shared, 0) }) else { return Ok(Self::default()) };
        let mut table = Self(vec![0; size * WORDS_PER_PEER]);
        // Of its own row, a rank has the word for the self_test alone.
        let is_used = |index: &usize| index / WORDS_PER_PEER != rank || index % WORDS_PER_PEER == SELF_TEST_SLOT;
        for index in (0..size * WORDS_PER_PEER).filter(is_used) {
            let made = allocate(peers, &refusal).and_then(|word| {
                table.0[index] = word as usize as u64;
                // SAFETY: it is so many bytes, which were allocated just now.
                unsafe { driver.clear(word, WORD_BYTES) }
            });
            if let Err(error) = made {
                table.free(driver);
                return Err(error);
            }
        }
        Ok(table)
    }

    /// The table of a peer of this process, as it has told. None: that is no such table.
    pub(super) fn of_peer(addresses: &[u64], size: usize) -> Option<Self> {
        [0, size * WORDS_PER_PEER].contains(&addresses.len()).then(|| Self(addresses.to_vec()))
    }

    /// What the rank tells its peers.
    pub(super) fn addresses(&self) -> &[u64] {
        &self.0
    }

    /// The word that a peer writes to signal a slot. None: it is in the memory that the rank shares.
    pub(super) fn find(&self, from: usize, slot: usize) -> Option<*mut u32> {
        const { assert!(WORDS_PER_PEER <= SLOTS_PER_PEER, "a row has them") };
        self.0.get(from * WORDS_PER_PEER + slot).map(|address| *address as usize as *mut u32)
    }

    /// Frees the words, when no stream uses them.
    pub(super) fn free(&self, driver: &dyn Driver) {
        for address in self.0.iter().filter(|address| **address != 0) {
            // SAFETY: the word was allocated there, and nobody uses it any more.
            if let Err(error) = unsafe { driver.free(*address as usize as *mut u8) } {
                tracing::warn!(%error, "a word of signal memory is left behind");
            }
        }
    }
}

/// Memory for one word, after the library has refused a wait for a word in shared memory.
fn allocate(peers: &dyn Peers, refusal: &Error) -> Result<*mut u8> {
    let why = match peers.alloc_word() {
        Ok(Some(word)) => return Ok(word),
        Ok(None) => "the library has no memory for words alone".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Error::missing(format!("streams do not wait for words in shared memory: {refusal}; {why}")))
}
