//! Sends and receives.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{c_int, c_void};

use super::communicate;
use crate::nccl::abi::{Code, CommHandle, DataType, Stream};
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
    communicate(Args { send: send.addr(), root: peer, ..Args::new(Kind::Send, count, dtype) }, comm, stream)
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
    communicate(Args { recv: recv.addr(), root: peer, ..Args::new(Kind::Recv, count, dtype) }, comm, stream)
}
