//! Kernels of ranks in two processes: rank 1 is a child process.

use std::ffi::CStr;

use crate::common::OK;
use crate::common::child::{self, Child, alone, to_bytes, to_text};
use crate::common::member::{Member, devices};
use disco_gpu_double::cuda::abi::{Code, IpcHandle};
use disco_gpu_double::cuda::exports::ipc::{cuIpcCloseMemHandle, cuIpcGetMemHandle, cuIpcOpenMemHandle_v2};

const CHILD: &str = "processes::child_that_is_rank_1";
/// Number of vectors of f32.
const COUNT: usize = 200;
const KERNELS: [&CStr; 3] = [c"disco_one_shot_f32", c"disco_two_shot_f32", c"disco_barrier"];

/// Rank 1. The first request has the handles of rank 0; each later request is the number of a kernel to launch.
#[test]
fn child_that_is_rank_1() {
    if !child::is(CHILD) {
        return;
    }
    devices();
    let mut own = Member::new(1, 2, COUNT);
    own.put(&input(1));
    child::reply(&export(&own));
    let mut requests = child::requests();
    open(&mut own, 0, &requests.next().unwrap());
    for request in requests {
        assert_eq!((launch(&own, request.parse().unwrap()), own.report()), (OK, 0));
        child::reply(&to_text(&own.output()));
        own.forget_output();
    }
}

/// Rank 0, and the child with rank 1; both have opened each other's memory.
fn two_ranks() -> (Member, Child) {
    let (mut own, mut child) = (Member::new(0, 2, COUNT), Child::start(CHILD));
    own.put(&input(0));
    open(&mut own, 1, &child.reply());
    child.send(&export(&own));
    (own, child)
}

fn launch(own: &Member, kernel: usize) -> Code {
    assert_eq!(own.launch(KERNELS[kernel], if kernel == 2 { 1 } else { 3 }, 32), OK);
    own.synchronize()
}

fn input(rank: usize) -> Vec<u8> {
    (0..4 * COUNT).flat_map(|i| ((1 + rank * 1000 + i) as f32).to_le_bytes()).collect()
}

/// The handles of the shared buffer and of the state, which peers access.
fn export(own: &Member) -> String {
    let handle = |pointer| {
        let mut handle = IpcHandle { reserved: [0; 64] };
        assert_eq!(cuIpcGetMemHandle(Some(&mut handle), pointer), OK);
        to_text(&handle.reserved)
    };
    handle(own.params.data[own.rank]) + &handle(own.params.state[own.rank])
}

fn open(own: &mut Member, peer: usize, exported: &str) {
    let handles = to_bytes(exported);
    let [data, state] = [0, 64].map(|at| {
        let (mut pointer, reserved) = (0, handles[at..at + 64].try_into().unwrap());
        assert_eq!(cuIpcOpenMemHandle_v2(Some(&mut pointer), IpcHandle { reserved }, 1), OK);
        pointer
    });
    (own.params.data[peer], own.params.state[peer]) = (data, state);
}

fn end(own: Member) {
    for pointer in [own.params.data[1], own.params.state[1]] {
        assert_eq!(cuIpcCloseMemHandle(pointer), OK);
    }
    own.end();
}

#[test]
fn two_processes_sum_their_inputs() {
    alone(|| {
        devices();
        let (own, mut child) = two_ranks();
        let sums: Vec<u8> = (0..4 * COUNT).flat_map(|i| ((2 + 1000 + 2 * i) as f32).to_le_bytes()).collect();
        for n in 0..12 {
            let kernel = n % 3;
            child.send(&kernel.to_string());
            assert_eq!((launch(&own, kernel), own.report()), (OK, 0));
            let answer = child.reply();
            if kernel < 2 {
                assert!(own.output() == sums && answer == to_text(&sums), "{:?}", KERNELS[kernel]);
                own.forget_output();
            }
        }
        end(own);
    });
}

#[test]
fn the_wait_for_a_killed_process_ends_at_the_timeout() {
    alone(|| {
        devices();
        let (mut own, mut child) = two_ranks();
        child.send("0");
        assert_eq!((launch(&own, 0), child.reply().len()), (OK, 2 * 16 * COUNT));
        child.kill();
        own.params.timeout_ns = 50_000_000;
        assert_eq!((launch(&own, 2), own.report()), (OK, 0x0104_0100));
        end(own);
    });
}

#[test]
fn the_abort_flag_ends_the_wait_for_a_killed_process() {
    alone(|| {
        devices();
        let (own, mut child) = two_ranks();
        assert_eq!(own.launch(KERNELS[1], 3, 32), OK);
        child.kill();
        own.abort();
        assert_eq!((own.synchronize(), own.report() & 0xffff_ff00), (OK, 0x0201_0100));
        end(own);
    });
}
