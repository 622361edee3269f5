//! Collectives.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_void};

use super::communicate;
use crate::nccl::abi::{CommHandle, DataType, RedOp, Stream};
use crate::nccl::call::{Args, Kind};

/// Defines C functions with the parameters `(sendbuff, recvbuff, size_t count, datatype, comm, stream)`, and with those of
/// the row before the communicator.
macro_rules! collectives {
    ($($(#[$doc:meta])* $function:ident($($more:ident: $type:ty),*) => $kind:expr;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $function(
            send: *const c_void,
            recv: *mut c_void,
            count: usize,
            dtype: DataType,
            $($more: $type,)*
            comm: CommHandle,
            stream: Stream,
        ) -> $crate::nccl::abi::Code {
            let args = Args { send: send.addr(), recv: recv.addr(), ..Args::new($kind, count, dtype) };
            communicate(Args { $($more,)* ..args }, comm, stream)
        }
    )*};
}
pub(super) use collectives;

collectives! {
    /// `ncclAllReduce(sendbuff, recvbuff, size_t count, datatype, op, comm, stream)`
    ncclAllReduce(op: RedOp) => Kind::AllReduce;

    /// `ncclReduce(sendbuff, recvbuff, size_t count, datatype, op, int root, comm, stream)`
    ncclReduce(op: RedOp, root: c_int) => Kind::Reduce;

    /// `ncclReduceScatter(sendbuff, recvbuff, size_t recvcount, datatype, op, comm, stream)`
    ncclReduceScatter(op: RedOp) => Kind::ReduceScatter;

    /// `ncclAllGather(sendbuff, recvbuff, size_t sendcount, datatype, comm, stream)`
    ncclAllGather() => Kind::AllGather;

    /// `ncclBroadcast(sendbuff, recvbuff, size_t count, datatype, int root, comm, stream)`
    ncclBroadcast(root: c_int) => Kind::Broadcast;

    /// `ncclAlltoAll(sendbuff, recvbuff, size_t count, datatype, comm, stream)`
    ncclAlltoAll() => Kind::AlltoAll;

    /// `ncclGather(sendbuff, recvbuff, size_t count, datatype, int root, comm, stream)`
    ncclGather(root: c_int) => Kind::Gather;

    /// `ncclScatter(sendbuff, recvbuff, size_t count, datatype, int root, comm, stream)`
    ncclScatter(root: c_int) => Kind::Scatter;
}
