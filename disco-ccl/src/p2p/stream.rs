//! What ranks do with each other's memory by copies and words alone: no kernel runs, so that no multiprocessor is taken.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use disco_core::{Error, Rank, Result, Tensor};

use super::memory::Memory;
use super::signals::{BARRIER_SLOT, SLOTS, StreamWork};
use crate::driver::Peers;
use crate::driver::{CopyKind, Driver};

/// One of the two streams that a [`Workspace`](super::Workspace) has: the worker's own, on which its collectives are, and one at its
/// side. All calls return at once; what they are for happens in the order of the stream.
///
/// Signals are counted: the n-th [`wait`](P2pStream::wait) for a slot of a peer's is for that peer's n-th [`signal`](P2pStream::signal) of it, from
/// whichever lane: one that follows another lane's waits for that. The host counts signals, so a
/// capture refuses them. A graph can contain copies of the main lane.
///
/// Nothing but [`P2pStream::after`] orders the two: what one has to find written, or free to be written, was given to the other before.
pub struct P2pStream<'w> {
    memory: &'w Arc<Memory>,
    driver: &'w dyn Driver,
    is_side: bool,
}

impl<'w> P2pStream<'w> {
    pub(super) fn main(memory: &'w Arc<Memory>) -> Self {
        Self { memory, driver: memory.runtime.driver(), is_side: false }
    }

    pub(super) fn side(memory: &'w Arc<Memory>) -> Result<Self> {
        memory.runtime.make_current()?;
        Ok(Self { memory, driver: memory.runtime.side()?, is_side: true })
    }

    /// Copies a tensor of this device into a rank's buffer, from a byte on.
    ///
    /// # Errors
    /// There is no such rank or not so much room, the tensor is elsewhere or not contiguous; [`Error::Broken`]; the driver's own.
    pub fn put(&self, src: &Tensor, to: Rank, offset: usize) -> Result<()> {
        let theirs = self.check("put", src, to, offset)?;
        self.copy(theirs, src.data(), src)
    }

    /// Copies a part of a rank's buffer, from a byte on, into a tensor of this device.
    ///
    /// # Errors
    /// As [`P2pStream::put`].
    pub fn get(&self, dst: &Tensor, from: Rank, offset: usize) -> Result<()> {
        let theirs = self.check("get", dst, from, offset)?;
        self.copy(dst.data(), theirs, dst)
    }

    /// Tells a rank that what came before on this lane is done: what it put is there, what it got may be written again.
    ///
    /// # Errors
    /// There is no such rank, or the slot is not below [`SLOTS`]; [`Error::Broken`]; the driver's own.
    pub fn signal(&self, to: Rank, slot: usize) -> Result<()> {
        self.check_slot("signal", to, slot)?;
        self.send(to.index(), slot)
    }

    /// Lets what follows on this lane wait for a rank's next signal.
    ///
    /// # Errors
    /// As [`P2pStream::signal`].
    pub fn wait(&self, from: Rank, slot: usize) -> Result<()> {
        self.check_slot("wait", from, slot)?;
        self.receive(from.index(), slot)
    }

    /// Lets what follows on this lane wait until all ranks' lanes have come here. Of each rank, one of its lanes comes.
    ///
    /// # Errors
    /// [`Error::Broken`]; the driver's own.
    pub fn barrier(&self) -> Result<()> {
        self.check_usable("barrier")?;
        self.barrier_on(BARRIER_SLOT)
    }

    /// A barrier by a slot of its own.
    pub(super) fn barrier_on(&self, slot: usize) -> Result<()> {
        let others = || (0..self.memory.size()).filter(|rank| *rank != self.memory.rank);
        others().try_for_each(|peer| self.send(peer, slot))?;
        others().try_for_each(|peer| self.receive(peer, slot))
    }

