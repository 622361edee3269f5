//! The total order of a session's commands: numbers, registers, frames.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use super::dref::FreedIds;
use super::functions::Functions;
use super::lane_set::Lanes;
use super::large::Values;
use crate::channel::FrameSize;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::id::RegisterId;
use crate::prefetch;
use crate::value::Value;
use crate::wire::{Frame, Freed};

/// Largest number of frames that are kept after they were sent; exceeds the capacity of a lane.
const MAX_SENT_FRAMES: usize = 4096;
/// Largest number of unused frames that are kept for reuse, once the workers have kept up for some time.
const MAX_IDLE_FRAMES: usize = 32;
/// Frames before the oldest one is reused, so that its [prefetch](SentFrames::look_ahead) has begun long before.
const MIN_IDLE_FRAMES: usize = 8;
/// Commands for each frame above that number that is freed: the backlog of workers that take turns goes up and down.
const SHRINK_INTERVAL: u64 = 64;
/// Distance of prefetches, in frames: first a frame, then its arguments, then the values that these point to.
const AHEAD_FRAMES: usize = 2;

/// State that only the holder of the order ticket changes.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// The lanes of the session.
    pub(crate) lanes: Lanes,
    pub(crate) functions: Functions,
    /// The workers were told to leave.
    pub(crate) is_over: bool,
    /// No caller submits commands until the workers have executed all earlier ones, and have changed.
    pub(super) is_drained: bool,
    /// Number of the last transfer.
    transfer: u64,
    seq: u64,
    registers: RegisterIds,
    /// [Light](Frame::is_light) frames, which lanes may keep.
    light: SentFrames,
    /// Other frames, which lanes release as soon as the last worker has finished.
    other: SentFrames,
}

/// The next frame, beside the lanes and the functions. A frame that stays with the [`Order`] is borrowed: if its count of
/// references changed after it was sent, that would take the cache line from the worker that reads it.
pub(super) struct Next<'a> {
    pub(crate) lanes: &'a Lanes,
    pub(crate) functions: &'a Functions,
    /// Number of registers in use.
    pub(super) registers: usize,
    pub(super) frame: Cow<'a, Arc<Frame>>,
}

/// Frames that workers may still read, oldest first. The controller keeps them so that it frees or reuses the memory
/// itself: memory that another thread frees costs more than the rest of a call.
#[derive(Debug, Default)]
struct SentFrames(VecDeque<Arc<Frame>>);

impl Order {
    pub(super) fn new(lanes: Lanes) -> Self {
        Self { lanes, ..Self::default() }
    }

    /// The number of the next frame.
    pub(super) fn next_seq(&self) -> u64 {
        self.seq + 1
    }

    /// Whether a command of this size can be submitted now.
    pub(super) fn is_open(&self, size: FrameSize) -> bool {
        !self.is_drained && self.lanes.have_capacity(size)
    }

    /// The number of a new transfer.
    pub(super) fn next_transfer(&mut self) -> u64 {
        self.transfer += 1;
        self.transfer
    }

    /// Makes the next frame from the command that `make` returns, `values`, and the ids freed since the last frame.
    /// `make` may reuse these ids.
    pub(super) fn next(
        &mut self,
        freed_ids: &FreedIds,
        values: &Values,
        make: impl FnOnce(&mut RegisterIds) -> Result<Command>,
    ) -> Result<Next<'_>> {
        let freed = freed_ids.take_freed();
        self.registers.free(&freed);
        // `make` fails only when ids are exhausted, so `freed` is empty.
        let command = make(&mut self.registers)?;
        let registers = self.registers.in_use();
        self.seq += 1;
        if values.size() == FrameSize::Large {
            let mut next = Frame::with(self.seq, freed, command);
            values.put_in(&mut next);
            // The last lane that holds the frame frees its memory.
            let frame = Cow::Owned(Arc::new(next));
            return Ok(Next { lanes: &self.lanes, functions: &self.functions, registers, frame });
        }
        let frame = if Frame::would_be_light(&freed, &command) {
            // Otherwise a frame with tensors would be kept until the next one of its kind.
            self.other.take_finished();
            self.light.put(MIN_IDLE_FRAMES, self.seq, freed, command)
        } else {
            self.other.put(0, self.seq, freed, command)
        };
        Ok(Next { lanes: &self.lanes, functions: &self.functions, registers, frame: Cow::Borrowed(frame) })
    }

    /// Whether there are frames that [`Order::release`] releases once the workers have finished.
    pub(super) fn keeps_frames(&self) -> bool {
        self.light.0.len() > MAX_IDLE_FRAMES || !self.other.0.is_empty()
    }

    /// Releases the frames that all workers have finished and no lane keeps, and their tensors, except for some light
    /// ones.
    pub(super) fn release(&mut self) {
        self.light.release(MAX_IDLE_FRAMES);
        self.other.release(0);
    }
}

