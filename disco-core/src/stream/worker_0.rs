//! Copies of the controller's tensors to and from worker 0: by reference where it is a thread of this process, otherwise by
//! value.

use super::DRef;
use super::command_stream::CommandStream;
use super::large::Values;
use super::order::Order;
use super::reply_table::ReplyTable;
use crate::command::{Command, Local};
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::tensor::Tensor;
use crate::value::Value;

const WORKER_0: WorkerId = WorkerId::new(0);

impl CommandStream {
    /// Implements [`Session::copy_from_worker_0`](crate::session::Session::copy_from_worker_0).
    pub(crate) async fn copy_from_0(&self, host: &Tensor, from: &DRef) -> Result<()> {
        let command = Command::CopyFromWorker0 { register: from.register(), host: Local(Some(host.clone())) };
        if self.copy_by_reference("copy_from_worker_0", from, command).await? {
            return Ok(());
        }
        let question = self.question_of_get(from, WORKER_0)?;
        match self.ask_while(ReplyTable::check_lost, Values::SMALL, question, Self::value).await? {
            Value::Tensor(tensor) => host.copy_from(&tensor),
            _ => Err(Error::invalid(format!("copy_from_worker_0: {} holds no tensor", from.register()))),
        }
    }

    /// Implements [`Session::copy_to_worker_0`](crate::session::Session::copy_to_worker_0).
    pub(crate) async fn copy_to_0(&self, host: &Tensor, to: &DRef) -> Result<()> {
        let command = Command::CopyToWorker0 { register: to.register(), host: Local(Some(host.clone())) };
        if self.copy_by_reference("copy_to_worker_0", to, command).await? {
            return Ok(());
        }
        let value = host.clone().into();
        self.set_while("copy_to_worker_0", ReplyTable::check_lost, to, WORKER_0, value).await
    }

    /// Sends the command, which has a tensor of this process, if worker 0 can read it. Returns whether it can.
    async fn copy_by_reference(&self, operation: &str, handle: &DRef, command: Command) -> Result<bool> {
        self.freed_ids.check(handle)?;
        let copy = |order: &mut Order| {
            if order.lanes.pass_references_to_worker_0() {
                self.send(order, Values::SMALL, |_| Ok(command)).map(|()| true)
            } else {
                Ok(false)
            }
        };
        self.turn(operation, ReplyTable::check, copy).await
    }
}
