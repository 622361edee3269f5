//! Checks which operations of a communicator can be captured.

use std::sync::Arc;

use disco_core::tensor::Storage;
use disco_core::{Error, Op, Result};

use crate::collective;
use crate::p2p::P2pFastPath;
use crate::runtime::{Graphs, Kept, Runtime};

/// The parts of a communicator that decide whether its operations can be captured.
pub(crate) struct CaptureCheck<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) graphs: &'a Arc<Graphs>,
    pub(crate) scratch: &'a Arc<Storage>,
    pub(crate) fast_path: Option<&'a P2pFastPath>,
}

impl CaptureCheck<'_> {
    /// Does nothing unless the stream is being captured. Refuses operations that can't be captured, and adds the memory
    /// of all others to the graph.
    ///
    /// # Errors
    /// [`Error::State`] with the reason.
    pub(crate) fn check(&self, ops: &[Op], is_scaled: bool) -> Result<()> {
        // If this query fails, the launch fails too, and reports the cause.
        if !self.runtime.is_capturing().unwrap_or(false) {
            return Ok(());
        }
        let refuse = |op: &Op, why: String| {
            let kind = op.kind();
            Err(Error::state(format!("{kind}: the stream is being captured; {why}")))
        };
        for op in ops {
            let (needed, there) = (collective::scratch(op), self.scratch.byte_len());
            if matches!(op, Op::Barrier) {
                return refuse(op, "a barrier makes the host wait, and a graph runs only after the capture".into());
            }
            if needed > there {
                return refuse(
                    op,
                    format!(
                        "the in-place form needs {needed} bytes of scratch memory, and the communicator has {there}: \
                         run the operation once before the capture"
                    ),
                );
            }
        }
        if let ([op], false, Some(fast_path)) = (ops, is_scaled, self.fast_path)
            && fast_path.needs_allocation(op)
        {
            let why = "the kernel needs tensors that start at a multiple of 16 bytes, and a capture can't allocate an \
                       aligned copy";
            return refuse(op, why.into());
        }
        let tensors = ops.iter().flat_map(|op| [op.src(), op.dst()]).flatten();
        let kept = tensors.map(|tensor| tensor.storage().clone() as Kept).chain([self.scratch.clone() as Kept]);
        self.runtime.record(kept.chain(self.fast_path.and_then(P2pFastPath::keeper)), self.graphs);
        Ok(())
    }
}
