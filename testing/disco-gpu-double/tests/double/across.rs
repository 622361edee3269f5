//! A communicator with a rank in another process: refused calls, and the end of that process.

use crate::common::child::{self, Child, alone, to_bytes, to_text};
use crate::common::{Rank, async_error, at, failed, init, last_error, ready, set, settle, unique_id, use_device};
use disco_gpu_double::cuda::abi::Code as CudaCode;
use disco_gpu_double::cuda::exports::stream::cuStreamQuery;
use disco_gpu_double::nccl::abi::{Code, DataType, RedOp, UniqueId};
use disco_gpu_double::nccl::exports::collective::ncclAllReduce;
use disco_gpu_double::nccl::exports::communicator::ncclCommAbort;

const CHILD: &str = "across::child_that_is_rank_1";

/// A rank of two with a communicator that blocks.
fn rank(rank: usize, id: UniqueId) -> Rank {
    let stream = use_device(rank as i32);
    Rank { rank, comm: ready(init(id, 2, rank, true).1), stream }
}

fn reduce(rank: &Rank, pointer: u64, op: RedOp) -> Code {
    let pair = at(pointer, 0);
    ncclAllReduce(pair, pair, 1, DataType::F32, op, rank.comm, rank.stream)
}

/// Rank 1. The first request is the unique id, or "host" if this process is to make the id.
#[test]
fn child_that_is_rank_1() {
    if !child::is(CHILD) {
        return;
    }
    let mut requests = child::requests();
    let id = match requests.next().unwrap().as_str() {
        "host" => unique_id(),
        id => UniqueId { internal: to_bytes(id).try_into().unwrap() },
    };
    child::reply(&to_text(&id.internal));
    let own = rank(1, id);
    let pointer = own.floats(&[2.0]);
    for request in requests {
        let reply = match request.as_str() {
            "sum" => reduce(&own, pointer, RedOp::SUM).0.to_string(),
            "largest" => reduce(&own, pointer, RedOp::MAX).0.to_string(),
            "number" => own.read_floats(pointer, 1)[0].to_string(),
            "error" => failed(own.comm).0.to_string(),
            "text" => last_error(own.comm),
            other => panic!("{other}"),
        };
        child::reply(&reply);
    }
}

/// Rank 0 with a number, and the process of rank 1, after a sum. The process of `host` makes the unique id.
fn two_ranks(host: usize) -> (Rank, u64, Child) {
    let mut child = Child::start(CHILD);
    let request = if host == 0 { to_text(&unique_id().internal) } else { "host".to_owned() };
    let own = rank(0, UniqueId { internal: to_bytes(&child.ask(&request)).try_into().unwrap() });
    let pointer = own.floats(&[1.0]);
    child.send("sum");
    assert_eq!((reduce(&own, pointer, RedOp::SUM), child.reply().as_str()), (Code::SUCCESS, "0"));
    assert_eq!((own.read_floats(pointer, 1), child.ask("number").as_str()), (vec![3.0], "3"));
    (own, pointer, child)
}

#[test]
fn collectives_that_differ_fail_in_all_processes() {
    alone(|| {
        [0, 1].into_iter().for_each(|host| {
            let (own, pointer, mut child) = two_ranks(host);
            assert_eq!((reduce(&own, pointer, RedOp::SUM), child.ask("largest").as_str()), (Code::SUCCESS, "0"));
            assert_eq!(
                (failed(own.comm), child.ask("error")),
                (Code::INVALID_USAGE, Code::INVALID_USAGE.0.to_string())
            );
            let why = "ranks have called different collectives; rank 0: ncclAllReduce(1 of ncclFloat32, sum); rank 1: \
                   ncclAllReduce(1 of ncclFloat32, max)";
            assert_eq!((last_error(own.comm).as_str(), child.ask("text").as_str()), (why, why));
        });
    });
}

#[test]
fn work_waits_for_a_killed_process_until_an_abort() {
    alone(|| {
        [0, 1].into_iter().for_each(|host| {
            let (own, pointer, mut child) = two_ranks(host);
            assert_eq!(reduce(&own, pointer, RedOp::SUM), Code::SUCCESS);
            set(c"GPU_DOUBLE_REMOTE_ERRORS", c"0");
            child.kill();
            settle();
            assert_eq!((cuStreamQuery(own.stream), async_error(own.comm)), (CudaCode::NOT_READY, Code::SUCCESS));
            set(c"GPU_DOUBLE_REMOTE_ERRORS", c"1");
            assert_eq!(failed(own.comm), Code::REMOTE_ERROR);
            assert_eq!(ncclCommAbort(own.comm), Code::SUCCESS);
            own.synchronize();
        });
    });
}
