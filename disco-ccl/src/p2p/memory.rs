//! Device memory of each rank, as this one's device reaches it, and how that ends.
//!
//! ```text
//! of each rank      0   STATE    for kernels: zeros at first, and theirs from then on
//!              96 KiB   SIGNALS_OFFSET  a word for each peer and slot, which that peer writes; or elsewhere: see `word_table`
//!             100 KiB   PATTERNS_OFFSET   what ranks write to find out whether they reach each other
//!             128 KiB   DATA_OFFSET     the buffer, and behind it as much for kernels, if there are any
//! ```

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
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

/// Bytes that kernels have of each rank's memory, from its start on.
pub const STATE_BYTES: usize = 96 << 10;
const SIGNALS_OFFSET: usize = STATE_BYTES;
pub(super) const PATTERNS_OFFSET: usize = 100 << 10;
const DATA_OFFSET: usize = 128 << 10;

/// What a driver shares is whole blocks of so many bytes, with whatever else is in them: so nothing else is.
const ALLOCATION_GRANULARITY: usize = 2 << 20;

/// How long a rank that has left waits, in the background, for peers to leave its memory, where all can be asked and where not.
const PEERS_CLOSE_TIMEOUT: Duration = Duration::from_secs(60);
const PEERS_CLOSE_GRACE: Duration = Duration::from_secs(5);
/// How long who leaves waits for that.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// How often waits are ended again.
const RELEASE_INTERVAL: Duration = Duration::from_millis(20);

/// Memory of ranks.
pub(super) struct Memory {
    pub(super) runtime: Arc<Runtime>,
    pub(super) rank: usize,
    /// Of each rank's buffer.
    pub(super) bytes: usize,
    /// Each rank's, once it is known.
    bases: Vec<Base>,
    pub(super) signals: SignalCounters,
    /// What the streams need besides.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
    /// How long the streams may still have work when nobody uses it any more.
    idle_timeout: Duration,
    /// Once peers may have it.
    close_handshake: Option<CloseHandshake>,
    /// Who waits for its end.
    leaver: Mutex<Option<mpsc::Sender<()>>>,
    /// Kernels over it wait for peers.
    defer_frees: Option<DeferFrees>,
}

/// Where a rank's memory starts, for this one's device.
#[derive(Clone, Default)]
pub(super) struct Base {
    address: usize,
    /// It is another process's.
    is_opened: bool,
    words: WordTable,
}

/// How ranks tell each other that they don't use their peers' memory any more.
#[derive(Clone, Debug)]
struct CloseHandshake {
    store: Arc<dyn Store>,
    name: String,
    rank: usize,
    size: usize,
}

impl Base {
    /// Memory of this process.
    pub(super) fn direct(address: usize, words: WordTable) -> Self {
        Self { address, is_opened: false, words }
    }

    /// Memory that was opened.
    pub(super) fn opened(address: *mut u8) -> Self {
        Self { address: address as usize, is_opened: true, words: WordTable::default() }
    }

    /// The word that a peer writes to signal a slot.
    fn word(&self, from: usize, slot: usize) -> *mut u32 {
        self.words.find(from, slot).unwrap_or((self.address + signal_offset(from, slot)) as *mut u32)
    }
}

