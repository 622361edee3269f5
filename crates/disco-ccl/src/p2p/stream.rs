//! Copies and signals over shared memory, by functions of the driver. No kernel runs, so the multiprocessors stay free.

#![allow(unsafe_code)]

use std::sync::Arc;

use disco_core::{Error, Rank, Result, Tensor};

use super::memory::Memory;
use super::signals::{BARRIER_SLOT, SLOTS, StreamWork};
use crate::driver::Peers;
use crate::driver::{CopyKind, Driver};

/// One of the two streams of a [`Workspace`](super::Workspace): the main stream, on which the worker's collectives run,
/// or the side stream. All calls return at once; their work happens in the order of the stream.
///
/// Signals are counted for each pair of ranks and each slot: the n-th [`wait`](P2pStream::wait) waits for the peer's
/// n-th [`signal`](P2pStream::signal), from either of its streams. A signal on one stream waits for the previous signal
/// of the slot on the other stream. The host counts signals, so a capture refuses them. A graph can contain copies of
/// the main stream.
///
/// Only [`P2pStream::after`] orders the two streams. Before one stream uses memory that the other one writes or reads,
/// call `after`.
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

    /// Copies a tensor of this device to byte `offset` of a rank's buffer.
    ///
    /// # Errors
    /// The rank does not exist; the tensor exceeds the buffer, is on another device, or is not contiguous;
    /// [`Error::Broken`]; errors of the driver.
    pub fn put(&self, src: &Tensor, to: Rank, offset: usize) -> Result<()> {
        let theirs = self.check("put", src, to, offset)?;
        self.copy(theirs, src.data(), src)
    }

    /// Copies bytes of a rank's buffer, from byte `offset` on, into a tensor of this device.
    ///
    /// # Errors
    /// As for [`P2pStream::put`].
    pub fn get(&self, dst: &Tensor, from: Rank, offset: usize) -> Result<()> {
        let theirs = self.check("get", dst, from, offset)?;
        self.copy(dst.data(), theirs, dst)
    }

    /// Signals a rank once all earlier work of this stream is done: its `put`s have arrived, and the memory of its
    /// `get`s can be overwritten.
    ///
    /// # Errors
    /// The rank does not exist, or the slot is not below [`SLOTS`]; [`Error::Broken`]; errors of the driver.
    pub fn signal(&self, to: Rank, slot: usize) -> Result<()> {
        self.check_slot("signal", to, slot)?;
        self.send(to.index(), slot)
    }

    /// Makes later work of this stream wait for the next signal of a rank.
    ///
    /// # Errors
    /// As for [`P2pStream::signal`].
    pub fn wait(&self, from: Rank, slot: usize) -> Result<()> {
        self.check_slot("wait", from, slot)?;
        self.receive(from.index(), slot)
    }

    /// Makes later work of this stream wait until all ranks have reached the barrier. Each rank calls this function on
    /// one of its streams.
    ///
    /// # Errors
    /// [`Error::Broken`]; errors of the driver.
    pub fn barrier(&self) -> Result<()> {
        self.check_usable("barrier")?;
        self.barrier_on(BARRIER_SLOT)
    }

    /// A barrier that uses the signals of `slot`.
    pub(super) fn barrier_on(&self, slot: usize) -> Result<()> {
        let others = || (0..self.memory.size()).filter(|rank| *rank != self.memory.rank);
        others().try_for_each(|peer| self.send(peer, slot))?;
        others().try_for_each(|peer| self.receive(peer, slot))
    }

    /// Makes later work of this stream wait for all earlier work of the other stream.
    ///
    /// # Errors
    /// [`Error::Broken`]; errors of the driver.
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
        // SAFETY: both ranges have the tensor's bytes, and the device can access them. The workspace keeps shared
        // memory until the streams are done. The runtime keeps the tensor's memory until the main stream is done, and
        // `track` until the side stream is done.
        unsafe { self.driver.copy(to, from, tensor.byte_len(), CopyKind::OnDevice) }?;
        // Work on the workspace's own buffers must not keep the workspace alive.
        if self.is_side && !self.memory.contains(tensor.data()) {
            self.memory.signals.track(self.driver, StreamWork::Copy { _storage: tensor.storage().clone() })
        } else {
            Ok(())
        }
    }

    fn send(&self, to: usize, slot: usize) -> Result<()> {
        let (number, is_by_another) = self.memory.signals.next_sent(to, slot, self.is_side);
        if is_by_another {
            // The numbers of a slot must be written in order, and the previous one is on the other stream.
            let runtime = &self.memory.runtime;
            let other = if self.is_side { runtime.driver() } else { runtime.side()? };
            self.memory.signals.order(self.driver, other)?;
        }
        let word = self.memory.word(to, self.memory.rank, slot);
        // SAFETY: the word is part of the rank's memory, which stays open until the streams are done.
        unsafe { self.peers()?.write_word(word, number) }
    }

    fn receive(&self, from: usize, slot: usize) -> Result<()> {
        let number = self.memory.signals.next_awaited(from, slot);
        let word = self.memory.word(self.memory.rank, from, slot);
        // SAFETY: the word is part of this rank's memory, which stays allocated until the streams are done.
        unsafe { self.peers()?.wait_word(word, number) }?;
        self.memory.signals.track(self.driver, StreamWork::Wait(from, slot))?;
        // An abort before `track` has not released this wait.
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
                .refuse_in_capture(operation, "the side stream is not part of the capture: use the main stream"),
            _ => self.memory.runtime.refuse_in_capture(
                operation,
                "the host numbers signals, and each launch would repeat old numbers: signal outside of the graph",
            ),
        }
    }

    /// Checks an operation, and returns the address of byte `offset` in the rank's buffer.
    fn check(&self, operation: &str, tensor: &Tensor, rank: Rank, offset: usize) -> Result<*mut u8> {
        self.check_usable(operation)?;
        let device = self.memory.runtime.device();
        if tensor.device() != device || !tensor.is_contiguous() {
            return Err(Error::invalid(format!("{operation}: {tensor} is not contiguous on {device}")));
        }
        self.memory.buffer_address(operation, rank, offset, tensor.byte_len())
    }

    fn check_slot(&self, operation: &str, rank: Rank, slot: usize) -> Result<()> {
        self.check_usable(operation)?;
        self.memory.check_rank(operation, rank)?;
        if slot >= SLOTS {
            return Err(Error::invalid(format!(
                "{operation}: slot {slot} does not exist; the slots are 0 to {}",
                SLOTS - 1
            )));
        }
        Ok(())
    }
}

disco_core::format_as!(
    Debug for P2pStream<'_>, |it|
    "<{} stream of rank {}>", if it.is_side { "side" } else { "main" }, it.memory.rank
);
