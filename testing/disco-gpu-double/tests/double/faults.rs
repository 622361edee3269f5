//! Injected faults.

use crate::common::child::alone;
use std::ptr;
use std::sync::Barrier;
use std::thread;

use crate::common::{
    OK, async_error, at, failed, init, last_error, on_ranks, ready, set, settle, split, this_thread, unique_id,
    use_device, wait_until_blocked, with_faults,
};
use disco_gpu_double::cuda::abi::Code as CudaCode;
use disco_gpu_double::cuda::exports::memory::cuMemAlloc_v2;
use disco_gpu_double::cuda::exports::stream::cuStreamQuery;
use disco_gpu_double::hip::abi::Code as HipCode;
use disco_gpu_double::hip::exports::device::hipSetDevice;
use disco_gpu_double::hip::exports::event::{hipEventCreateWithFlags, hipEventDestroy};
use disco_gpu_double::hip::exports::memory::{hipFree, hipMalloc};
use disco_gpu_double::hip::exports::text::hipGetLastError;
use disco_gpu_double::nccl::abi::{Code, CommHandle, DataType, RedOp};
use disco_gpu_double::nccl::exports::collective::ncclAllReduce;
use disco_gpu_double::nccl::exports::communicator::{
    ncclCommAbort, ncclCommDestroy, ncclCommFinalize, ncclCommInitRank, ncclCommSplit,
};
use disco_gpu_double::nccl::exports::group::{ncclGroupEnd, ncclGroupStart};
use disco_gpu_double::nccl::exports::rccl::{ncclAllToAll, ncclAllToAllv};

fn reduce(rank: &crate::common::Rank, pointer: u64) -> Code {
    let pair = at(pointer, 0);
    ncclAllReduce(pair, pair, 1, DataType::F32, RedOp::SUM, rank.comm, rank.stream)
}

/// Aborts from another thread once this one is blocked.
fn abort_once_blocked(comm: CommHandle) -> thread::JoinHandle<Code> {
    let (comm, caller) = (comm.expose_provenance(), this_thread());
    thread::spawn(move || {
        wait_until_blocked(&caller);
        ncclCommAbort(ptr::with_exposed_provenance_mut(comm))
    })
}

#[test]
fn a_fault_with_a_code_fails_the_call() {
    alone(|| {
        with_faults(c"ncclAllReduce:1:2=3, cuMemAlloc_v2:0:3=2", || {
            on_ranks(2, true, |rank| {
                let pointer = rank.floats(&[1.0]);
                assert_eq!(reduce(rank, pointer), Code::SUCCESS);
                if rank.rank == 1 {
                    assert_eq!(reduce(rank, pointer), Code::INTERNAL_ERROR);
                    assert_eq!(last_error(ptr::null_mut()), "ncclAllReduce: injected fault");
                } else {
                    assert_eq!(cuMemAlloc_v2(Some(&mut 0), 1), CudaCode::OUT_OF_MEMORY);
                }
                assert_eq!(rank.read_floats(pointer, 1), [2.0]);
                rank.free(pointer);
            });
        });
    });
}

#[test]
fn an_async_fault_fails_work_when_the_stream_reaches_it() {
    alone(|| {
        with_faults(c"ncclAllReduce:0:1=async:6", || {
            on_ranks(2, true, |rank| {
                let pointer = rank.floats(&[1.0]);
                assert_eq!(reduce(rank, pointer), Code::SUCCESS);
                if rank.rank == 0 {
                    assert_eq!(failed(rank.comm), Code::REMOTE_ERROR);
                    assert_eq!(reduce(rank, pointer), Code::REMOTE_ERROR);
                }
                assert_eq!(cuStreamQuery(rank.stream), CudaCode::NOT_READY);
                assert_eq!(ncclCommAbort(rank.comm), Code::SUCCESS);
                // The contents of the other rank's output are unspecified.
                assert!(rank.rank == 1 || rank.read_floats(pointer, 1) == [1.0]);
                rank.free(pointer);
            });
        });
    });
}

