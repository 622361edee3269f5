//! Aborts of calls and of work before the peers arrive, and their effects on memory.

use crate::common::child::alone;
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use crate::common::{
    OK, allocate, at, free, init, on_ranks, settle, this_thread, unique_id, use_device, wait_until, wait_until_blocked,
};
use disco_gpu_double::cuda::exports::stream::{cuStreamDestroy_v2, cuStreamQuery};
use disco_gpu_double::nccl::abi::{Code, DataType, RedOp};
use disco_gpu_double::nccl::exports::collective::ncclAllReduce;
use disco_gpu_double::nccl::exports::communicator::ncclCommAbort;
use disco_gpu_double::nccl::exports::group::{ncclGroupEnd, ncclGroupStart};

const F32: DataType = DataType::F32;

#[test]
fn an_abort_in_a_group_ends_the_wait_of_a_first_launch() {
    alone(|| {
        let id = unique_id();
        thread::scope(|scope| {
            for number in 0..2 {
                scope.spawn(move || {
                    let stream = use_device(number);
                    let (_, comm) = init(id, 2, number as usize, true);
                    if number == 1 {
                        assert_eq!(ncclCommAbort(comm), Code::SUCCESS);
                        return assert_eq!(cuStreamDestroy_v2(stream), OK);
                    }
                    let (known, has_left) = (comm.expose_provenance(), &AtomicBool::new(false));
                    let caller = this_thread();
                    thread::scope(|scope| {
                        let abort = scope.spawn(move || {
                            wait_until_blocked(&caller);
                            assert_eq!(ncclGroupStart(), Code::SUCCESS);
                            assert_eq!(ncclCommAbort(ptr::with_exposed_provenance_mut(known)), Code::SUCCESS);
                            wait_until(|| has_left.load(SeqCst).then_some(()));
                            assert_eq!(ncclGroupEnd(), Code::SUCCESS);
                        });
                        let pointer = allocate(4);
                        let pair = at(pointer, 0);
                        let code = ncclAllReduce(pair, pair, 1, F32, RedOp::SUM, comm, stream);
                        assert_eq!(code, Code::INTERNAL_ERROR);
                        has_left.store(true, SeqCst);
                        abort.join().unwrap();
                        free(pointer);
                    });
                    assert_eq!(cuStreamDestroy_v2(stream), OK);
                });
            }
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
            let pair = at(pointer, 0);
            if rank.rank < 2 {
                assert_eq!(ncclAllReduce(pair, pair, 1, F32, RedOp::SUM, rank.comm, rank.stream), Code::SUCCESS);
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
            rank.free(pointer);
        });
    });
}