impl SentFrames {
    /// Adds a frame, in the memory of the oldest one if there are at least `idle` and no lane holds that one any more.
    fn put(&mut self, idle: usize, seq: u64, freed: Freed, command: Command) -> &Arc<Frame> {
        let oldest = if self.0.len() < idle { None } else { self.0.front_mut().and_then(Arc::get_mut) };
        match oldest {
            Some(oldest) => oldest.set(seq, freed, command),
            None => self.0.push_front(Arc::new(Frame::with(seq, freed, command))),
        }
        if let Some(latest) = self.0.pop_front() {
            self.0.push_back(latest);
        }
        // The queue grows with the backlog of the workers and shrinks once they have caught up.
        if seq.is_multiple_of(SHRINK_INTERVAL) && self.0.len() > MAX_IDLE_FRAMES {
            self.take_finished();
        }
        if self.0.len() > MAX_SENT_FRAMES {
            self.0.pop_front();
        }
        self.look_ahead();
        &self.0[self.0.len() - 1]
    }

    /// Prefetches the memory of frames that are about to be reused.
    fn look_ahead(&self) {
        if let Some(frame) = self.0.get(AHEAD_FRAMES + 1) {
            prefetch::shared_for_write(frame);
        }
        // The previous call has prefetched the cache lines of this frame.
        if let Some(Command::CallPacked { args, .. }) = self.0.get(AHEAD_FRAMES).map(|frame| frame.command()) {
            prefetch::for_write(args.as_slice());
        }
        if let Some(Command::CallPacked { args, .. }) = self.0.get(AHEAD_FRAMES - 1).map(|frame| frame.command()) {
            for arg in args {
                if let Value::Str(text) = arg {
                    prefetch::shared_for_write(text);
                }
            }
        }
    }

    /// Releases finished frames until `idle` are left.
    fn release(&mut self, idle: usize) {
        while self.0.len() > idle && self.take_finished().is_some() {}
    }

    /// Removes the oldest frame if no lane holds it any more.
    fn take_finished(&mut self) -> Option<Arc<Frame>> {
        Arc::get_mut(self.0.front_mut()?)?;
        self.0.pop_front()
    }
}

/// Allocates register ids, freed ones first.
#[derive(Debug, Default)]
pub(crate) struct RegisterIds {
    next: u32,
    free: Vec<RegisterId>,
}

impl RegisterIds {
    /// Adds ids that workers free before the next command, which may already reuse them.
    pub(super) fn free(&mut self, freed: &[RegisterId]) {
        self.free.extend_from_slice(freed);
    }

    /// Number of ids in use.
    pub(super) fn in_use(&self) -> usize {
        self.next as usize - self.free.len()
    }

    /// # Errors
    /// All [`RegisterId::COUNT`] ids are in use.
    pub(super) fn take(&mut self) -> Result<RegisterId> {
        if let Some(id) = self.free.pop() {
            return Ok(id);
        }
        if self.next == RegisterId::COUNT {
            return Err(Error::state(format!("all {} registers are in use; drop some DRefs", RegisterId::COUNT)));
        }
        self.next += 1;
        Ok(RegisterId::new(self.next - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::tensor::Tensor;

    fn next(order: &mut Order, freed_ids: &FreedIds) -> Arc<Frame> {
        order.next(freed_ids, &Values::SMALL, |_| Ok(Command::SyncAll)).unwrap().frame.into_owned()
    }

    #[test]
    fn frames_that_all_workers_have_finished_are_reused() {
        let (mut order, freed_ids) = (Order::default(), FreedIds::default());
        let slow = next(&mut order, &freed_ids);
        let behind: Vec<_> = (0..10).map(|_| Arc::as_ptr(&next(&mut order, &freed_ids))).collect();
        assert_eq!(order.light.0.len(), 11, "none is taken past one that somebody has");
        drop(slow);
        let again = next(&mut order, &freed_ids);
        assert_eq!(again.seq(), 12);
        assert!(!behind.contains(&Arc::as_ptr(&again)), "the oldest comes first");
        drop(again);
        let held: Vec<_> = (0..2 * MAX_IDLE_FRAMES).map(|_| next(&mut order, &freed_ids)).collect();
        drop(held);
        order.release();
        assert_eq!(order.light.0.len(), MAX_IDLE_FRAMES);
    }

    #[test]
    fn the_next_light_frame_frees_the_tensors_of_a_finished_one() {
        let (mut order, freed_ids) = (Order::default(), FreedIds::default());
        let tensor = Tensor::zeros(DType::F32, [1024]).unwrap();
        let args = vec![Value::Tensor(tensor.clone())];
        let call = Command::CallPacked { register: 1.into(), function: 0.into(), args };
        drop(order.next(&freed_ids, &Values::SMALL, |_| Ok(call)).unwrap());
        drop(next(&mut order, &freed_ids));
        assert!(order.other.0.is_empty());
    }

    #[test]
    fn freed_ids_are_reused_before_new_ones() {
        let mut ids = RegisterIds::default();
        let (a, b) = (ids.take().unwrap(), ids.take().unwrap());
        ids.free(&[a]);
        assert_eq!(ids.in_use(), 1);
        assert_eq!(ids.take().unwrap(), a);
        assert_ne!(ids.take().unwrap(), b);
    }

    #[test]
    fn taking_more_ids_than_exist_is_an_error() {
        let mut ids = RegisterIds { next: RegisterId::COUNT - 1, free: Vec::new() };
        ids.take().unwrap();
        assert!(ids.take().unwrap_err().to_string().contains("16777216 registers are in use"));
    }
}
