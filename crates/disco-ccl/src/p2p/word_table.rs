//! The addresses of a rank's signal words, which peers write and the rank's streams wait for. The words are in the
//! rank's shared memory, or, where streams can't wait for words there, each word is in separate signal memory of the
//! driver.

#![allow(unsafe_code)]

use disco_core::{Error, Result};

use super::signals::{SELF_TEST_SLOT, SLOTS_PER_PEER};
use crate::driver::{Driver, Peers, WORD_BYTES};

/// Number of signal words that each peer uses.
const WORDS_PER_PEER: usize = SELF_TEST_SLOT + 1;

/// The addresses of a rank's signal words, a row for each peer. Empty if the words are in shared memory.
#[derive(Clone, Default)]
pub(super) struct WordTable(Vec<u64>);

impl WordTable {
    /// Makes the table of this rank. Enqueues a wait for the word `shared` in shared memory, which is satisfied at
    /// once. If the driver refuses the wait, allocates separate memory for each word, and zeroes it in stream order.
    ///
    /// # Errors
    /// The driver refuses the wait and has no signal memory; errors of the driver.
    pub(super) fn new(driver: &dyn Driver, (rank, size): (usize, usize), shared: *const u32) -> Result<Self> {
        let peers = driver.peers().map_err(Error::missing)?;
        // SAFETY: the word is part of the rank's memory, which stays allocated until the stream is done.
        let Err(refusal) = (unsafe { peers.wait_word(shared, 0) }) else { return Ok(Self::default()) };
        let mut table = Self(vec![0; size * WORDS_PER_PEER]);
        // In its own row, a rank uses only the word of the self-test.
        let is_used = |index: &usize| index / WORDS_PER_PEER != rank || index % WORDS_PER_PEER == SELF_TEST_SLOT;
        for index in (0..size * WORDS_PER_PEER).filter(is_used) {
            let made = allocate(peers, &refusal).and_then(|word| {
                table.0[index] = word as usize as u64;
                // SAFETY: the word was just allocated with `WORD_BYTES` bytes.
                unsafe { driver.clear(word, WORD_BYTES) }
            });
            if let Err(error) = made {
                table.free(driver);
                return Err(error);
            }
        }
        Ok(table)
    }

    /// The table of a peer in this process, from its descriptor. None if the number of addresses is wrong.
    pub(super) fn of_peer(addresses: &[u64], size: usize) -> Option<Self> {
        [0, size * WORDS_PER_PEER].contains(&addresses.len()).then(|| Self(addresses.to_vec()))
    }

    /// The addresses for the descriptor of this rank.
    pub(super) fn addresses(&self) -> &[u64] {
        &self.0
    }

    /// The word that rank `from` writes for a slot. None if the words are in shared memory.
    pub(super) fn find(&self, from: usize, slot: usize) -> Option<*mut u32> {
        const { assert!(WORDS_PER_PEER <= SLOTS_PER_PEER, "a row of shared memory has room for all words of a peer") };
        self.0.get(from * WORDS_PER_PEER + slot).map(|address| *address as usize as *mut u32)
    }

    /// Frees the words. No stream uses them any more.
    pub(super) fn free(&self, driver: &dyn Driver) {
        for address in self.0.iter().filter(|address| **address != 0) {
            // SAFETY: `alloc_word` allocated the word, no stream uses it, and it is freed once.
            if let Err(error) = unsafe { driver.free(*address as usize as *mut u8) } {
                tracing::warn!(%error, "a signal word can't be freed and is leaked");
            }
        }
    }
}

/// Allocates a separate signal word, after the driver has refused a wait for a word in shared memory.
fn allocate(peers: &dyn Peers, refusal: &Error) -> Result<*mut u8> {
    let why = match peers.alloc_word() {
        Ok(Some(word)) => return Ok(word),
        Ok(None) => "the library has no signal memory".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Error::missing(format!("streams can't wait for signal words in shared memory: {refusal}; {why}")))
}