#[test]
fn work_hangs_until_it_is_aborted() {
    alone(|| {
        with_faults(c"ncclGroupEnd:*:1=hang", || {
            on_ranks(2, true, |rank| {
                let pointer = rank.floats(&[1.0]);
                assert_eq!(ncclGroupStart(), Code::SUCCESS);
                assert_eq!(reduce(rank, pointer), Code::SUCCESS);
                assert_eq!(ncclGroupEnd(), Code::SUCCESS);
                settle();
                assert_eq!(cuStreamQuery(rank.stream), CudaCode::NOT_READY);
                assert_eq!(async_error(rank.comm), Code::SUCCESS);
                assert_eq!(ncclCommAbort(rank.comm), Code::SUCCESS);
                assert_eq!(rank.read_floats(pointer, 1), [1.0]);
                rank.free(pointer);
            });
        });
    });
}

#[test]
fn a_call_blocks_until_another_thread_aborts() {
    alone(|| {
        with_faults(c"ncclAllReduce:0:1=block", || {
            on_ranks(1, true, |rank| {
                let pointer = rank.floats(&[1.0]);
                let aborter = abort_once_blocked(rank.comm);
                assert_eq!(reduce(rank, pointer), Code::INTERNAL_ERROR);
                assert_eq!(aborter.join().unwrap(), Code::SUCCESS);
                rank.free(pointer);
            });
        });
    });
}

#[test]
fn faults_fail_functions_of_hip() {
    alone(|| {
        with_faults(c"hipSetDevice:1:2=101,hipMalloc:1:1=2,hipEventCreateWithFlags:1:2=3", || {
            let (mut pointer, mut event) = (ptr::null_mut(), ptr::null_mut());
            assert_eq!([hipSetDevice(0), hipSetDevice(1), hipSetDevice(1)], [HipCode(0), HipCode(0), HipCode(101)]);
            assert_eq!(hipMalloc(Some(&mut pointer), 8), HipCode(2));
            assert_eq!([hipMalloc(Some(&mut pointer), 8), hipFree(pointer)], [HipCode(0); 2]);
            assert_eq!(hipEventCreateWithFlags(Some(&mut event), 2), HipCode(0));
            assert_eq!(hipEventCreateWithFlags(Some(&mut ptr::null_mut()), 2), HipCode(3));
            assert_eq!([hipEventDestroy(event), hipGetLastError()], [HipCode(0), HipCode(3)]);
        });
    });
}

#[test]
fn faults_fail_functions_of_rccl() {
    alone(|| {
        with_faults(c"ncclAllToAll:0:1=2,ncclAllToAllv:0:1=3,ncclSend:0:1=5,ncclAllToAllv:0:4=async:6", || {
            on_ranks(1, true, |rank| {
                let pointer = rank.floats(&[1.0, 2.0]);
                let (send, recv, f32) = (at(pointer, 0), at(pointer, 4), DataType::F32);
                assert_eq!(ncclAllToAll(send, recv, 1, f32, rank.comm, rank.stream), Code::SYSTEM_ERROR);
                let (one, zero): (&usize, &usize) = (&1, &0);
                // SAFETY: each array has one element, for the one rank.
                let exchange =
                    || unsafe { ncclAllToAllv(send, one, zero, recv, one, zero, f32, rank.comm, rank.stream) };
                assert_eq!([(); 3].map(|()| exchange()), [Code::INTERNAL_ERROR, Code::INVALID_USAGE, Code::SUCCESS]);
                assert_eq!(rank.read_floats(pointer, 2), [1.0; 2]);
                assert_eq!(exchange(), Code::SUCCESS);
                assert_eq!(failed(rank.comm), Code::REMOTE_ERROR);
                assert_eq!(ncclCommAbort(rank.comm), Code::SUCCESS);
                rank.synchronize();
                rank.free(pointer);
            });
        });
    });
}

