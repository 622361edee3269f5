//! The functions of the library. Functions of the oldest supported version (2.7) are required; functions of later
//! versions are optional.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use crate::abi::{Code, Comm, DataType, RedOp, Stream, UniqueId};
use crate::config::Config;

/// Memory that the library reads.
type In = *const c_void;
/// An array with one element for each rank.
type Counts = *const usize;
/// Memory that the library writes.
type Out = *mut c_void;

/// The type of [`Table::comm_split`].
pub(crate) type CommSplit = unsafe extern "C" fn(Comm, c_int, c_int, *mut Comm, *mut Config) -> Code;
/// The type of [`Table::comm_init_rank_config`].
pub(crate) type CommInitRankConfig = unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> Code;

disco_dl::functions! {
    /// The functions that the library exports.
    #[non_exhaustive]
    pub struct Table {
        /// `ncclGetVersion(int *version)`
        get_version: c"ncclGetVersion"(*mut c_int) -> Code;
        /// `ncclGetUniqueId(ncclUniqueId *id)`
        get_unique_id: c"ncclGetUniqueId"(*mut UniqueId) -> Code;
        /// `const char *ncclGetErrorString(ncclResult_t)`
        get_error_string: c"ncclGetErrorString"(Code) -> *const c_char;
        /// `ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)`
        comm_init_rank: c"ncclCommInitRank"(*mut Comm, c_int, UniqueId, c_int) -> Code;
        /// `ncclCommDestroy(ncclComm_t)`
        comm_destroy: c"ncclCommDestroy"(Comm) -> Code;
        /// `ncclCommAbort(ncclComm_t)`
        comm_abort: c"ncclCommAbort"(Comm) -> Code;
        /// `ncclCommGetAsyncError(ncclComm_t, ncclResult_t *error)`
        comm_get_async_error: c"ncclCommGetAsyncError"(Comm, *mut Code) -> Code;
        /// `ncclCommCount(ncclComm_t, int *ranks)`
        comm_count: c"ncclCommCount"(Comm, *mut c_int) -> Code;
        /// `ncclCommUserRank(ncclComm_t, int *rank)`
        comm_user_rank: c"ncclCommUserRank"(Comm, *mut c_int) -> Code;
        /// `ncclReduce(send, recv, size_t count, ncclDataType_t, ncclRedOp_t, int root, ncclComm_t, cudaStream_t)`
        reduce: c"ncclReduce"(In, Out, usize, DataType, RedOp, c_int, Comm, Stream) -> Code;
        /// `ncclBroadcast(send, recv, size_t count, ncclDataType_t, int root, ncclComm_t, cudaStream_t)`
        broadcast: c"ncclBroadcast"(In, Out, usize, DataType, c_int, Comm, Stream) -> Code;
        /// `ncclAllReduce(send, recv, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t)`
        all_reduce: c"ncclAllReduce"(In, Out, usize, DataType, RedOp, Comm, Stream) -> Code;
        /// `ncclReduceScatter(send, recv, size_t recvcount, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t)`
        reduce_scatter: c"ncclReduceScatter"(In, Out, usize, DataType, RedOp, Comm, Stream) -> Code;
        /// `ncclAllGather(send, recv, size_t sendcount, ncclDataType_t, ncclComm_t, cudaStream_t)`
        all_gather: c"ncclAllGather"(In, Out, usize, DataType, Comm, Stream) -> Code;
        /// `ncclSend(send, size_t count, ncclDataType_t, int peer, ncclComm_t, cudaStream_t)`
        send: c"ncclSend"(In, usize, DataType, c_int, Comm, Stream) -> Code;
        /// `ncclRecv(recv, size_t count, ncclDataType_t, int peer, ncclComm_t, cudaStream_t)`
        recv: c"ncclRecv"(Out, usize, DataType, c_int, Comm, Stream) -> Code;
        /// `ncclGroupStart()`
        group_start: c"ncclGroupStart"() -> Code;
        /// `ncclGroupEnd()`
        group_end: c"ncclGroupEnd"() -> Code;
    }
    optional {
        /// `const char *ncclGetLastError(ncclComm_t)`, since 2.13
        get_last_error: c"ncclGetLastError"(Comm) -> *const c_char;
        /// `ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *)`, since 2.14
        comm_init_rank_config: c"ncclCommInitRankConfig"(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> Code;
        /// `ncclCommFinalize(ncclComm_t)`, since 2.14
        comm_finalize: c"ncclCommFinalize"(Comm) -> Code;
        /// `ncclCommSplit(ncclComm_t, int color, int key, ncclComm_t *child, ncclConfig_t *)`, since 2.18
        comm_split: c"ncclCommSplit"(Comm, c_int, c_int, *mut Comm, *mut Config) -> Code;
        /// `ncclRedOpCreatePreMulSum(ncclRedOp_t *, void *factor, ncclDataType_t, ncclScalarResidence_t, ncclComm_t)`,
        /// since 2.11
        red_op_create_pre_mul_sum: c"ncclRedOpCreatePreMulSum"(*mut RedOp, *const c_void, DataType, c_int, Comm) -> Code;
        /// `ncclRedOpDestroy(ncclRedOp_t, ncclComm_t)`, since 2.11
        red_op_destroy: c"ncclRedOpDestroy"(RedOp, Comm) -> Code;
        /// `ncclMemAlloc(void **memory, size_t bytes)`, since 2.19
        mem_alloc: c"ncclMemAlloc"(*mut Out, usize) -> Code;
        /// `ncclMemFree(void *memory)`, since 2.19
        mem_free: c"ncclMemFree"(Out) -> Code;
        /// `ncclCommRegister(ncclComm_t, void *memory, size_t bytes, void **registration)`, since 2.19
        comm_register: c"ncclCommRegister"(Comm, Out, usize, *mut Out) -> Code;
        /// `ncclCommDeregister(ncclComm_t, void *registration)`, since 2.19
        comm_deregister: c"ncclCommDeregister"(Comm, Out) -> Code;
        /// `ncclAlltoAll(send, recv, size_t count, ncclDataType_t, ncclComm_t, cudaStream_t)`, since NCCL 2.28
        all_to_all: c"ncclAlltoAll"(In, Out, usize, DataType, Comm, Stream) -> Code;
        /// RCCL's spelling of `ncclAlltoAll`, with the same arguments.
        all_to_all_rccl: c"ncclAllToAll"(In, Out, usize, DataType, Comm, Stream) -> Code;
        /// `ncclAllToAllv(send, size_t sendcounts[], size_t sdispls[], recv, size_t recvcounts[], size_t rdispls[],
        /// ncclDataType_t, ncclComm_t, hipStream_t)`, of RCCL
        all_to_all_v: c"ncclAllToAllv"(In, Counts, Counts, Out, Counts, Counts, DataType, Comm, Stream) -> Code;
        /// `ncclGather(send, recv, size_t count, ncclDataType_t, int root, ncclComm_t, cudaStream_t)`, since 2.28
        gather: c"ncclGather"(In, Out, usize, DataType, c_int, Comm, Stream) -> Code;
        /// `ncclScatter(send, recv, size_t count, ncclDataType_t, int root, ncclComm_t, cudaStream_t)`, since 2.28
        scatter: c"ncclScatter"(In, Out, usize, DataType, c_int, Comm, Stream) -> Code;
    }
}
