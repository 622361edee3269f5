//! Collectives.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_void};

use super::communicate;
use crate::nccl::abi::{Code, CommHandle, DataType, RedOp, Stream};
use crate::nccl::call::{Args, Kind};

/// `ncclAllReduce(sendbuff, recvbuff, size_t count, datatype, op, comm, stream)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclAllReduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: DataType,
    op: RedOp,
    comm: CommHandle,
    stream: Stream,
) -> Code {
    let (send, recv) = (send.addr(), recv.addr());
    communicate(Args { kind: Kind::AllReduce, send, recv, count, dtype, op, root: 0 }, comm, stream)
}

/// `ncclReduce(sendbuff, recvbuff, size_t count, datatype, op, int root, comm, stream)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclReduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: DataType,
    op: RedOp,
    root: c_int,
    comm: CommHandle,
    stream: Stream,
) -> Code {
    let (send, recv) = (send.addr(), recv.addr());
    communicate(Args { kind: Kind::Reduce, send, recv, count, dtype, op, root }, comm, stream)
}

/// `ncclReduceScatter(sendbuff, recvbuff, size_t recvcount, datatype, op, comm, stream)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclReduceScatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: DataType,
    op: RedOp,
    comm: CommHandle,
    stream: Stream,
) -> Code {
    let (send, recv) = (send.addr(), recv.addr());
    communicate(Args { kind: Kind::ReduceScatter, send, recv, count, dtype, op, root: 0 }, comm, stream)
}

/// `ncclAllGather(sendbuff, recvbuff, size_t sendcount, datatype, comm, stream)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclAllGather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: DataType,
    comm: CommHandle,
    stream: Stream,
) -> Code {
    moves(Kind::AllGather, (send, recv, count), dtype, 0, comm, stream)
}

/// `ncclBroadcast(sendbuff, recvbuff, size_t count, datatype, int root, comm, stream)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclBroadcast(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: DataType,
    root: c_int,
    comm: CommHandle,
    stream: Stream,
) -> Code {
    moves(Kind::Broadcast, (send, recv, count), dtype, root, comm, stream)
}

/// `ncclAlltoAll(sendbuff, recvbuff, size_t count, datatype, comm, stream)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclAlltoAll(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: DataType,
    comm: CommHandle,
    stream: Stream,
) -> Code {
    moves(Kind::AlltoAll, (send, recv, count), dtype, 0, comm, stream)
}

/// `ncclGather(sendbuff, recvbuff, size_t count, datatype, int root, comm, stream)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclGather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: DataType,
    root: c_int,
    comm: CommHandle,
    stream: Stream,
) -> Code {
    moves(Kind::Gather, (send, recv, count), dtype, root, comm, stream)
}

/// `ncclScatter(sendbuff, recvbuff, size_t count, datatype, int root, comm, stream)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclScatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: DataType,
    root: c_int,
    comm: CommHandle,
    stream: Stream,
) -> Code {
    moves(Kind::Scatter, (send, recv, count), dtype, root, comm, stream)
}

/// A collective without a reduction.
fn moves(
    kind: Kind,
    (send, recv, count): (*const c_void, *mut c_void, usize),
    dtype: DataType,
    root: c_int,
    comm: CommHandle,
    stream: Stream,
) -> Code {
    let (send, recv) = (send.addr(), recv.addr());
    communicate(Args { kind, send, recv, count, dtype, op: RedOp::SUM, root }, comm, stream)
}