    /// Lets what follows on this lane wait for all that the other one was given so far.
    ///
    /// # Errors
    /// [`Error::Broken`]; the driver's own.
    pub fn after(&self, other: &P2pStream<'_>) -> Result<()> {
        self.check_usable("after")?;
        self.memory.signals.order(self.driver, other.driver)
    }

    fn copy(&self, to: *mut u8, from: *const u8, tensor: &Tensor) -> Result<()> {
        if tensor.byte_len() == 0 {
            return Ok(());
        }
        let runtime = &self.memory.runtime;
        runtime.keep(|| tensor.storage().clone());
        runtime.keep(|| self.memory.clone());
        // SAFETY: both are as many bytes of memory that the device reaches. The workspace keeps its own until the streams are done,
        // the runtime a tensor's until the worker's stream is, and this the tensor until the side's is.
        unsafe { self.driver.copy(to, from, tensor.byte_len(), CopyKind::OnDevice) }?;
        // What the workspace has is not to keep the workspace.
        match self.is_side && !self.memory.has(tensor.data()) {
            true => self.memory.signals.track(self.driver, StreamWork::Copy { _storage: tensor.storage().clone() }),
            false => Ok(()),
        }
    }

    fn send(&self, to: usize, slot: usize) -> Result<()> {
        let (number, is_by_another) = self.memory.signals.next_sent(to, slot, self.is_side);
        if is_by_another {
            // No later number comes before it.
            let runtime = &self.memory.runtime;
            let other = if self.is_side { runtime.driver() } else { runtime.side()? };
            self.memory.signals.order(self.driver, other)?;
        }
        let word = self.memory.word(to, self.memory.rank, slot);
        // SAFETY: the word is part of the rank's memory, which stays until the streams are done.
        unsafe { self.peers()?.write_word(word, number) }
    }

    fn receive(&self, from: usize, slot: usize) -> Result<()> {
        let number = self.memory.signals.next_awaited(from, slot);
        let word = self.memory.word(self.memory.rank, from, slot);
        // SAFETY: as above.
        unsafe { self.peers()?.wait_word(word, number) }?;
        self.memory.signals.track(self.driver, StreamWork::Wait(from, slot))?;
        // An abort that came in between has not seen it.
        self.memory.signals.check("wait").inspect_err(|_| Memory::release(self.memory))
    }

    fn peers(&self) -> Result<&'w dyn Peers> {
        self.driver.peers().map_err(Error::missing)
    }

    fn check_usable(&self, operation: &str) -> Result<()> {
        self.memory.signals.check(operation)?;
        // User code may have made another device current.
        self.memory.runtime.make_current()?;
        match operation {
            "put" | "get" if !self.is_side => Ok(()),
            "put" | "get" => self
                .memory
                .runtime
                .refuse_in_capture(operation, "the side stream is not part of the capture: use the main lane"),
            _ => self.memory.runtime.refuse_in_capture(
                operation,
                "the host numbers signals, and each launch would repeat old numbers: signal outside of the graph",
            ),
        }
    }

    /// The address in the rank's buffer.
    fn check(&self, operation: &str, tensor: &Tensor, rank: Rank, offset: usize) -> Result<*mut u8> {
        self.check_usable(operation)?;
        let device = self.memory.runtime.device();
        if tensor.device() != device || !tensor.is_contiguous() {
            return Err(Error::invalid(format!("{operation}: {tensor} is not contiguous on {device}")));
        }
        self.memory.place(operation, rank, offset, tensor.byte_len())
    }

    fn check_slot(&self, operation: &str, rank: Rank, slot: usize) -> Result<()> {
        self.check_usable(operation)?;
        self.memory.check_rank(operation, rank)?;
        if slot >= SLOTS {
            return Err(Error::invalid(format!("{operation}: there is no slot {slot}, but {SLOTS}")));
        }
        Ok(())
    }
}

impl fmt::Debug for P2pStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} lane of rank {}>", if self.is_side { "side" } else { "main" }, self.memory.rank)
    }
}
