//! Whether a rank's memory is what it is taken for: links that are advertised may be broken, and drivers differ in what streams do
//! with words. Each rank writes a pattern of its own into each peer's memory, reads it back from there, and looks for those of its
//! peers in its own. Then streams of all ranks meet by words, and each rank has its streams wait for what only the host can end.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::Rank;

use super::lane::Lane;
use super::memory::{Memory, PROOFS};
use super::topology::RANKS;
use super::words::{self, PROOF};
use crate::driver::Way;
use crate::patience;
use crate::pinned::Pinned;

/// Of one pattern.
const LINE: usize = 64;
/// One of each rank.
const LINES: usize = LINE * *RANKS.end();

/// Three sets of lines that a rank has: what peers have written, what it writes, and what it has read back.
const WRITTEN: usize = PROOFS;
const OWN: usize = PROOFS + LINES;
const BACK: usize = PROOFS + 2 * LINES;

/// Pinned memory for all lines, on the way to or from the device.
struct Page<'m> {
    memory: &'m Memory,
    pinned: ManuallyDrop<Pinned>,
}

/// Writes this rank's patterns, of its number of chance, into its peers' memory.
///
/// # Errors
/// What the driver says, in words.
pub(super) fn write(memory: &Memory, nonce: u64, limit: Duration) -> Result<(), String> {
    let page = Page::new(memory)?;
    let lines: Vec<u8> = (0..memory.size()).flat_map(|to| pattern(nonce, memory.rank, to)).collect();
    page.fill(&lines);
    page.copy(memory.at(memory.rank, OWN), page.pinned.data(), lines.len(), Way::ToDevice)?;
    for to in peers(memory) {
        let (theirs, own) = (memory.at(to, WRITTEN + memory.rank * LINE), memory.at(memory.rank, OWN + to * LINE));
        page.copy(theirs, own, LINE, Way::OnDevice)?;
    }
    page.settle(limit)
}

/// Looks whether all patterns have arrived, those of this rank and those of its peers, whose numbers of chance are known.
///
/// # Errors
/// Whose have not, and what the driver says.
pub(super) fn check(memory: &Memory, nonces: &[u64], limit: Duration) -> Result<(), String> {
    let (page, len) = (Page::new(memory)?, memory.size() * LINE);
    for to in peers(memory) {
        let (back, theirs) = (memory.at(memory.rank, BACK + to * LINE), memory.at(to, WRITTEN + memory.rank * LINE));
        page.copy(back, theirs, LINE, Way::OnDevice)?;
    }
    for (lines, is_own) in [(BACK, true), (WRITTEN, false)] {
        page.copy(page.pinned.data(), memory.at(memory.rank, lines), len, Way::ToHost)?;
        page.settle(limit)?;
        for (peer, line) in page.read(len).chunks_exact(LINE).enumerate().filter(|(peer, _)| *peer != memory.rank) {
            let (from, to) = if is_own { (memory.rank, peer) } else { (peer, memory.rank) };
            if line != pattern(nonces[from], from, to) {
                let [from, to] = [from, to].map(|rank| Rank::new(rank as u32));
                return Err(format!("what {from} wrote to the memory of {to} is not there"));
            }
        }
    }
    Ok(())
}

/// Lets streams of all ranks meet.
///
/// # Errors
/// They don't.
pub(super) fn meet(memory: &Arc<Memory>, limit: Duration) -> Result<(), String> {
    Lane::main(memory).meet(PROOF).map_err(|error| error.to_string())?;
    if patience::until(limit.min(SOON), || memory.runtime.is_idle().unwrap_or(true)) {
        return memory.runtime.is_idle().map(drop).map_err(|error| error.to_string());
    }
    Memory::release(memory);
    Err("words that peers' streams write do not come".to_owned())
}

