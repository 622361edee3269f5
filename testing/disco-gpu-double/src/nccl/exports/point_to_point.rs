//! Sends and receives.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_void};

use super::communicate;
use crate::nccl::abi::{Code, CommHandle, DataType, RedOp, Stream};
use crate::nccl::call::{Args, Kind};

/// `ncclSend(sendbuff, size_t count, datatype, int peer, comm, stream)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclSend(
    send: *const c_void,
    count: usize,
    dtype: DataType,
    peer: c_int,
    comm: CommHandle,
    stream: Stream,
) -> Code {
    let args = Args { kind: Kind::Send, send: send.addr(), recv: 0, count, dtype, op: RedOp::SUM, root: peer };
    communicate(args, comm, stream)
}

/// `ncclRecv(recvbuff, size_t count, datatype, int peer, comm, stream)`
#[unsafe(no_mangle)]
pub extern "C" fn ncclRecv(
    recv: *mut c_void,
    count: usize,
    dtype: DataType,
    peer: c_int,
    comm: CommHandle,
    stream: Stream,
) -> Code {
    let args = Args { kind: Kind::Recv, send: 0, recv: recv.addr(), count, dtype, op: RedOp::SUM, root: peer };
    communicate(args, comm, stream)
}
