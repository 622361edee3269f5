//! Communicators from init to abort, groups, sends and receives, and background work.

use crate::common::child::alone;
use std::ptr;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use crate::common::{
    OK, TEST_TIMEOUT, allocate, async_error, at, free, init, last_error, new_stream, on_ranks, ready, set, share,
    split, unique_id, use_device,
};
use disco_gpu_double::controls::{Counts, gpu_double_counts};
use disco_gpu_double::cuda::abi::Code as CudaCode;
use disco_gpu_double::cuda::exports::stream::{cuStreamDestroy_v2, cuStreamQuery, cuStreamSynchronize};
use disco_gpu_double::nccl::abi::{Code, DataType, RedOp};
use disco_gpu_double::nccl::exports::collective::ncclAllReduce;
use disco_gpu_double::nccl::exports::communicator::{
    ncclCommAbort, ncclCommCount, ncclCommCuDevice, ncclCommDestroy, ncclCommFinalize, ncclCommGetAsyncError,
    ncclCommUserRank,
};
use disco_gpu_double::nccl::exports::group::{ncclGroupEnd, ncclGroupStart};
use disco_gpu_double::nccl::exports::point_to_point::{ncclRecv, ncclSend};

const F32: DataType = DataType::F32;

fn counts() -> Counts {
    let mut counts = Counts::default();
    gpu_double_counts(Some(&mut counts));
    counts
}

#[test]
fn tests_pass_with_ranks_in_two_processes() {
    alone(|| {
        let tests = [
            "lifecycle::sends_and_receives_of_a_group_progress_together",
            "lifecycle::a_group_ends_with_its_outermost_end",
            "lifecycle::sends_of_a_communicator_that_does_not_block_are_in_progress",
            "lifecycle::a_split_orders_ranks_by_key_and_omits_ranks_without_color",
        ];
        tests.into_iter().for_each(|test| share::passes_in_processes(test, 2));
    });
}

#[test]
fn sends_and_receives_of_a_group_progress_together() {
    alone(|| {
        on_ranks(3, true, |rank| {
            let next = (rank.rank + 1) % 3;
            let previous = (rank.rank + 2) % 3;
            let send = rank.floats(&[rank.rank as f32, 10.0 + rank.rank as f32]);
            let recv = rank.floats(&[-1.0; 3]);
            assert_eq!(ncclGroupStart(), Code::SUCCESS);
            assert_eq!(ncclRecv(at(recv, 0), 1, F32, previous as i32, rank.comm, rank.stream), Code::SUCCESS);
            assert_eq!(ncclRecv(at(recv, 4), 1, F32, previous as i32, rank.comm, rank.stream), Code::SUCCESS);
            assert_eq!(ncclRecv(at(recv, 8), 1, F32, rank.rank as i32, rank.comm, rank.stream), Code::SUCCESS);
            assert_eq!(ncclSend(at(send, 0), 1, F32, next as i32, rank.comm, rank.stream), Code::SUCCESS);
            assert_eq!(ncclSend(at(send, 4), 1, F32, next as i32, rank.comm, rank.stream), Code::SUCCESS);
            assert_eq!(ncclSend(at(send, 4), 1, F32, rank.rank as i32, rank.comm, rank.stream), Code::SUCCESS);
            assert_eq!(cuStreamQuery(rank.stream), OK, "nothing is launched before the end");
            assert_eq!(ncclGroupEnd(), Code::SUCCESS);
            let from = previous as f32;
            assert_eq!(rank.read_floats(recv, 3), [from, 10.0 + from, 10.0 + rank.rank as f32]);
            [send, recv].into_iter().for_each(free);
        });
    });
}

#[test]
fn a_group_ends_with_its_outermost_end() {
    alone(|| {
        on_ranks(2, true, |rank| {
            let pointer = rank.floats(&[1.0; 2]);
            let (a, b) = (at(pointer, 0), at(pointer, 4));
            assert_eq!(ncclGroupStart(), Code::SUCCESS);
            assert_eq!(ncclAllReduce(a, a, 1, F32, RedOp::SUM, rank.comm, rank.stream), Code::SUCCESS);
            assert_eq!(ncclGroupStart(), Code::SUCCESS);
            assert_eq!(ncclAllReduce(b, b, 1, F32, RedOp::AVG, rank.comm, rank.stream), Code::SUCCESS);
            assert_eq!(ncclGroupEnd(), Code::SUCCESS);
            assert_eq!(rank.read_floats(pointer, 2), [1.0, 1.0]);
            assert_eq!(ncclGroupEnd(), Code::SUCCESS);
            assert_eq!(rank.read_floats(pointer, 2), [2.0, 1.0]);
            rank.free(pointer);
        });
    });
}