impl Memory {
    /// This rank's own: zeros, when the stream has got there; with as much as the buffer for kernels, if there are to be any.
    ///
    /// # Errors
    /// No room; the driver's own; [`Runtime::priority_stream`] fails.
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
        // It ends waits, so it is made before any.
        runtime.priority_stream()?;
        let peers = runtime.driver().peers().map_err(Error::missing)?;
        let own = peers.alloc_shared(all)?.ok_or_else(no_room)?;
        let mut bases = vec![Base::default(); size];
        bases[rank] = Base::direct(own as usize, WordTable::default());
        let (runtime, signals, kept, leaver) =
            (runtime.clone(), SignalCounters::default(), Mutex::default(), Mutex::default());
        let defer_frees = Some(DeferFrees::new());
        let mut memory = Self {
            runtime,
            rank,
            bytes,
            bases,
            signals,
            kept,
            idle_timeout,
            close_handshake: None,
            leaver,
            defer_frees,
        };
        // SAFETY: it was allocated just now.
        unsafe { memory.runtime.driver().clear(own, all) }?;
        let shared = memory.word(rank, rank, SELF_TEST_SLOT);
        memory.bases[rank].words = WordTable::new(memory.runtime.driver(), (rank, size), shared)?;
        Ok(memory)
    }

    /// From now on peers may open it: they say in the store when they have closed it again.
    pub(super) fn is_shown_to_peers(&mut self, (store, name): (Arc<dyn Store>, String)) {
        self.close_handshake = Some(CloseHandshake { store, name, rank: self.rank, size: self.size() });
    }

    /// A peer's is there.
    pub(super) fn add(&mut self, rank: usize, base: Base) {
        self.bases[rank] = base;
    }

    /// An address in a rank's memory, for this one's device.
    pub(super) fn at(&self, rank: usize, offset: usize) -> *mut u8 {
        (self.bases[rank].address + offset) as *mut u8
    }

    /// The word of a rank that the rank `from` writes to signal a slot.
    pub(super) fn word(&self, rank: usize, from: usize, slot: usize) -> *mut u32 {
        self.bases[rank].word(from, slot)
    }

    /// Where a rank's words are.
    pub(super) fn words_of(&self, rank: usize) -> &WordTable {
        &self.bases[rank].words
    }

    /// Where kernels have a buffer of a rank's, as large as that of [`Memory::place`].
    pub(super) fn kernels_buffer(&self, rank: usize) -> *mut u8 {
        self.at(rank, DATA_OFFSET + self.bytes.next_multiple_of(ALIGNMENT))
    }

    /// Whether an address is in a rank's buffer: that stays until the streams are done.
    pub(super) fn has(&self, address: *const u8) -> bool {
        let offset = |base: &Base| (address as usize).checked_sub(base.address + DATA_OFFSET);
        self.bases.iter().filter_map(offset).any(|offset| offset < self.bytes)
    }

    /// An address in a rank's buffer, with room for so many bytes from there on.
    ///
    /// # Errors
    /// There is no such rank, or no such room.
    pub(super) fn place(&self, operation: &str, rank: Rank, offset: usize, bytes: usize) -> Result<*mut u8> {
        self.check_rank(operation, rank)?;
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            let room = self.bytes;
            return Err(Error::invalid(format!(
                "{operation}: {bytes} bytes from byte {offset} on leave a buffer of {room} bytes"
            )));
        }
        Ok(self.at(rank.index(), DATA_OFFSET + offset))
    }

    /// # Errors
    /// There is no such rank.
    pub(super) fn check_rank(&self, operation: &str, rank: Rank) -> Result<()> {
        let size = self.size();
        if rank.index() < size { Ok(()) } else { Err(Error::invalid(format!("{operation}: no {rank} among {size}"))) }
    }

    /// How many ranks there are.
    pub(super) fn size(&self) -> usize {
        self.bases.len()
    }

    /// Kept until the streams are done.
    pub(super) fn keep(&self, what: Box<dyn Any + Send>) {
        sync::lock(&self.kept).push(what);
    }

    /// Ends all waits for signals. From any thread; waits for nothing. A peer may still signal, which undoes that: it is done until no
    /// stream waits.
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

    /// Gives it up, and waits for its end if nobody else has it, and that does not take long.
    pub(super) fn leave(this: Arc<Self>) {
        let (tell, end) = mpsc::channel();
        *sync::lock(&this.leaver) = Some(tell);
        if Arc::into_inner(this).is_some() {
            // It is not told where the end takes longer.
            _ = end.recv_timeout(LEAVE_TIMEOUT);
        }
    }
}

/// Where buffers start, as an allocation would: kernels move whole vectors.
const ALIGNMENT: usize = 512;

/// Waits for nothing. What streams have to do is done, or ended; then peers' memory is closed, and then own memory is freed when
/// peers have closed it.
impl Drop for Memory {
    fn drop(&mut self) {
        let (runtime, signals, bases) =
            (self.runtime.clone(), mem::take(&mut self.signals), mem::take(&mut self.bases));
        let (kept, close_handshake) = (mem::take(&mut self.kept), self.close_handshake.take());
        let (rank, idle_timeout) = (self.rank, self.idle_timeout);
        let (leaver, defer_frees) = (mem::take(&mut self.leaver), self.defer_frees.take());
        drop(Teardown::spawn("the end of peer-to-peer memory", &self.runtime, move || {
            if !runtime.wait_all_idle(idle_timeout) {
                signals.release(&runtime, |from, slot| bases[rank].word(from, slot));
                if !runtime.wait_all_idle(idle_timeout) {
                    let device = runtime.device();
                    tracing::warn!(%device, "peer-to-peer memory is left behind: its stream does not end");
                    mem::forget(kept);
                    return;
                }
            }
            signals.end(runtime.driver());
            drop(kept);
            end(&runtime, rank, &bases, close_handshake);
            drop(defer_frees);
            drop(leaver);
        }));
    }
}

/// Where a peer's signal of a slot is, unless the rank's words have memory of their own.
fn signal_offset(from: usize, slot: usize) -> usize {
    SIGNALS_OFFSET + (from * SLOTS_PER_PEER + slot) * size_of::<u32>()
}

fn end(runtime: &Runtime, rank: usize, bases: &[Base], close_handshake: Option<CloseHandshake>) {
    let driver = runtime.driver();
    for base in bases.iter().filter(|base| base.is_opened) {
        // SAFETY: it was opened, nobody has it any more, and the streams have passed all that used it.
        let closed = driver.peers().map(|peers| unsafe { peers.close(base.address as *mut u8) });
        if let Ok(Err(error)) = closed {
            tracing::warn!(%error, "a peer's memory is left open");
        }
    }
    if close_handshake.is_some_and(|close_handshake| !close_handshake.is_over()) {
        tracing::warn!(after = ?PEERS_CLOSE_TIMEOUT, "peer-to-peer memory is left behind: peers still have it");
        return;
    }
    bases[rank].words.free(driver);
    // SAFETY: it was allocated there, and nobody has it any more.
    if let Err(error) = unsafe { driver.free(bases[rank].address as *mut u8) } {
        tracing::warn!(%error, "peer-to-peer memory is left behind");
    }
}

impl CloseHandshake {
    /// Says that this rank has closed what it had of its peers, and waits until all have. Where there is no store any more, the
    /// session is over or aborted: peers end their work then, too.
    fn is_over(&self) -> bool {
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

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes of each of {} ranks, {:?}>", self.bytes, self.size(), self.signals)
    }
}
