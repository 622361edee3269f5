//! Copies of the controller's tensors to and from worker 0: by reference where it is a thread of this process, otherwise by
//! value.

use super::large::Values;
use super::reply_table::ReplyTable;
use super::{DRef, LaneSession, Session as _};
use crate::command::{Command, Local};
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::tensor::Tensor;
use crate::value::Value;

const WORKER_0: WorkerId = WorkerId::new(0);

impl LaneSession {
    /// Implements [`Session::copy_from_worker_0`](super::Session::copy_from_worker_0).
    pub(super) async fn copy_from_0(&self, host: &Tensor, from: &DRef) -> Result<()> {
        self.freed_ids.check(from)?;
        if self.worker_0_is_remote() {
            self.check("copy_from_worker_0", ReplyTable::check)?;
            return match self.get(from, WORKER_0).await? {
                Value::Tensor(tensor) => host.copy_from(&tensor),
                _ => Err(Error::invalid(format!("copy_from_worker_0: {} holds no tensor", from.register()))),
            };
        }
        let command = Command::CopyFromWorker0 { register: from.register(), host: Local(Some(host.clone())) };
        let copy = |order: &mut _| self.send(order, Values::SMALL, |_| Ok(command));
        self.while_running(|| self.turn("copy_from_worker_0", ReplyTable::check, copy)).await
    }

    /// Implements [`Session::copy_to_worker_0`](super::Session::copy_to_worker_0).
    pub(super) async fn copy_to_0(&self, host: &Tensor, to: &DRef) -> Result<()> {
        self.freed_ids.check(to)?;
        if self.worker_0_is_remote() {
            self.check("copy_to_worker_0", ReplyTable::check)?;
            return self.set(to, WORKER_0, host.clone().into()).await;
        }
        let command = Command::CopyToWorker0 { register: to.register(), host: Local(Some(host.clone())) };
        let copy = |order: &mut _| self.send(order, Values::SMALL, |_| Ok(command));
        self.while_running(|| self.turn("copy_to_worker_0", ReplyTable::check, copy)).await
    }

    /// Whether worker 0 gets no tensors by reference, as in a subset. Workers of TVM's Disco are in other processes, but
    /// their lane copies.
    fn worker_0_is_remote(&self) -> bool {
        let lanes = self.lanes();
        let lane = lanes.owner(WORKER_0);
        lane.needs_bytes() && lane.runs_this_program()
    }
}
