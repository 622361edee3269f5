//! MPI's own functions on its whole world, with nothing of this crate in between: what the benchmark compares with.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use disco_core::{DType, Result};

use crate::abi::{Abi, Constants};
use crate::library::{self, Installed, Mpi};

/// What is called.
#[allow(clippy::exhaustive_enums, reason = "for the benchmark alone")]
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// Sums of f32.
    AllReduce,
    /// Of bytes, from this rank.
    Broadcast(usize),
    /// Of bytes, among so many ranks.
    AllToAll(usize),
    /// Of bytes, to this rank.
    Send(usize),
    /// Of bytes, from this rank.
    Recv(usize),
}

/// Calls a function of the library on two tensors of `bytes` bytes each: the blocking one, or the other, which is looked at
/// until it is done. Sends are from `src`, broadcasts and receives to `dst`.
///
/// # Safety
/// MPI is initialised; both tensors have so many bytes.
///
/// # Errors
/// There is no MPI; its own.
pub unsafe fn call(call: Call, is_blocking: bool, src: *const u8, dst: *mut u8, bytes: usize) -> Result<()> {
    let tensors = (src.cast(), dst.cast(), bytes);
    library::with!(Mpi::get()?, mpi => mpi.call(call, is_blocking, tensors))
}

impl<A: Abi> Installed<A> {
    #[inline(always)]
    fn call(
        &self,
        call: Call,
        is_blocking: bool,
        (src, dst, bytes): (*const c_void, *mut c_void, usize),
    ) -> Result<()> {
        let Constants { comm_world: comm, byte, sum, numbers, mut request_null, .. } = self.constants;
        let (request, table, tag) = (&mut request_null, &self.table, 0);
        let float = numbers.get(DType::F32).unwrap_or(byte);
        let (count, floats) = (bytes as c_int, (bytes / 4) as c_int);
        let block = if let Call::AllToAll(ranks) = call { (bytes / ranks) as c_int } else { 0 };
        let status = self.status_ignore();
        #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one of them")]
        // SAFETY: as the caller promises.
        let code = unsafe {
            match (call, is_blocking) {
                (Call::AllReduce, true) => (table.allreduce)(src, dst, floats, float, sum, comm),
                (Call::AllReduce, false) => (table.iallreduce)(src, dst, floats, float, sum, comm, request),
                (Call::Broadcast(root), true) => (table.bcast)(dst, count, byte, root as c_int, comm),
                (Call::Broadcast(root), false) => (table.ibcast)(dst, count, byte, root as c_int, comm, request),
                (Call::AllToAll(_), true) => (table.alltoall)(src, block, byte, dst, block, byte, comm),
                (Call::AllToAll(_), false) => (table.ialltoall)(src, block, byte, dst, block, byte, comm, request),
                (Call::Send(to), true) => (table.send)(src, count, byte, to as c_int, tag, comm),
                (Call::Send(to), false) => (table.isend)(src, count, byte, to as c_int, tag, comm, request),
                (Call::Recv(from), true) => (table.recv)(dst, count, byte, from as c_int, tag, comm, status),
                (Call::Recv(from), false) => (table.irecv)(dst, count, byte, from as c_int, tag, comm, request),
            }
        };
        self.about.check("MPI", code)?;
        let mut done = c_int::from(is_blocking);
        while done == 0 {
            // SAFETY: the request was started; its tensors stay until it is done.
            let code = unsafe { (table.test)(request, &mut done, status) };
            self.about.check("MPI_Test", code)?;
        }
        Ok(())
    }
}
