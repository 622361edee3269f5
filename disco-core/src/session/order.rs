//! The total order of a session's commands: numbers, registers, frames.

use std::collections::VecDeque;
use std::sync::Arc;

use super::dref::FreedIds;
use super::lane_set::Lanes;
use super::large::Values;
use super::registers::RegisterIds;
use crate::command::Command;
use crate::error::Result;
use crate::prefetch;
use crate::value::Value;
use crate::wire::Frame;

/// Largest number of frames that are kept after they were sent; exceeds the capacity of a lane.
const MAX_SENT_FRAMES: usize = 4096;
/// Largest number of unused frames that are kept for reuse, once the workers have kept up for some time.
const MAX_IDLE_FRAMES: usize = 32;
/// Commands for each frame above that number that is freed: the backlog of workers that take turns goes up and down.
const SHRINK_INTERVAL: u64 = 64;
/// Distance of prefetches, in frames: first a frame, then its arguments, then the values that these point to.
const AHEAD_FRAMES: usize = 2;

/// State that only the holder of the order ticket changes.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The lanes of the session.
    pub(super) lanes: Lanes,
    seq: u64,
    registers: RegisterIds,
    /// [Light](Frame::is_light) frames, which lanes may keep.
    light: SentFrames,
    /// Other frames, which lanes release as soon as the last worker has finished.
    other: SentFrames,
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

    /// Makes the next frame from the command that `make` returns, `values`, and the ids freed since the last frame.
    /// `make` may reuse these ids.
    pub(super) fn next(
        &mut self,
        freed_ids: &FreedIds,
        values: &Values,
        make: impl FnOnce(&mut RegisterIds) -> Result<Command>,
    ) -> Result<Arc<Frame>> {
        let freed = freed_ids.take_freed();
        self.registers.free(&freed);
        // `make` fails only when ids are exhausted, so `freed` is empty.
        let command = make(&mut self.registers)?;
        freed_ids.note_in_use(self.registers.in_use());
        self.seq += 1;
        let mut next = Frame::with(self.seq, freed, command);
        let is_large = values.are_large();
        values.put_in(&mut next);
        if is_large {
            // The last lane that holds the frame frees its memory.
            return Ok(Arc::new(next));
        }
        if !next.is_light() {
            return Ok(self.other.put(next));
        }
        // Otherwise a frame with tensors would be kept until the next one of its kind.
        self.other.take_finished();
        Ok(self.light.put(next))
    }

    /// Releases the frames that all workers have finished and no lane keeps, and their tensors.
    pub(super) fn release(&mut self) {
        self.light.release();
        self.other.release();
    }
}

impl SentFrames {
    /// Adds a frame, in the memory of the oldest one if no lane holds that any more.
    fn put(&mut self, next: Frame) -> Arc<Frame> {
        let shrinks = next.seq().is_multiple_of(SHRINK_INTERVAL);
        match self.0.front_mut().and_then(Arc::get_mut) {
            Some(oldest) => *oldest = next,
            None => self.0.push_front(Arc::new(next)),
        }
        self.0.rotate_left(1);
        let frame = self.0[self.0.len() - 1].clone();
        // The queue grows with the backlog of the workers and shrinks once they have caught up.
        if shrinks && self.0.len() > MAX_IDLE_FRAMES {
            self.take_finished();
        }
        if self.0.len() > MAX_SENT_FRAMES {
            self.0.pop_front();
        }
        self.look_ahead();
        frame
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

    fn release(&mut self) {
        while self.take_finished().is_some() {}
    }

    /// Removes the oldest frame if no lane holds it any more.
    fn take_finished(&mut self) -> Option<Arc<Frame>> {
        Arc::get_mut(self.0.front_mut()?)?;
        self.0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::tensor::Tensor;

    fn next(order: &mut Order, freed_ids: &FreedIds) -> Arc<Frame> {
        order.next(freed_ids, &Values::SMALL, |_| Ok(Command::SyncAll)).unwrap()
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
        order.release();
        assert!(order.light.0.is_empty());
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
}
