//! Direct calls of MPI on its whole world, as the baseline of the benchmark.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use disco_core::{DType, Result};

use crate::abi::{Abi, Constants};
use crate::library::{self, Installed, Mpi};

/// A call of MPI.
#[allow(clippy::exhaustive_enums, reason = "only the benchmark uses it")]
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// All-reduce: the sum of f32.
    AllReduce,
    /// Broadcast of bytes from this rank.
    Broadcast(usize),
    /// All-to-all of bytes among this number of ranks.
    AllToAll(usize),
    /// Send of bytes to this rank.
    Send(usize),
    /// Receive of bytes from this rank.
    Recv(usize),
}

/// Calls a function of MPI on two buffers of `bytes` bytes each. The call is blocking, or non-blocking and polled until
/// it is done. Sends read `src`; broadcasts and receives write to `dst`.
///
/// # Safety
/// MPI is initialised, and both buffers have `bytes` bytes.
///
/// # Errors
/// No MPI library was found; errors of MPI.
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
        #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one of them runs")]
        // SAFETY: the caller guarantees that MPI is initialised and that both buffers have `bytes` bytes.
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
            // SAFETY: the request was started, and its buffers outlive it.
            let code = unsafe { (table.test)(request, &mut done, status) };
            self.about.check("MPI_Test", code)?;
        }
        Ok(())
    }
}
