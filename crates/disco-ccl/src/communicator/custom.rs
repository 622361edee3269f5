//! Reductions of programs: the library moves the elements, and the host merges them.

use disco_core::op::{Claims, Steps, run_in_steps};
use disco_core::{DType, Op, Queue as _, Result, Tensor};

use super::Communicator;
use crate::queue::Queue;
use crate::runtime::Runtime;

/// The reason that a capture gives when it refuses such a reduction.
const RUNS_ON_HOST: &str = "a reduction of the program runs on the host, and a graph can't call it";

impl Communicator {
    /// Runs a group in which an operation has a reduction of the program. Waits for the stream.
    pub(super) fn enqueue_custom(&mut self, ops: &[Op]) -> Result<()> {
        let operation = || ops.first().map_or_else(String::new, |first| first.signature(self.size));
        self.check_unbroken(operation)?;
        self.runtime.refuse_in_capture(&operation(), RUNS_ON_HOST)?;
        Claims::check(ops)?;
        let (rank, size) = (self.rank, self.size);
        run_in_steps(self, rank, size, ops).inspect_err(|error| {
            if self.broken.is_none() {
                self.mark_broken(error);
            }
        })
    }

    /// Waits until the stream has passed the copies of `queue`, and completes them.
    fn finish_copies(&self, queue: &mut Queue) -> Result<()> {
        let last = self.last;
        self.wait_idle(|| last.map_or_else(String::new, |last| last.to_string()), Runtime::is_idle)?;
        queue.synchronize(self.deadline)
    }
}

impl Steps for Communicator {
    fn run_step(&mut self, op: Op) -> Result<()> {
        self.enqueue_scaled(&[op], None)
    }

    fn scratch(&mut self, dtype: DType, elements: usize) -> Result<Tensor> {
        self.runtime.make_current()?;
        Tensor::from_storage(self.runtime.alloc(elements * dtype.size())?, dtype, [elements])
    }

    fn gather(&mut self, mine: &[u8], size: usize) -> Result<Vec<u8>> {
        let all = self.scratch(DType::U8, mine.len() * size)?;
        let mut queue = self.host_copies.take().unwrap_or_else(|| Queue::new(self.runtime.clone()));
        let own = all.window(self.rank.index() * mine.len(), [mine.len()])?;
        queue.copy_in(&own, &Tensor::from_slice(mine, [mine.len()])?)?;
        self.run_step(Op::AllGather { src: None, dst: all.clone() })?;
        let host = Tensor::zeros(DType::U8, [all.elements()])?;
        queue.copy_out(&host, &all)?;
        self.finish_copies(&mut queue)?;
        self.host_copies = Some(queue);
        host.to_vec()
    }

    fn merge(
        &mut self,
        blocks: &Tensor,
        result: &Tensor,
        merge: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut queue = self.host_copies.take().unwrap_or_else(|| Queue::new(self.runtime.clone()));
        let host = Tensor::zeros(blocks.dtype(), [blocks.elements()])?;
        queue.copy_out(&host, blocks)?;
        self.finish_copies(&mut queue)?;
        merge(&mut host.bytes_mut()?)?;
        queue.copy_in(result, &host.window(0, result.shape().clone())?)?;
        self.host_copies = Some(queue);
        Ok(())
    }
}