#[test]
fn faults_fail_the_init_of_communicators() {
    alone(|| {
        with_faults(
            c"ncclCommInitRank:0:1=2,ncclCommInitRankConfig:0:1=async:3,ncclCommInitRankConfig:0:2=hang",
            || {
                use_device(0);
                let mut comm = ptr::null_mut();
                assert_eq!(ncclCommInitRank(Some(&mut comm), 1, unique_id(), 0), Code::SYSTEM_ERROR);
                assert_eq!(comm, ptr::null_mut());
                let (_, comm) = init(unique_id(), 1, 0, false);
                assert_eq!(failed(comm), Code::INTERNAL_ERROR);
                assert_eq!(ncclCommAbort(comm), Code::SUCCESS);
                let (_, comm) = init(unique_id(), 1, 0, false);
                settle();
                assert_eq!(async_error(comm), Code::IN_PROGRESS);
                assert_eq!(ncclCommAbort(comm), Code::SUCCESS);
                let (_, comm) = init(unique_id(), 1, 0, true);
                assert_eq!(ncclCommDestroy(comm), Code::SUCCESS);
            },
        );
    });
}

#[test]
fn faults_fail_splits_and_the_end_of_communicators() {
    alone(|| {
        let rules = c"ncclCommSplit:0:1=5,ncclCommSplit:0:2=hang,ncclCommFinalize:0:1=async:2,ncclCommDestroy:0:1=1";
        with_faults(rules, || {
            use_device(0);
            let begin = || ready(init(unique_id(), 1, 0, false).1);
            let comm = begin();
            assert_eq!(split(comm, 0, 0), (Code::INVALID_USAGE, Code::SUCCESS, ptr::null_mut()));
            let mut child = ptr::null_mut();
            // SAFETY: the configuration is null, and the output is valid until the parent is aborted.
            let code = unsafe { ncclCommSplit(comm, 0, 0, Some(&mut child), ptr::null()) };
            assert_eq!(code, Code::IN_PROGRESS);
            settle();
            assert_eq!((async_error(comm), child), (Code::IN_PROGRESS, ptr::null_mut()));
            assert_eq!(ncclCommAbort(comm), Code::SUCCESS);
            let comm = begin();
            assert_eq!(ncclCommFinalize(comm), Code::IN_PROGRESS);
            assert_eq!(failed(comm), Code::SYSTEM_ERROR);
            assert_eq!(ncclCommAbort(comm), Code::SUCCESS);
            let comm = begin();
            assert_eq!(ncclCommDestroy(comm), Code::UNHANDLED_CUDA_ERROR);
            assert_eq!(ncclCommDestroy(comm), Code::SUCCESS);
        });
    });
}

#[test]
fn launches_of_collectives_are_in_progress_since_2_22_3() {
    alone(|| {
        with_faults(c"", || {
            for (version, expected) in [(c"22203", Code::IN_PROGRESS), (c"22105", Code::SUCCESS)] {
                set(c"GPU_DOUBLE_NCCL_VERSION", version);
                on_ranks(2, false, |rank| {
                    let pointer = rank.floats(&[1.0]);
                    for launch in 0..3 {
                        assert_eq!(reduce(rank, pointer), expected, "{version:?}, launch {launch}");
                        ready(rank.comm);
                    }
                    assert_eq!(rank.read_floats(pointer, 1), [8.0]);
                    rank.free(pointer);
                });
            }
            set(c"GPU_DOUBLE_NCCL_VERSION", c"22809");
        });
    });
}

#[test]
fn peers_get_a_remote_error_after_an_abort_if_enabled() {
    alone(|| {
        with_faults(c"", || {
            set(c"GPU_DOUBLE_REMOTE_ERRORS", c"1");
            let aborted = Barrier::new(2);
            on_ranks(2, true, |rank| {
                if rank.rank == 0 {
                    assert_eq!(ncclCommAbort(rank.comm), Code::SUCCESS);
                    aborted.wait();
                } else {
                    aborted.wait();
                    assert_eq!(failed(rank.comm), Code::REMOTE_ERROR);
                }
                assert_eq!(cuStreamQuery(rank.stream), OK);
            });
            set(c"GPU_DOUBLE_REMOTE_ERRORS", c"0");
        });
    });
}
