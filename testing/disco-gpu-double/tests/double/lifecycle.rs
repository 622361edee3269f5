//! Communicators of one process: calls in progress, and work that outlives the call that ends its communicator.

use std::ptr;
use std::sync::Barrier;
use std::thread;

use crate::common::child::alone;
use crate::common::{OK, Rank, at, on_ranks, ready, set, settle};
use disco_gpu_double::cuda::abi::Code as CudaCode;
use disco_gpu_double::cuda::exports::stream::cuStreamQuery;
use disco_gpu_double::nccl::abi::{Code, DataType, RedOp};
use disco_gpu_double::nccl::exports::collective::ncclAllReduce;
use disco_gpu_double::nccl::exports::communicator::{
    ncclCommAbort, ncclCommDestroy, ncclCommFinalize, ncclCommGetAsyncError,
};
use disco_gpu_double::nccl::exports::point_to_point::{ncclRecv, ncclSend};

const F32: DataType = DataType::F32;

fn reduce(rank: &Rank, pointer: u64) -> Code {
    let pair = at(pointer, 0);
    ncclAllReduce(pair, pair, 1, F32, RedOp::SUM, rank.comm, rank.stream)
}

#[test]
fn launches_of_a_communicator_that_does_not_block_are_in_progress() {
    alone(|| {
        // Since 2.22.3 all launches are; before, the launches that connect ranks are.
        for (version, later) in [(c"22203", Code::IN_PROGRESS), (c"22105", Code::SUCCESS)] {
            set(c"GPU_DOUBLE_NCCL_VERSION", version);
            on_ranks(2, false, |rank| {
                let pointer = rank.floats(&[rank.rank as f32]);
                for expected in [Code::IN_PROGRESS, later] {
                    let code = match rank.rank {
                        0 => ncclSend(at(pointer, 0), 1, F32, 1, rank.comm, rank.stream),
                        _ => ncclRecv(at(pointer, 0), 1, F32, 0, rank.comm, rank.stream),
                    };
                    assert_eq!(code, expected, "{version:?}");
                    ready(rank.comm);
                }
                assert_eq!((reduce(rank, pointer), rank.rank), (later, rank.rank));
                ready(rank.comm);
                assert_eq!(rank.read_floats(pointer, 1), [0.0]);
            });
        }
    });
}

#[test]
fn finalize_waits_for_no_other_rank_before_2_31() {
    alone(|| {
        let seen = Barrier::new(2);
        on_ranks(2, false, |rank| {
            if rank.rank == 1 {
                seen.wait();
            }
            assert_eq!(ncclCommFinalize(rank.comm), Code::IN_PROGRESS);
            ready(rank.comm);
            if rank.rank == 0 {
                seen.wait();
            }
            assert_eq!(ncclCommFinalize(rank.comm), Code::INVALID_ARGUMENT);
            let null = ptr::null_mut();
            assert_eq!(ncclAllReduce(null, null, 0, F32, RedOp::SUM, rank.comm, rank.stream), Code::INVALID_USAGE);
            assert_eq!(ncclCommDestroy(rank.comm), Code::SUCCESS);
            let mut error = Code::SUCCESS;
            assert_eq!(ncclCommGetAsyncError(rank.comm, Some(&mut error)), Code::INVALID_ARGUMENT);
        });
    });
}

#[test]
fn the_last_rank_to_destroy_waits_for_the_work_of_all() {
    alone(|| {
        let destroyed = Barrier::new(2);
        on_ranks(2, true, |rank| {
            let pointer = rank.floats(&[1.0]);
            if rank.rank == 1 {
                destroyed.wait();
            }
            assert_eq!([reduce(rank, pointer), ncclCommDestroy(rank.comm)], [Code::SUCCESS; 2]);
            if rank.rank == 0 {
                assert_eq!(cuStreamQuery(rank.stream), CudaCode::NOT_READY);
                destroyed.wait();
            }
            assert_eq!(rank.read_floats(pointer, 1), [2.0]);
        });
    });
}

/// In one process, kernels access each other's buffers.
#[test]
fn outputs_of_an_aborted_rank_are_written_to_until_its_peers_are_aborted() {
    alone(|| {
        let (came, aborted, filled) = (Barrier::new(2), Barrier::new(2), Barrier::new(2));
        on_ranks(3, true, |rank| {
            let pointer = rank.floats(&[1.0]);
            if rank.rank < 2 {
                assert_eq!(reduce(rank, pointer), Code::SUCCESS);
            }
            match rank.rank {
                0 => {
                    came.wait();
                    assert_eq!(ncclCommAbort(rank.comm), Code::SUCCESS);
                    rank.write(pointer, &[7; 4]);
                    filled.wait();
                    aborted.wait();
                    assert_ne!(rank.download(pointer, 4), [7; 4]);
                }
                1 => {
                    while cuStreamQuery(rank.stream) == OK {
                        thread::yield_now();
                    }
                    // This rank's kernel starts before the other rank's kernel ends.
                    settle();
                    came.wait();
                    filled.wait();
                    assert_eq!(ncclCommAbort(rank.comm), Code::SUCCESS);
                    rank.synchronize();
                    aborted.wait();
                }
                _ => assert_eq!(ncclCommAbort(rank.comm), Code::SUCCESS),
            }
        });
    });
}
