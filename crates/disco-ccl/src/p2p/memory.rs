//! The shared device memory of all ranks: its layout, its addresses for this rank's device, and its end.
//!
//! ```text
//! memory of each rank
//!   0        state of kernels: zeros at first
//!   96 KiB   signals: a word for each peer and slot, which the peer writes; or in separate memory: see `word_table`
//!   100 KiB  patterns of the self-test
//!   128 KiB  the buffer; behind it a buffer of the same size for kernels, if there are kernels
//! ```

#![allow(unsafe_code)]

use std::any::Any;
use std::mem;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::error;
use disco_core::sync;
use disco_core::{Error, Rank, Result, Store};

use super::signals::{SELF_TEST_SLOT, SLOTS_PER_PEER, SignalCounters};
use super::word_table::WordTable;
use crate::pinned::DeferFrees;
use crate::runtime::Runtime;
use crate::runtime::Teardown;

/// Bytes at the start of each rank's memory that kernels use for their state.
pub const STATE_BYTES: usize = 96 << 10;
const SIGNALS_OFFSET: usize = STATE_BYTES;
pub(super) const PATTERNS_OFFSET: usize = 100 << 10;
const DATA_OFFSET: usize = 128 << 10;

/// Drivers share memory in blocks of this size. Allocations are a multiple of it, so no other data is shared.
const ALLOCATION_GRANULARITY: usize = 2 << 20;

/// How long a teardown thread waits for peers to close this rank's memory.
const PEERS_CLOSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a teardown thread waits for peers if the store has failed, so that peers can't report.
const PEERS_CLOSE_GRACE: Duration = Duration::from_secs(5);
/// How long [`Memory::leave`] waits for the teardown thread.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval at which waits for signals are released again.
const RELEASE_INTERVAL: Duration = Duration::from_millis(20);

/// The shared memory of all ranks, as one rank has it.
pub(super) struct Memory {
    pub(super) runtime: Arc<Runtime>,
    pub(super) rank: usize,
    /// Size of each rank's buffer.
    pub(super) bytes: usize,
    /// The memory of each rank, once it is known.
    rank_memories: Vec<RankMemory>,
    pub(super) signals: SignalCounters,
    /// Other values that live until the streams are done.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
    /// How long the teardown waits for the streams.
    idle_timeout: Duration,
    /// Set once peers may have opened this rank's memory.
    close_handshake: Option<CloseHandshake>,
    /// Closed at the end of the teardown, which wakes [`Memory::leave`].
    teardown_done: Mutex<Option<mpsc::Sender<()>>>,
    /// Kernels over the memory may wait for peers, so pinned memory is not freed meanwhile.
    defer_frees: Option<DeferFrees>,
}

/// The address of a rank's memory, for this rank's device.
#[derive(Clone, Default)]
pub(super) struct RankMemory {
    address: usize,
    /// Whether the memory is that of another process, and must be closed.
    is_opened: bool,
    words: WordTable,
}

/// By this handshake, each rank tells its peers that it has closed their memory.
#[derive(Clone, Debug)]
struct CloseHandshake {
    store: Arc<dyn Store>,
    name: String,
    rank: usize,
    size: usize,
}

impl RankMemory {
    /// Memory of this process.
    pub(super) fn direct(address: usize, words: WordTable) -> Self {
        Self { address, is_opened: false, words }
    }

    /// Memory of another process, which was opened.
    pub(super) fn opened(address: *mut u8) -> Self {
        Self { address: address as usize, is_opened: true, words: WordTable::default() }
    }

    /// The signal word that rank `from` writes for a slot.
    fn word(&self, from: usize, slot: usize) -> *mut u32 {
        self.words.find(from, slot).unwrap_or((self.address + signal_offset(from, slot)) as *mut u32)
    }
}

