//! The one order of commands: numbers, registers, frames.

use std::collections::VecDeque;
use std::sync::Arc;

use super::dref::Home;
use super::large::Values;
use super::registers::RegisterIds;
use crate::command::Command;
use crate::error::Result;
use crate::prefetch;
use crate::value::Value;
use crate::wire::Frame;

/// Frames that are remembered at most; more than lanes have room for.
const SENT: usize = 4096;
/// Frames that are kept to be used again.
const FEW: usize = 32;
/// How far ahead memory is asked for: a frame, then its arguments, then what these point to.
const AHEAD: usize = 2;

/// What the holder of the order ticket may touch.
#[derive(Debug, Default)]
pub(super) struct Order {
    seq: u64,
    registers: RegisterIds,
    /// Frames that workers may still look at, oldest first. They are kept so that what the controller allocated is freed
    /// or used again by the controller: memory that another thread frees costs both of them more than the rest of a call.
    sent: VecDeque<Arc<Frame>>,
}

impl Order {
    /// The number that the next frame will have.
    pub(super) fn next_seq(&self) -> u64 {
        self.seq + 1
    }

    /// The next frame: what `make` returns, whose values are `values`, with the ids freed since the last. They are free for `make`
    /// to take.
    pub(super) fn next(
        &mut self,
        home: &Home,
        values: &Values,
        make: impl FnOnce(&mut RegisterIds) -> Result<Command>,
    ) -> Result<Arc<Frame>> {
        let freed = home.take_freed();
        self.registers.free(&freed);
        // Fails only where no id was free, so that none is lost here.
        let command = make(&mut self.registers)?;
        self.seq += 1;
        let mut next = Frame::with(self.seq, freed, command);
        let is_large = values.is_large;
        values.put_in(&mut next);
        if is_large {
            // Its memory goes with the last lane that has it.
            return Ok(Arc::new(next));
        }
        match self.sent.front_mut().and_then(Arc::get_mut) {
            Some(oldest) => *oldest = next,
            None => self.sent.push_front(Arc::new(next)),
        }
        self.sent.rotate_left(1);
        let frame = self.sent[self.sent.len() - 1].clone();
        // The queue is as long as workers were behind; it shrinks once they have caught up.
        if self.sent.len() > FEW {
            self.take_finished();
        }
        if self.sent.len() > SENT {
            self.sent.pop_front();
        }
        self.look_ahead();
        Ok(frame)
    }

    /// Asks for the memory of frames that are about to be used again.
    fn look_ahead(&self) {
        if let Some(frame) = self.sent.get(AHEAD + 1) {
            prefetch::shared_for_write(frame);
        }
        // Asked for by the last call, so that its lines are here.
        if let Some(Command::CallPacked { args, .. }) = self.sent.get(AHEAD).map(|frame| frame.command()) {
            prefetch::for_write(args.as_slice());
        }
        if let Some(Command::CallPacked { args, .. }) = self.sent.get(AHEAD - 1).map(|frame| frame.command()) {
            for arg in args {
                if let Value::Str(text) = arg {
                    prefetch::shared_for_write(text);
                }
            }
        }
    }

    /// Lets go of the frames that all workers are done with, and of the tensors in them.
    pub(super) fn release(&mut self) {
        while self.take_finished().is_some() {}
    }

    /// Takes the oldest frame, if nobody else has it any more.
    fn take_finished(&mut self) -> Option<Arc<Frame>> {
        Arc::get_mut(self.sent.front_mut()?)?;
        self.sent.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(order: &mut Order, home: &Home) -> Arc<Frame> {
        order.next(home, &Values::SMALL, |_| Ok(Command::SyncAll)).unwrap()
    }

    #[test]
    fn frames_that_all_workers_are_done_with_are_used_again() {
        let (mut order, home) = (Order::default(), Home::default());
        let slow = next(&mut order, &home);
        let behind: Vec<_> = (0..10).map(|_| Arc::as_ptr(&next(&mut order, &home))).collect();
        assert_eq!(order.sent.len(), 11, "none is taken past one that somebody has");
        drop(slow);
        let again = next(&mut order, &home);
        assert_eq!(again.seq(), 12);
        assert!(!behind.contains(&Arc::as_ptr(&again)), "the oldest comes first");
        drop(again);
        order.release();
        assert!(order.sent.is_empty());
    }
}