#[test]
fn sends_of_a_communicator_that_does_not_block_are_in_progress() {
    alone(|| {
        on_ranks(2, false, |rank| {
            let pointer = rank.floats(&[rank.rank as f32]);
            for i in 0..2 {
                let code = match rank.rank {
                    0 => ncclSend(at(pointer, 0), 1, F32, 1, rank.comm, rank.stream),
                    _ => ncclRecv(at(pointer, 0), 1, F32, 0, rank.comm, rank.stream),
                };
                // Since 2.22.3 all other launches are in progress at first, too.
                assert_eq!(code, Code::IN_PROGRESS, "{i}");
                ready(rank.comm);
            }
            assert_eq!(rank.read_floats(pointer, 1), [0.0]);
            rank.free(pointer);
        });
    });
}

#[test]
fn work_of_one_communicator_on_two_streams_is_in_order() {
    alone(|| {
        let called = Barrier::new(2);
        on_ranks(2, true, |rank| {
            let pointer = rank.floats(&[3.0]);
            let (pair, other) = (at(pointer, 0), new_stream());
            if rank.rank == 1 {
                called.wait();
            }
            assert_eq!(ncclAllReduce(pair, pair, 1, F32, RedOp::SUM, rank.comm, rank.stream), Code::SUCCESS);
            assert_eq!(ncclAllReduce(pair, pair, 1, F32, RedOp::PROD, rank.comm, other), Code::SUCCESS);
            if rank.rank == 0 {
                called.wait();
            }
            assert_eq!(cuStreamSynchronize(other), OK);
            assert_eq!(rank.read_floats(pointer, 1), [36.0]);
            assert_eq!(cuStreamDestroy_v2(other), OK);
            rank.free(pointer);
        });
    });
}