impl Memory {
    /// Allocates this rank's memory, and zeroes it in stream order. `has_kernels` adds the second buffer.
    ///
    /// # Errors
    /// No memory; the errors of [`Runtime::priority_stream`]; errors of the driver.
    pub(super) fn new(
        runtime: &Arc<Runtime>,
        (rank, size): (usize, usize),
        bytes: usize,
        has_kernels: bool,
        idle_timeout: Duration,
    ) -> Result<Self> {
        let no_room = || Error::OutOfMemory { bytes, memory: error::Memory::Device(runtime.device()), why: None };
        let buffer = bytes.checked_next_multiple_of(ALIGNMENT);
        let buffers = buffer.and_then(|buffer| buffer.checked_mul(1 + usize::from(has_kernels)));
        let all = buffers
            .and_then(|buffers| buffers.checked_add(DATA_OFFSET)?.checked_next_multiple_of(ALLOCATION_GRANULARITY));
        let all = all.ok_or_else(no_room)?;
        // This stream ends waits. It is made before any wait, since a later stream could be blocked.
        runtime.priority_stream()?;
        let peers = runtime.driver().peers().map_err(Error::missing)?;
        let own = peers.alloc_shared(all)?.ok_or_else(no_room)?;
        let mut rank_memories = vec![RankMemory::default(); size];
        rank_memories[rank] = RankMemory::direct(own as usize, WordTable::default());
        let (runtime, signals, kept, teardown_done) =
            (runtime.clone(), SignalCounters::default(), Mutex::default(), Mutex::default());
        let defer_frees = Some(DeferFrees::new());
        let mut memory = Self {
            runtime,
            rank,
            bytes,
            rank_memories,
            signals,
            kept,
            idle_timeout,
            close_handshake: None,
            teardown_done,
            defer_frees,
        };
        // SAFETY: `own` was just allocated with `all` bytes, and is freed only after the streams are done.
        unsafe { memory.runtime.driver().clear(own, all) }?;
        let shared = memory.word(rank, rank, SELF_TEST_SLOT);
        memory.rank_memories[rank].words = WordTable::new(memory.runtime.driver(), (rank, size), shared)?;
        Ok(memory)
    }

    /// From now on, peers may open this rank's memory. They report in the store when they have closed it.
    pub(super) fn enable_close_handshake(&mut self, (store, name): (Arc<dyn Store>, String)) {
        self.close_handshake = Some(CloseHandshake { store, name, rank: self.rank, size: self.size() });
    }

    /// Sets the memory of a peer.
    pub(super) fn add(&mut self, rank: usize, memory: RankMemory) {
        self.rank_memories[rank] = memory;
    }

    /// The address of byte `offset` of a rank's memory, for this rank's device.
    pub(super) fn address(&self, rank: usize, offset: usize) -> *mut u8 {
        (self.rank_memories[rank].address + offset) as *mut u8
    }

    /// The signal word in the memory of `rank` that rank `from` writes for a slot.
    pub(super) fn word(&self, rank: usize, from: usize, slot: usize) -> *mut u32 {
        self.rank_memories[rank].word(from, slot)
    }

    /// The table of a rank's signal words.
    pub(super) fn words_of(&self, rank: usize) -> &WordTable {
        &self.rank_memories[rank].words
    }

    /// The address of a rank's buffer for kernels, which has the size of the buffer of [`Memory::buffer_address`].
    pub(super) fn kernels_buffer(&self, rank: usize) -> *mut u8 {
        self.address(rank, DATA_OFFSET + self.bytes.next_multiple_of(ALIGNMENT))
    }

    /// Whether an address is in any rank's buffer, and so stays valid until the streams are done.
    pub(super) fn contains(&self, address: *const u8) -> bool {
        let offset = |memory: &RankMemory| (address as usize).checked_sub(memory.address + DATA_OFFSET);
        self.rank_memories.iter().filter_map(offset).any(|offset| offset < self.bytes)
    }

    /// The address of byte `offset` in a rank's buffer, for an access of `bytes` bytes.
    ///
    /// # Errors
    /// The rank does not exist, or the access exceeds the buffer.
    pub(super) fn buffer_address(&self, operation: &str, rank: Rank, offset: usize, bytes: usize) -> Result<*mut u8> {
        self.check_rank(operation, rank)?;
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            let room = self.bytes;
            return Err(Error::invalid(format!(
                "{operation}: {bytes} bytes at offset {offset} exceed the buffer of {room} bytes"
            )));
        }
        Ok(self.address(rank.index(), DATA_OFFSET + offset))
    }

    /// Checks that a rank exists.
    ///
    /// # Errors
    /// The rank does not exist.
    pub(super) fn check_rank(&self, operation: &str, rank: Rank) -> Result<()> {
        let size = self.size();
        if rank.index() < size { Ok(()) } else { Err(Error::invalid(format!("{operation}: no {rank} among {size}"))) }
    }

    /// How many ranks there are.
    pub(super) fn size(&self) -> usize {
        self.rank_memories.len()
    }

    /// Keeps a value until the streams are done.
    pub(super) fn keep(&self, what: Box<dyn Any + Send>) {
        sync::lock(&self.kept).push(what);
    }

    /// Ends all waits for signals, from any thread and without waiting. A late signal of a peer can overwrite the
    /// released value, so a thread repeats the release until no stream waits.
    pub(super) fn release(this: &Arc<Self>) {
        let memory = this.clone();
        drop(Teardown::spawn("the end of waits for peers", &this.runtime, move || {
            let start = Instant::now();
            let own = |from, slot| memory.word(memory.rank, from, slot);
            while memory.signals.release(&memory.runtime, own) && start.elapsed() < memory.idle_timeout {
                thread::sleep(RELEASE_INTERVAL);
            }
        }));
    }

    /// Drops this reference. If it is the last one, waits at most [`LEAVE_TIMEOUT`] for the teardown.
    pub(super) fn leave(this: Arc<Self>) {
        let (tell, end) = mpsc::channel();
        *sync::lock(&this.teardown_done) = Some(tell);
        if Arc::into_inner(this).is_some() {
            // The teardown thread continues after the timeout.
            _ = end.recv_timeout(LEAVE_TIMEOUT);
        }
    }
}

