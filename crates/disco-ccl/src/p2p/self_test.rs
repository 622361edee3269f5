//! Tests shared memory before its use, since advertised links may be broken, and drivers differ in their support of
//! signal words.
//!
//! 1. Each rank writes a pattern into the memory of each peer, reads it back, and checks the patterns of its peers in
//!    its own memory.
//! 2. The streams of all ranks make a barrier by signal words.
//! 3. Each rank in turn makes its streams wait for a word, and checks that a stream of the highest priority can end
//!    these waits.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::Rank;

use super::memory::{Memory, PATTERNS_OFFSET};
use super::signals::{self, SELF_TEST_SLOT};
use super::stream::P2pStream;
use super::topology::RANKS;
use crate::driver::CopyKind;
use crate::pinned::Pinned;
use crate::polling;

/// Bytes of one pattern.
const PATTERN_BYTES: usize = 64;
/// Bytes of the patterns of all ranks.
const ALL_PATTERNS_BYTES: usize = PATTERN_BYTES * *RANKS.end();

/// Offsets of a rank's three sets of patterns: written by peers, to be written to peers, and read back from peers.
const RECEIVED_OFFSET: usize = PATTERNS_OFFSET;
const SENT_OFFSET: usize = PATTERNS_OFFSET + ALL_PATTERNS_BYTES;
const READ_BACK_OFFSET: usize = PATTERNS_OFFSET + 2 * ALL_PATTERNS_BYTES;

/// Pinned memory for copies of the patterns of all ranks.
struct PatternBuffer<'m> {
    memory: &'m Memory,
    pinned: ManuallyDrop<Pinned>,
}

/// Writes this rank's patterns, which contain `nonce`, into the memory of its peers.
///
/// # Errors
/// The text of a driver's error, or of a timeout.
pub(super) fn write_patterns(memory: &Memory, nonce: u64, limit: Duration) -> Result<(), String> {
    let buffer = PatternBuffer::new(memory)?;
    let lines: Vec<u8> = (0..memory.size()).flat_map(|to| pattern(nonce, memory.rank, to)).collect();
    buffer.fill(&lines);
    buffer.copy(memory.address(memory.rank, SENT_OFFSET), buffer.pinned.data(), lines.len(), CopyKind::ToDevice)?;
    for to in peers(memory) {
        let (theirs, own) = (
            memory.address(to, RECEIVED_OFFSET + memory.rank * PATTERN_BYTES),
            memory.address(memory.rank, SENT_OFFSET + to * PATTERN_BYTES),
        );
        buffer.copy(theirs, own, PATTERN_BYTES, CopyKind::OnDevice)?;
    }
    buffer.wait_idle(limit)
}

/// Checks that all patterns have arrived: those of this rank in its peers' memory, and those of its peers in this
/// rank's memory. `nonces` are the numbers of all ranks.
///
/// # Errors
/// Names the two ranks of a wrong pattern; the text of a driver's error.
pub(super) fn check_patterns(memory: &Memory, nonces: &[u64], limit: Duration) -> Result<(), String> {
    let (buffer, len) = (PatternBuffer::new(memory)?, memory.size() * PATTERN_BYTES);
    for to in peers(memory) {
        let (back, theirs) = (
            memory.address(memory.rank, READ_BACK_OFFSET + to * PATTERN_BYTES),
            memory.address(to, RECEIVED_OFFSET + memory.rank * PATTERN_BYTES),
        );
        buffer.copy(back, theirs, PATTERN_BYTES, CopyKind::OnDevice)?;
    }
    for (lines, is_own) in [(READ_BACK_OFFSET, true), (RECEIVED_OFFSET, false)] {
        buffer.copy(buffer.pinned.data(), memory.address(memory.rank, lines), len, CopyKind::ToHost)?;
        buffer.wait_idle(limit)?;
        for (peer, line) in
            buffer.read(len).chunks_exact(PATTERN_BYTES).enumerate().filter(|(peer, _)| *peer != memory.rank)
        {
            let (from, to) = if is_own { (memory.rank, peer) } else { (peer, memory.rank) };
            if line != pattern(nonces[from], from, to) {
                let [from, to] = [from, to].map(|rank| Rank::new(rank as u32));
                return Err(format!("the memory of {to} does not contain the pattern that {from} has written"));
            }
        }
    }
    Ok(())
}

/// Makes a barrier of the streams of all ranks by signal words.
///
/// # Errors
/// The signal of a peer does not arrive within [`SIGNAL_TIMEOUT`]; errors of the driver.
pub(super) fn exchange_signals(memory: &Arc<Memory>, limit: Duration) -> Result<(), String> {
    P2pStream::main(memory).barrier_on(SELF_TEST_SLOT).map_err(|error| error.to_string())?;
    if polling::wait_up_to(limit.min(SIGNAL_TIMEOUT), || memory.runtime.is_idle().unwrap_or(true)) {
        return memory.runtime.is_idle().map(drop).map_err(|error| error.to_string());
    }
    Memory::release(memory);
    Err("signal words that the streams of peers write have not arrived".to_owned())
}