#[test]
fn a_split_orders_ranks_by_key_and_omits_ranks_without_color() {
    alone(|| {
        for blocking in [true, false] {
            on_ranks(3, blocking, |rank| {
                let color = if rank.rank == 1 { -1 } else { 5 };
                let (code, came_to, child) = split(rank.comm, color, -(rank.rank as i32));
                assert_eq!(code, if blocking { Code::SUCCESS } else { Code::IN_PROGRESS });
                assert_eq!(came_to, Code::SUCCESS);
                if rank.rank == 1 {
                    assert_eq!(child, ptr::null_mut());
                    return;
                }
                ready(child);
                let (mut count, mut own, mut device) = (0, 0, 0);
                assert_eq!(ncclCommCount(child, Some(&mut count)), Code::SUCCESS);
                assert_eq!(ncclCommUserRank(child, Some(&mut own)), Code::SUCCESS);
                assert_eq!(ncclCommCuDevice(child, Some(&mut device)), Code::SUCCESS);
                assert_eq!((count, own, device), (2, if rank.rank == 0 { 1 } else { 0 }, rank.rank as i32));
                let pointer = rank.floats(&[rank.rank as f32 + 1.0]);
                let pair = at(pointer, 0);
                let code = ncclAllReduce(pair, pair, 1, F32, RedOp::SUM, child, rank.stream);
                assert_eq!(code, if blocking { Code::SUCCESS } else { Code::IN_PROGRESS });
                ready(child);
                assert_eq!(rank.read_floats(pointer, 1), [4.0]);
                rank.free(pointer);
                assert_eq!(ncclCommDestroy(child), Code::SUCCESS);
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
            let pair = at(pointer, 0);
            if rank.rank == 1 {
                destroyed.wait();
            }
            assert_eq!(ncclAllReduce(pair, pair, 1, F32, RedOp::SUM, rank.comm, rank.stream), Code::SUCCESS);
            assert_eq!(ncclCommDestroy(rank.comm), Code::SUCCESS);
            if rank.rank == 0 {
                assert_eq!(cuStreamQuery(rank.stream), CudaCode::NOT_READY);
                destroyed.wait();
                rank.synchronize();
            } else {
                // The stream counts completed work a little later than the library.
                while cuStreamQuery(rank.stream) == CudaCode::NOT_READY {
                    thread::yield_now();
                }
            }
            assert_eq!(rank.read_floats(pointer, 1), [2.0]);
            rank.free(pointer);
        });
    });
}

#[test]
fn an_abort_ends_waiting_work_and_the_stream_continues() {
    alone(|| {
        let aborted = Barrier::new(2);
        on_ranks(2, true, |rank| {
            let pointer = rank.floats(&[rank.rank as f32]);
            let pair = at(pointer, 0);
            if rank.rank == 0 {
                assert_eq!(ncclAllReduce(pair, pair, 1, F32, RedOp::SUM, rank.comm, rank.stream), Code::SUCCESS);
            }
            let comm = rank.comm.expose_provenance();
            if rank.rank == 0 {
                aborted.wait();
                assert_eq!(async_error(rank.comm), Code::SUCCESS, "an abort is not told");
                assert_eq!(cuStreamQuery(rank.stream), CudaCode::NOT_READY);
            }
            let abort = move || ncclCommAbort(ptr::with_exposed_provenance_mut(comm));
            assert_eq!(thread::spawn(abort).join().unwrap(), Code::SUCCESS);
            if rank.rank == 1 {
                aborted.wait();
            }
            assert_eq!(ncclCommAbort(rank.comm), Code::INVALID_ARGUMENT);
            // The contents of the collective's output are unspecified.
            assert_eq!(rank.read_floats(pointer, 1) == [1.0], rank.rank == 1);
            rank.free(pointer);
        });
    });
}

#[test]
fn an_abort_ends_a_wait_for_ranks_that_never_come() {
    alone(|| {
        let stream = use_device(0);
        let (_, comm) = init(unique_id(), 2, 0, false);
        assert_eq!(async_error(comm), Code::IN_PROGRESS);
        assert_eq!(ncclCommDestroy(comm), Code::INVALID_ARGUMENT);
        assert!(last_error(ptr::null_mut()).starts_with("Attempt to use communicator"));
        let start = Instant::now();
        assert_eq!(ncclCommAbort(comm), Code::SUCCESS);
        assert!(start.elapsed() < TEST_TIMEOUT);
        assert_eq!(cuStreamDestroy_v2(stream), OK);
    });
}

/// Other tests run in parallel and launch units too, so the counter grows by at least the expected number.
#[test]
fn calls_of_a_group_are_one_unit() {
    alone(|| {
        on_ranks(1, true, |rank| {
            let pointer = allocate(400);
            let before = counts();
            assert_eq!(ncclGroupStart(), Code::SUCCESS);
            for i in 0..100 {
                let pair = at(pointer, 4 * i);
                assert_eq!(ncclAllReduce(pair, pair, 1, F32, RedOp::SUM, rank.comm, rank.stream), Code::SUCCESS);
            }
            assert_eq!(ncclGroupEnd(), Code::SUCCESS);
            let after = counts();
            assert!(after.calls >= before.calls + 100 && after.comms >= 1);
            assert!(after.units > before.units && after.units < before.units + 100);
            rank.synchronize();
            rank.free(pointer);
        });
    });
}

#[test]
fn work_takes_at_least_the_configured_delay() {
    alone(|| {
        on_ranks(1, true, |rank| {
            let pointer = allocate(4);
            set(c"GPU_DOUBLE_DELAY_US", c"20000");
            let start = Instant::now();
            let pair = at(pointer, 0);
            assert_eq!(ncclAllReduce(pair, pair, 1, F32, RedOp::SUM, rank.comm, rank.stream), Code::SUCCESS);
            assert_eq!(cuStreamQuery(rank.stream), CudaCode::NOT_READY);
            rank.synchronize();
            assert!(start.elapsed().as_millis() >= 20);
            set(c"GPU_DOUBLE_DELAY_US", c"0");
            rank.free(pointer);
        });
    });
}