/// Alignment of buffers, equal to that of allocations: kernels move whole vectors.
const ALIGNMENT: usize = 512;

/// Does not wait. A teardown thread waits for the streams, and ends their waits if necessary; then it closes the memory
/// of peers; then it frees this rank's memory once all peers have closed it.
impl Drop for Memory {
    fn drop(&mut self) {
        let (runtime, signals, rank_memories) =
            (self.runtime.clone(), mem::take(&mut self.signals), mem::take(&mut self.rank_memories));
        let (kept, close_handshake) = (mem::take(&mut self.kept), self.close_handshake.take());
        let (rank, idle_timeout) = (self.rank, self.idle_timeout);
        let (teardown_done, defer_frees) = (mem::take(&mut self.teardown_done), self.defer_frees.take());
        drop(Teardown::spawn("the end of peer-to-peer memory", &self.runtime, move || {
            if !runtime.wait_all_idle(idle_timeout) {
                signals.release(&runtime, |from, slot| rank_memories[rank].word(from, slot));
                if !runtime.wait_all_idle(idle_timeout) {
                    let device = runtime.device();
                    tracing::warn!(%device, "peer-to-peer memory is leaked: work on its streams does not end");
                    mem::forget(kept);
                    return;
                }
            }
            signals.end(runtime.driver());
            drop(kept);
            close_and_free(&runtime, rank, &rank_memories, close_handshake);
            drop(defer_frees);
            drop(teardown_done);
        }));
    }
}

/// The offset of the signal word of a peer and a slot, unless the words have separate memory.
fn signal_offset(from: usize, slot: usize) -> usize {
    SIGNALS_OFFSET + (from * SLOTS_PER_PEER + slot) * size_of::<u32>()
}

/// Closes the memory of peers, and frees this rank's memory after the handshake.
fn close_and_free(
    runtime: &Runtime,
    rank: usize,
    rank_memories: &[RankMemory],
    close_handshake: Option<CloseHandshake>,
) {
    let driver = runtime.driver();
    for memory in rank_memories.iter().filter(|memory| memory.is_opened) {
        // SAFETY: `open` returned the address, the streams have passed all uses, and this is the only close.
        let closed = driver.peers().map(|peers| unsafe { peers.close(memory.address as *mut u8) });
        if let Ok(Err(error)) = closed {
            tracing::warn!(%error, "the memory of a peer can't be closed");
        }
    }
    if close_handshake.is_some_and(|close_handshake| !close_handshake.complete()) {
        tracing::warn!(after = ?PEERS_CLOSE_TIMEOUT, "peer-to-peer memory is leaked: peers have not closed it");
        return;
    }
    rank_memories[rank].words.free(driver);
    // SAFETY: `alloc_shared` allocated the memory, the streams are done, all peers have closed it, and this is the only
    // free.
    if let Err(error) = unsafe { driver.free(rank_memories[rank].address as *mut u8) } {
        tracing::warn!(%error, "peer-to-peer memory is leaked");
    }
}

impl CloseHandshake {
    /// Reports that this rank has closed its peers' memory, and waits for the same report of all peers. Returns whether
    /// all have reported. If the store has failed, the session is over or aborted: peers end their work as well, and
    /// this waits for [`PEERS_CLOSE_GRACE`].
    fn complete(&self) -> bool {
        let (start, key) = (Instant::now(), |rank: usize| format!("{}: left by rank {rank}", self.name));
        let mut told = self.store.set(&key(self.rank), &[]).map(|()| Vec::new());
        for rank in (0..self.size).filter(|rank| *rank != self.rank) {
            let left = PEERS_CLOSE_TIMEOUT.saturating_sub(start.elapsed());
            told = told.and_then(|_| self.store.wait(&key(rank), left));
        }
        match told {
            Ok(_) => true,
            Err(Error::Deadline { .. }) => false,
            Err(_) => {
                thread::sleep(PEERS_CLOSE_GRACE);
                true
            }
        }
    }
}

disco_core::format_as!(Debug for Memory, |it| "<{} bytes of each of {} ranks, {:?}>", it.bytes, it.size(), it.signals);
