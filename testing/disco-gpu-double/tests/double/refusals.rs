//! Calls that the double refuses, and that the real library may accept.

#![allow(unsafe_code, reason = "C functions")]

use std::ptr;
use std::sync::Barrier;
use std::thread;

use crate::common::child::alone;
use crate::common::{allocate, at, failed, init, last_error, on_ranks, ready, settled, unique_id, use_device};
use disco_gpu_double::nccl::abi::{Code, CommHandle, DataType, RedOp, UniqueId};
use disco_gpu_double::nccl::config::Config;
use disco_gpu_double::nccl::exports::collective::{
    ncclAllGather, ncclAllReduce, ncclAlltoAll, ncclBroadcast, ncclReduceScatter,
};
use disco_gpu_double::nccl::exports::communicator::{
    ncclCommAbort, ncclCommCount, ncclCommDeregister, ncclCommDestroy, ncclCommInitRank, ncclCommInitRankConfig,
    ncclCommRegister,
};
use disco_gpu_double::nccl::exports::group::{ncclGroupEnd, ncclGroupStart};
use disco_gpu_double::nccl::exports::point_to_point::{ncclRecv, ncclSend};

const NULL: CommHandle = ptr::null_mut();
const F32: DataType = DataType::F32;

#[test]
fn invalid_arguments_are_refused() {
    alone(|| {
        on_ranks(1, true, |rank| {
            let (pointer, comm, stream) = (allocate(64), rank.comm, rank.stream);
            let (a, b) = (at(pointer, 0), at(pointer, 32));
            let reduce = |recv, count, dtype, op| ncclAllReduce(a, recv, count, dtype, op, comm, stream);
            assert_eq!(reduce(b, 8, F32, RedOp::SUM), Code::SUCCESS);
            assert_eq!(reduce(b, 8, DataType(12), RedOp::SUM), Code::INVALID_ARGUMENT);
            assert_eq!(reduce(b, 8, F32, RedOp(5)), Code::INVALID_ARGUMENT);
            assert_eq!(reduce(b, 9, F32, RedOp::SUM), Code::INVALID_ARGUMENT, "it ends before that");
            assert_eq!(reduce(ptr::null_mut(), 8, F32, RedOp::SUM), Code::INVALID_ARGUMENT);
            assert_eq!(reduce(at(pointer, 4), 8, F32, RedOp::SUM), Code::INVALID_ARGUMENT);
            assert_eq!(last_error(NULL), "ncclAllReduce: the buffers overlap, but not as in-place buffers do");
            assert_eq!(ncclAlltoAll(a, a, 8, F32, comm, stream), Code::INVALID_ARGUMENT);
            assert_eq!(ncclBroadcast(a, b, 8, F32, 1, comm, stream), Code::INVALID_ARGUMENT);
            assert_eq!(ncclSend(a, 8, F32, 0, comm, stream), Code::INVALID_USAGE, "no rank receives the send");
            assert_eq!(ncclAllReduce(a, b, 8, F32, RedOp::SUM, comm, at(1000, 0)), Code::INVALID_ARGUMENT);
            assert_eq!(ncclAllReduce(a, b, 8, F32, RedOp::SUM, comm, at(2, 0)), Code::INVALID_ARGUMENT);
            let why = "ncclAllReduce: the per-thread default stream is another stream on the threads of the library";
            assert_eq!(last_error(NULL), why);
            assert_eq!(ncclAllReduce(a, b, 8, F32, RedOp::SUM, at(1000, 0), stream), Code::INVALID_ARGUMENT);
            assert_eq!(ncclGroupEnd(), Code::INVALID_USAGE);
            let mut handle = ptr::null_mut();
            assert_eq!(ncclCommRegister(comm, a, 64, Some(&mut handle)), Code::SUCCESS);
            assert_eq!(ncclCommDeregister(comm, handle), Code::SUCCESS);
            assert_eq!(ncclCommDeregister(comm, handle), Code::INVALID_ARGUMENT);
            assert_eq!(ncclCommRegister(comm, a, 65, Some(&mut handle)), Code::INVALID_ARGUMENT);
        });
    });
}

