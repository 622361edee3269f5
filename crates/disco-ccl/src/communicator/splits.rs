//! Children of a communicator.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use disco_core::{Error, Result};

use super::Communicator;
use crate::init::Init;
use crate::shared_comm::SharedComm;
use crate::table::CommSplit;

/// `NCCL_SPLIT_NOCOLOR`
const NO_COLOR: c_int = -1;

impl Communicator {
    /// Implements [`disco_core::Communicator::split`].
    pub(super) fn split_by_color(&mut self, color: Option<u32>, key: i32) -> Result<Option<Self>> {
        self.check_unbroken(|| "split".into())?;
        self.runtime.refuse_in_capture("split", "split communicators before the capture")?;
        // A rank with an invalid color takes part as well, since the other ranks wait for it.
        let number = color.map_or(Ok(NO_COLOR), c_int::try_from);
        let child = self.split_off(&self.shared_comm.child(), number.unwrap_or(NO_COLOR), key)?;
        match number {
            Ok(_) => Ok(child),
            Err(_) => Err(Error::invalid("split: colors end at 2^31 - 1")),
        }
    }

    fn split_off(&mut self, shared_comm: &Arc<SharedComm>, color: c_int, key: i32) -> Result<Option<Self>> {
        self.count_operation();
        let split = self.attendance.split();
        let child = self.child(shared_comm, (split, color, key));
        child.inspect_err(|error| {
            // Once the parent's abort is over, the library can no longer write the child's communicator.
            if self.mark_broken(error) {
                _ = shared_comm.finish_creation();
                shared_comm.abort_and_wait(Vec::new());
            }
        })
    }

    fn child(&self, shared_comm: &Arc<SharedComm>, (split, color, key): (u64, c_int, c_int)) -> Result<Option<Self>> {
        let params = match self.library.table.comm_split {
            Some(comm_split) => self.split_by_library(comm_split, shared_comm, color, key)?,
            None => self.split_by_store(shared_comm, (split, color, key))?,
        };
        let Some((rank, size)) = params else { return Ok(None) };
        let attendance = self.attendance.child(color.cast_unsigned(), rank, size);
        let meeting = self.meeting.child(attendance.name().to_owned());
        let parts = (self.library, self.runtime.clone(), shared_comm.clone());
        let mut child = Self::new(parts, (rank, size), self.deadline, meeting, attendance)?;
        if let Some(fast_path) = &self.fast_path {
            child.find_fast_path(fast_path.vendor(), self.deadline)?;
        }
        Ok(Some(child))
    }

    /// Creates a child through the session's store, for libraries without `ncclCommSplit`. Returns this rank and the
    /// number of ranks in the child.
    fn split_by_store(
        &self,
        child: &SharedComm,
        (split, color, key): (u64, c_int, c_int),
    ) -> Result<Option<(usize, usize)>> {
        let (library, runtime, deadline) = (self.library, &self.runtime, self.deadline);
        let position = (self.rank.index(), self.size);
        let Some((rank, size, id)) = self.meeting.split(library, position, (split, color, key), deadline)? else {
            return Ok(None);
        };
        Init { library, runtime, shared_comm: child, id, rank, size, deadline, operation_deadline: deadline }.run()?;
        Ok(Some((rank, size)))
    }

    /// Creates a child by `ncclCommSplit`. Returns this rank and the number of ranks in the child.
    fn split_by_library(
        &self,
        comm_split: CommSplit,
        child: &SharedComm,
        color: c_int,
        key: c_int,
    ) -> Result<Option<(usize, usize)>> {
        let code = self.shared_comm.call(|_, comm| {
            // SAFETY: `call` keeps the parent alive, and `create` keeps the output pointer valid. A null configuration
            // means that of the parent.
            child.create(|_, output| unsafe { comm_split(comm, color, key, output, ptr::null_mut()) })
        });
        let code = code.map_err(|error| self.with_absent_ranks(error, || "split".into()))??;
        self.library.check_launched("ncclCommSplit", code)?;
        self.wait_settled(|| "split".into())?;
        if !child.finish_creation()? {
            return Ok(None);
        }
        child.inherit_blocking(&self.shared_comm);
        self.wait(|| "split".into(), || child.is_settled())?;
        child.rank_and_size().map(Some)
    }
}
