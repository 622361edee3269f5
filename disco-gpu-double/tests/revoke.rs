//! What ends calls and work of communicators before their peers come, and what is left of it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::ptr;
use std::sync::Barrier;
use std::thread;

use common::{OK, at, free, init, on_ranks, unique_id, use_device};
use disco_gpu_double::cuda::abi::Code as CudaCode;
use disco_gpu_double::cuda::exports::stream::{cuStreamDestroy_v2, cuStreamQuery};
use disco_gpu_double::nccl::abi::{Code, DataType, RedOp};
use disco_gpu_double::nccl::exports::collective::ncclAllReduce;
use disco_gpu_double::nccl::exports::communicator::{ncclCommAbort, ncclCommRevoke};

const F32: DataType = DataType::F32;

#[test]
fn a_first_launch_waits_for_those_of_the_peers_and_a_revoke_ends_its_wait() {
    let id = unique_id();
    thread::scope(|scope| {
        for number in 0..2 {
            scope.spawn(move || {
                let stream = use_device(number);
                let (_, comm) = init(id, 2, number as usize, true);
                if number == 0 {
                    let known = comm.expose_provenance();
                    let revoke = thread::spawn(move || ncclCommRevoke(ptr::with_exposed_provenance_mut(known), 0));
                    let pointer = common::allocate(4);
                    let reduce = || ncclAllReduce(at(pointer, 0), at(pointer, 0), 1, F32, RedOp::SUM, comm, stream);
                    // The revoke may come first.
                    assert!([Code::INTERNAL_ERROR, Code::INVALID_USAGE].contains(&reduce()));
                    assert_eq!(revoke.join().unwrap(), Code::SUCCESS);
                    assert_eq!(reduce(), Code::INVALID_USAGE, "it is good for nothing but its end");
                    assert_eq!(ncclCommRevoke(comm, 0), Code::INVALID_ARGUMENT, "it was revoked");
                    free(pointer);
                }
                assert_eq!(ncclCommAbort(comm), Code::SUCCESS);
                assert_eq!(cuStreamDestroy_v2(stream), OK);
            });
        }
    });
}

#[test]
fn a_revoke_ends_work_that_waits_for_a_peer() {
    on_ranks(2, true, |rank| {
        let pointer = rank.floats(&[1.0]);
        if rank.rank == 0 {
            let pair = at(pointer, 0);
            assert_eq!(ncclAllReduce(pair, pair, 1, F32, RedOp::SUM, rank.comm, rank.stream), Code::SUCCESS);
            assert_eq!(cuStreamQuery(rank.stream), CudaCode::NOT_READY);
            assert_eq!(ncclCommRevoke(rank.comm, 1), Code::INVALID_ARGUMENT, "there is no such flag");
            assert_eq!(ncclCommRevoke(rank.comm, 0), Code::SUCCESS);
            rank.synchronize();
        }
        free(pointer);
    });
}

/// As kernels of one process do, that have each other's buffers.
#[test]
fn outputs_of_an_aborted_rank_are_written_to_until_its_peers_are_aborted() {
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
                // Its kernel has begun when the other rank's ends.
                thread::sleep(std::time::Duration::from_millis(5));
                came.wait();
                filled.wait();
                assert_eq!(ncclCommAbort(rank.comm), Code::SUCCESS);
                rank.synchronize();
                aborted.wait();
            }
            _ => assert_eq!(ncclCommAbort(rank.comm), Code::SUCCESS),
        }
        free(pointer);
    });
}