#[test]
fn overlapping_buffers_are_refused_except_in_place() {
    alone(|| {
        on_ranks(2, true, |rank| {
            let (pointer, comm, stream) = (allocate(64), rank.comm, rank.stream);
            let (own, other) = (at(pointer, 4 * rank.rank), at(pointer, 4 * (1 - rank.rank)));
            let start = at(pointer, 0);
            assert_eq!(ncclAllGather(other, start, 1, F32, comm, stream), Code::INVALID_ARGUMENT);
            assert_eq!(ncclReduceScatter(start, other, 1, F32, RedOp::SUM, comm, stream), Code::INVALID_ARGUMENT);
            assert_eq!(ncclAllGather(own, start, 1, F32, comm, stream), Code::SUCCESS);
            rank.synchronize();
        });
    });
}

#[test]
fn memory_of_another_device_is_refused() {
    alone(|| {
        on_ranks(2, true, |rank| {
            use_device(1 - rank.rank as i32);
            let pointer = allocate(4);
            let pair = at(pointer, 0);
            let code = ncclAllReduce(pair, pair, 1, F32, RedOp::SUM, rank.comm, rank.stream);
            assert_eq!(code, Code::INVALID_ARGUMENT);
        });
    });
}

#[test]
fn groups_whose_calls_access_the_same_memory_are_refused() {
    alone(|| {
        on_ranks(1, true, |rank| {
            let (pointer, comm, stream) = (allocate(64), rank.comm, rank.stream);
            let part = |at_bytes| at(pointer, at_bytes);
            let reduce = |from, to| {
                assert_eq!(ncclAllReduce(part(from), part(to), 2, F32, RedOp::SUM, comm, stream), Code::SUCCESS)
            };
            let group = |calls: &dyn Fn()| {
                assert_eq!(ncclGroupStart(), Code::SUCCESS);
                calls();
                ncclGroupEnd()
            };
            let apart = group(&|| (reduce(0, 8), reduce(16, 24), reduce(0, 32), reduce(40, 40)).0);
            assert_eq!(apart, Code::SUCCESS);
            for second in [(8, 16), (16, 8), (12, 24)] {
                let code = group(&|| (reduce(0, 8), reduce(second.0, second.1)).0);
                assert_eq!(code, Code::INVALID_USAGE, "{second:?}");
                assert!(
                    last_error(NULL).starts_with("buffers of one group overlap: ncclAllReduce("),
                    "{}",
                    last_error(NULL)
                );
            }
            let exchange = |from, to| {
                group(&|| {
                    assert_eq!(ncclSend(part(from), 2, F32, 0, comm, stream), Code::SUCCESS);
                    assert_eq!(ncclRecv(part(to), 2, F32, 0, comm, stream), Code::SUCCESS);
                })
            };
            assert_eq!(exchange(0, 4), Code::INVALID_ARGUMENT);
            assert_eq!(exchange(0, 8), Code::SUCCESS);
            let wrong = group(&|| {
                reduce(0, 8);
                assert_eq!(
                    ncclAllReduce(part(0), part(8), 2, DataType(99), RedOp::SUM, comm, stream),
                    Code::INVALID_ARGUMENT
                );
            });
            assert_eq!(wrong, Code::INVALID_ARGUMENT, "one is refused, and so are all");
            rank.synchronize();
        });
    });
}

#[test]
fn different_collectives_fail_on_all_ranks() {
    alone(|| {
        on_ranks(2, false, |rank| {
            let pointer = allocate(64);
            let (a, b) = (at(pointer, 0), at(pointer, 32));
            let op = if rank.rank == 0 { RedOp::SUM } else { RedOp::MAX };
            assert_eq!(ncclAllReduce(a, b, 2, F32, op, rank.comm, rank.stream), Code::IN_PROGRESS);
            assert_eq!(failed(rank.comm), Code::INVALID_USAGE);
            assert_eq!(
                last_error(rank.comm),
                "ranks have called different collectives; rank 0: ncclAllReduce(2 of ncclFloat32, sum); \
                 rank 1: ncclAllReduce(2 of ncclFloat32, max)"
            );
            rank.synchronize();
            assert_eq!(ncclAllReduce(a, b, 2, F32, op, rank.comm, rank.stream), Code::INVALID_USAGE);
        });
    });
}