/// Lets both streams wait for a word, and writes it on the stream of the highest priority, as a deadline would. A stream that does
/// not come to that is replaced, since another may have another hardware queue.
///
/// # Errors
/// No stream ends the waits: both streams wait until a peer [ends](unstick) that. The driver's own.
pub(super) fn poke(memory: &Memory, limit: Duration) -> Result<(), String> {
    let (runtime, words, start) = (&memory.runtime, |error: disco_core::Error| error.to_string(), Instant::now());
    let word = memory.word(memory.rank, memory.rank, PROOF);
    let streams = [runtime.driver(), runtime.side().map_err(words)?];
    for stream in streams {
        // SAFETY: the word is part of this rank's memory, which stays until the streams are done.
        unsafe { stream.peers()?.wait_word(word, 1) }.map_err(words)?;
    }
    for attempt in 0..ATTEMPTS {
        let urgent = if attempt == 0 { runtime.urgent() } else { runtime.replace_urgent() };
        // SAFETY: as above.
        unsafe { urgent.map_err(words)?.peers()?.write_word(word, 1) }.map_err(words)?;
        let left = limit.saturating_sub(start.elapsed());
        if patience::until(left.min(SOON), || streams.iter().all(|stream| stream.is_idle().unwrap_or(true))) {
            return Ok(());
        }
    }
    Err(format!(
        "a stream that waits for a word holds up {ATTEMPTS} streams of the highest priority, each of which was to write the word; \
         more hardware queues may help: CUDA_DEVICE_MAX_CONNECTIONS=32, or GPU_MAX_HW_QUEUES=32 by HIP"
    ))
}

/// Ends what a peer's streams wait for in [`poke`].
pub(super) fn unstick(memory: &Memory, peer: usize, limit: Duration) {
    let word = memory.word(peer, peer, PROOF);
    let Ok(urgent) = memory.runtime.urgent() else { return };
    // SAFETY: the peer's memory stays until this rank has closed it.
    let written = urgent.peers().map(|peers| unsafe { peers.write_word(word, 1) });
    if matches!(written, Ok(Ok(()))) {
        patience::until(limit, || urgent.is_idle().unwrap_or(true));
    }
}

/// How many streams are to end the waits, one after the other.
const ATTEMPTS: usize = 3;
/// How long words may take.
const SOON: Duration = Duration::from_secs(2);

const _: () = assert!(PROOF < words::ROW, "there is a word for it");

fn peers(memory: &Memory) -> impl Iterator<Item = usize> {
    let own = memory.rank;
    (0..memory.size()).filter(move |rank| *rank != own)
}

fn pattern(nonce: u64, from: usize, to: usize) -> [u8; LINE] {
    let first = nonce ^ (from as u64) << 32 ^ (to as u64) << 40;
    let words: [[u8; 8]; LINE / 8] = std::array::from_fn(|at| first.rotate_left(at as u32).to_le_bytes());
    let mut line = [0; LINE];
    line.copy_from_slice(words.as_flattened());
    line
}

impl<'m> Page<'m> {
    fn new(memory: &'m Memory) -> Result<Self, String> {
        let pinned = Pinned::new(&memory.runtime, LINES).map_err(|error| error.to_string())?;
        Ok(Self { memory, pinned: ManuallyDrop::new(pinned) })
    }

    fn fill(&self, bytes: &[u8]) {
        let len = bytes.len().min(LINES);
        // SAFETY: it has so many bytes, and nothing copies it now.
        unsafe { self.pinned.data().copy_from_nonoverlapping(bytes.as_ptr(), len) };
    }

    fn read(&self, len: usize) -> Vec<u8> {
        // SAFETY: as above, and all of them were written.
        unsafe { std::slice::from_raw_parts(self.pinned.data(), len.min(LINES)) }.to_vec()
    }

    fn copy(&self, to: *mut u8, from: *const u8, bytes: usize, way: Way) -> Result<(), String> {
        // SAFETY: both are as many bytes of a rank's memory or of the page, which stay until the stream got there.
        unsafe { self.memory.runtime.driver().copy(to, from, bytes, way) }.map_err(|error| error.to_string())
    }

    fn settle(&self, limit: Duration) -> Result<(), String> {
        let runtime = &self.memory.runtime;
        match patience::until(limit, || runtime.is_idle().unwrap_or(true)) {
            true => runtime.is_idle().map(drop).map_err(|error| error.to_string()),
            false => Err(format!("copies among peers' memory have no end after {limit:?}")),
        }
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        if matches!(self.memory.runtime.driver().is_idle(), Ok(false)) {
            tracing::warn!("a copy does not end; its pinned memory is left behind");
            return;
        }
        // SAFETY: nothing copies it, and nobody uses it any more.
        unsafe { ManuallyDrop::drop(&mut self.pinned) };
    }
}