/// Makes both streams wait for a word, and writes the word on the stream of the highest priority, as an abort does. If
/// this stream is blocked, a new one replaces it, which may have another hardware queue.
///
/// # Errors
/// No stream ends the waits; both streams wait until a peer [releases](release_peer) them. Errors of the driver.
pub(super) fn check_release(memory: &Memory, limit: Duration) -> Result<(), String> {
    let (runtime, text, start) = (&memory.runtime, |error: disco_core::Error| error.to_string(), Instant::now());
    let word = memory.word(memory.rank, memory.rank, SELF_TEST_SLOT);
    let streams = [runtime.driver(), runtime.side().map_err(text)?];
    for stream in streams {
        // SAFETY: the word is part of this rank's memory, which stays allocated until the streams are done.
        unsafe { stream.peers()?.wait_word(word, 1) }.map_err(text)?;
    }
    for attempt in 0..RELEASE_ATTEMPTS {
        let priority_stream = if attempt == 0 { runtime.priority_stream() } else { runtime.replace_priority_stream() };
        // SAFETY: the word is part of this rank's memory, which stays allocated until the streams are done.
        unsafe { priority_stream.map_err(text)?.peers()?.write_word(word, 1) }.map_err(text)?;
        let left = limit.saturating_sub(start.elapsed());
        if polling::wait_up_to(left.min(SIGNAL_TIMEOUT), || {
            streams.iter().all(|stream| stream.is_idle().unwrap_or(true))
        }) {
            return Ok(());
        }
    }
    Err(format!(
        "a stream that waits for a signal word blocks {RELEASE_ATTEMPTS} streams of the highest priority, which should \
         write the word; more hardware queues may help: set CUDA_DEVICE_MAX_CONNECTIONS=32, or \
         GPU_MAX_HW_QUEUES=32 for HIP"
    ))
}

/// Ends the waits of a peer's streams, after its [`check_release`] has failed.
pub(super) fn release_peer(memory: &Memory, peer: usize, limit: Duration) {
    let word = memory.word(peer, peer, SELF_TEST_SLOT);
    let Ok(priority_stream) = memory.runtime.priority_stream() else { return };
    // SAFETY: the peer's memory stays until this rank has closed it.
    let written = priority_stream.peers().map(|peers| unsafe { peers.write_word(word, 1) });
    if matches!(written, Ok(Ok(()))) {
        polling::wait_up_to(limit, || priority_stream.is_idle().unwrap_or(true));
    }
}

/// Number of streams of the highest priority that try to end the waits, one after the other.
const RELEASE_ATTEMPTS: usize = 3;
/// Time limit for a signal word to arrive.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(2);

const _: () = assert!(SELF_TEST_SLOT < signals::SLOTS_PER_PEER, "each peer has a signal word for the self-test");

fn peers(memory: &Memory) -> impl Iterator<Item = usize> {
    let own = memory.rank;
    (0..memory.size()).filter(move |rank| *rank != own)
}

fn pattern(nonce: u64, from: usize, to: usize) -> [u8; PATTERN_BYTES] {
    let first = nonce ^ (from as u64) << 32 ^ (to as u64) << 40;
    let words: [[u8; 8]; PATTERN_BYTES / 8] = std::array::from_fn(|at| first.rotate_left(at as u32).to_le_bytes());
    let mut line = [0; PATTERN_BYTES];
    line.copy_from_slice(words.as_flattened());
    line
}

impl<'m> PatternBuffer<'m> {
    fn new(memory: &'m Memory) -> Result<Self, String> {
        let pinned = Pinned::new(&memory.runtime, ALL_PATTERNS_BYTES).map_err(|error| error.to_string())?;
        Ok(Self { memory, pinned: ManuallyDrop::new(pinned) })
    }

    fn fill(&self, bytes: &[u8]) {
        let len = bytes.len().min(ALL_PATTERNS_BYTES);
        // SAFETY: the pinned memory has at least `len` bytes, and no copy uses it now.
        unsafe { self.pinned.data().copy_from_nonoverlapping(bytes.as_ptr(), len) };
    }

    fn read(&self, len: usize) -> Vec<u8> {
        // SAFETY: the pinned memory has at least `len` bytes, which copies have written, and no copy uses it now.
        unsafe { std::slice::from_raw_parts(self.pinned.data(), len.min(ALL_PATTERNS_BYTES)) }.to_vec()
    }

    fn copy(&self, to: *mut u8, from: *const u8, bytes: usize, kind: CopyKind) -> Result<(), String> {
        // SAFETY: both ranges are in a rank's memory or in the buffer, which stay allocated until the stream has passed
        // this copy.
        unsafe { self.memory.runtime.driver().copy(to, from, bytes, kind) }.map_err(|error| error.to_string())
    }

    fn wait_idle(&self, limit: Duration) -> Result<(), String> {
        let runtime = &self.memory.runtime;
        if polling::wait_up_to(limit, || runtime.is_idle().unwrap_or(true)) {
            runtime.is_idle().map(drop).map_err(|error| error.to_string())
        } else {
            Err(format!("copies between the memory of peers are not complete after {limit:?}"))
        }
    }
}

impl Drop for PatternBuffer<'_> {
    fn drop(&mut self) {
        if matches!(self.memory.runtime.driver().is_idle(), Ok(false)) {
            tracing::warn!("a copy of the self-test does not complete; its pinned memory is leaked");
            return;
        }
        // SAFETY: the stream is idle, so no copy uses the memory, and `self` is its only owner.
        unsafe { ManuallyDrop::drop(&mut self.pinned) };
    }
}