#[test]
fn a_send_that_differs_from_its_receive_fails() {
    alone(|| {
        on_ranks(2, true, |rank| {
            let pointer = allocate(64);
            let code = match rank.rank {
                0 => ncclSend(at(pointer, 0), 2, F32, 1, rank.comm, rank.stream),
                _ => ncclRecv(at(pointer, 0), 3, F32, 0, rank.comm, rank.stream),
            };
            assert_eq!(code, Code::SUCCESS);
            assert_eq!(failed(rank.comm), Code::INVALID_USAGE);
            assert_eq!(
                last_error(rank.comm),
                "a send and its receive differ; rank 0: ncclSend(2 of ncclFloat32, to 1); \
                 rank 1: ncclRecv(3 of ncclFloat32, from 0)"
            );
            rank.synchronize();
        });
    });
}

#[test]
fn two_ranks_on_one_device_are_refused() {
    alone(|| {
        let id = unique_id();
        let run = |rank| {
            use_device(0);
            let (_, comm) = init(id, 2, rank, false);
            assert_eq!(settled(comm), Code::INVALID_USAGE);
            assert_eq!(last_error(comm), "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0");
            assert_eq!(ncclCommAbort(comm), Code::SUCCESS);
        };
        thread::scope(|scope| [0, 1].into_iter().for_each(|rank| drop(scope.spawn(move || run(rank)))));
    });
}

#[test]
fn foreign_and_used_unique_ids_are_refused() {
    alone(|| {
        use_device(0);
        let mut comm = NULL;
        let elsewhere = UniqueId { internal: [7; 128] };
        assert_eq!(ncclCommInitRank(Some(&mut comm), 1, elsewhere, 0), Code::INVALID_ARGUMENT);
        let id = unique_id();
        assert_eq!(ncclCommInitRank(Some(&mut comm), 1, id, 1), Code::INVALID_ARGUMENT);
        assert_eq!(ncclCommInitRank(Some(&mut comm), 1, id, 0), Code::SUCCESS);
        let mut second = NULL;
        assert_eq!(ncclCommInitRank(Some(&mut second), 1, id, 0), Code::INVALID_USAGE);
        assert_eq!(ncclCommDestroy(comm), Code::SUCCESS);
        assert_eq!(ncclCommDestroy(comm), Code::INVALID_ARGUMENT);
    });
}

#[test]
fn uninitialised_configurations_are_refused() {
    alone(|| {
        use_device(0);
        let id = unique_id();
        let begin = |config: Config| {
            let mut comm = NULL;
            // SAFETY: the sizes do not exceed the configuration, except for sizes that are refused before it is read.
            let code = unsafe { ncclCommInitRankConfig(Some(&mut comm), 1, id, 0, &config) };
            (code, comm)
        };
        let good = Config::initializer;
        let zeroed = Config { min_ctas: 0, ..good() };
        let wrong = [
            Config { magic: 0, ..good() },
            Config { size: 16, ..good() },
            Config { size: 0, ..good() },
            Config { size: 1 << 40, ..good() },
            Config { blocking: 2, ..good() },
            zeroed,
        ];
        for config in wrong {
            assert_eq!(begin(config), (Code::INVALID_ARGUMENT, NULL), "{config:?}");
        }
        // The configuration of 2.14 ends after `blocking`.
        let (code, comm) = begin(Config { size: 24, version: 21400, blocking: 0, ..zeroed });
        assert_eq!(code, Code::IN_PROGRESS);
        assert_eq!(ncclCommDestroy(ready(comm)), Code::SUCCESS);
    });
}

#[test]
fn calls_of_a_communicator_in_progress_are_refused() {
    alone(|| {
        let begun = Barrier::new(2);
        let id = unique_id();
        let run = |rank: usize| {
            use_device(rank as i32);
            if rank == 1 {
                begun.wait();
            }
            let (_, comm) = init(id, 2, rank, false);
            let mut count = 0;
            if rank == 0 {
                assert_eq!(ncclCommCount(comm, Some(&mut count)), Code::INVALID_ARGUMENT);
                assert!(last_error(NULL).starts_with("Attempt to use communicator"));
                begun.wait();
            }
            ready(comm);
            assert_eq!((ncclCommCount(comm, Some(&mut count)), count), (Code::SUCCESS, 2));
            assert_eq!(ncclCommDestroy(comm), Code::SUCCESS);
        };
        let run = &run;
        thread::scope(|scope| [0, 1].into_iter().for_each(|rank| drop(scope.spawn(move || run(rank)))));
    });
}
