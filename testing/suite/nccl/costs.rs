//! Numbers of library calls per operation, and resources that are left afterwards.

use std::time::Duration;

use disco::{CommunicatorExt as _, DType, LaneSession, Op, Reduction, WorkerContext, block_on};
use disco_conformance::waiting::poll;
use disco_gpu_double::controls::Counts;

use crate::alone::{connected, session, works_again};
use crate::on_the_double;
use crate::p2p::call;

pub(crate) fn counts() -> Counts {
    counts_of("libcuda.so.1")
}

/// Counters of the double in the shared object `name`: the doubles of HIP and CUDA have their own.
fn counts_of(name: &str) -> Counts {
    #![allow(unsafe_code, reason = "a function of the test double")]
    let library = disco_dl::Library::open(&disco_dl::Candidate::file(name)).unwrap();
    let mut counts = Counts::default();
    // SAFETY: this is the signature of the function.
    let ask: unsafe extern "C" fn(*mut Counts) = unsafe { library.function(c"gpu_double_counts") }.unwrap();
    // SAFETY: `counts` is writable and has the layout of the double.
    unsafe { ask(&mut counts) };
    counts
}

/// Asserts that all resources are freed soon; much of it happens in the background. Only the double counts resources.
pub(crate) fn check_nothing_is_left() {
    check_nothing_is_left_of("libcuda.so.1");
}

/// Shuts a session down, and asserts that all resources are freed soon.
pub(crate) fn end(session: &LaneSession) {
    block_on(session.shutdown()).unwrap();
    check_nothing_is_left();
}

/// Asserts that all resources of the double in the shared object `name` are freed soon.
pub(crate) fn check_nothing_is_left_of(name: &str) {
    if crate::alone::on_gpus() {
        println!("skipped: the count of what is left on the devices: only the double counts");
        return;
    }
    let left = || {
        let Counts { comms, allocations, streams, opened, .. } = counts_of(name);
        (comms, allocations, streams, opened)
    };
    becomes("communicators, allocations, streams, opened memory", left, (0, 0, 0, 0));
}

/// Asserts that `found` returns `expected` within 10 s.
pub(crate) fn becomes<T: PartialEq + std::fmt::Debug>(what: &str, found: impl Fn() -> T, expected: T) {
    poll(Duration::from_secs(10), || (found() == expected).then_some(()));
    assert_eq!(found(), expected, "{what}");
}

/// Number of this process's threads with this name.
pub(crate) fn threads(name: &str) -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

/// Enqueues groups of several kinds, ten times each.
fn enqueue_groups(ctx: &mut WorkerContext) -> disco::Result<()> {
    let mut tensor = || ctx.empty(DType::F32, [8]);
    let (a, b, c, d) = (tensor()?, tensor()?, tensor()?, tensor()?);
    let (size, me) = (ctx.world().size(), ctx.worker().index());
    let peer = ((me + 1) % size, (me + size - 1) % size);
    let counts: std::sync::Arc<[usize]> = vec![8 / size; size].into();
    let reduce = |src: &disco::Tensor, dst: &disco::Tensor| Op::AllReduce {
        src: Some(src.clone()),
        dst: dst.clone(),
        reduction: Reduction::Sum,
    };
    let comm = ctx.comm()?;
    for _ in 0..10 {
        comm.enqueue(&[reduce(&a, &b)])?;
        comm.enqueue(&[reduce(&a, &b), reduce(&a, &c), reduce(&a, &d)])?;
        comm.enqueue(&[Op::AllToAllV {
            src: Some(a.clone()),
            send_counts: counts.clone(),
            dst: b.clone(),
            recv_counts: counts.clone(),
        }])?;
        comm.enqueue(&[
            Op::Send { src: a.clone(), to: (peer.0 as u32).into() },
            Op::Recv { dst: c.clone(), from: (peer.1 as u32).into() },
        ])?;
    }
    comm.synchronize()
}

/// Splits off a child communicator and drops it.
fn split(ctx: &mut WorkerContext) -> disco::Result<()> {
    let tensor = disco::nccl::BACKEND.empty(ctx.queue(), DType::F32, [8])?;
    let mut child = ctx.comm()?.split(Some(0), 0)?.unwrap();
    disco::nccl::extension(&mut *child)?.register(&tensor)?;
    child.all_reduce_in_place(&tensor, Reduction::Sum)
}

disco::register_function!("tests.nccl.enqueue_groups", enqueue_groups);
disco::register_function!("tests.nccl.split", split);

on_the_double!(a_group_of_operations_is_one_group_of_the_library, [], {
    let session = connected(2);
    block_on(async {
        let before = counts().units;
        call(&session, "tests.nccl.enqueue_groups", ()).await.unwrap();
        assert_eq!(counts().units - before, 2 * 10 * 4);
    });
});

on_the_double!(a_session_frees_all_device_resources, [], {
    for _ in 0..5 {
        let session = session(3);
        works_again(&session);
        block_on(async {
            session.call("tests.nccl.split", ()).await.unwrap();
            session.shutdown().await.unwrap();
        });
    }
    check_nothing_is_left();
});
