//! Collectives in steady state allocate nothing on the host.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use disco::{CommunicatorExt as _, DType, Op, Reduction, WorkerContext};

use crate::alone::{answers, connected};
use crate::on_the_double;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Counts the allocations of each thread. The double, a shared object, has its own allocator.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[allow(unsafe_code, reason = "an allocator")]
// SAFETY: every call is forwarded to the system allocator, which upholds the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter any more.
        _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the contract of the method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of the method.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Returns the number of allocations of 100 rounds, after a warm-up.
fn count(ctx: &mut WorkerContext) -> disco::Result<i64> {
    let mut tensor = || ctx.empty(DType::F32, [8]);
    let (a, b) = (tensor()?, tensor()?);
    let groups = [
        vec![Op::AllReduce { src: Some(a.clone()), dst: b.clone(), reduction: Reduction::Sum }],
        vec![
            Op::AllReduce { src: None, dst: a.clone(), reduction: Reduction::Max },
            Op::Broadcast { src: None, dst: b.clone(), root: 1.into() },
        ],
        vec![Op::AllToAll { src: None, dst: a.clone() }],
        vec![Op::AllToAll { src: Some(a.clone()), dst: b.clone() }],
        vec![Op::Send { src: a.clone(), to: 0.into() }, Op::Recv { dst: b.clone(), from: 0.into() }],
    ];
    let me = ctx.worker().index();
    let comm = ctx.comm()?;
    let mut rounds = |rounds: usize| {
        for _ in 0..rounds {
            for group in &groups[..4 + usize::from(me == 0)] {
                comm.enqueue(group)?;
            }
            comm.synchronize()?;
        }
        Ok::<_, disco::Error>(())
    };
    rounds(3)?;
    let before = ALLOCATIONS.get();
    rounds(100)?;
    Ok((ALLOCATIONS.get() - before) as i64)
}

/// Allocates once, to show that the counter counts.
fn control(ctx: &mut WorkerContext) -> disco::Result<i64> {
    // The first operation allocates what metrics are counted in.
    ctx.comm()?.barrier()?;
    let before = ALLOCATIONS.get();
    drop(vec![1u8; 100]);
    Ok((ALLOCATIONS.get() - before) as i64)
}

disco::register_function!("tests.nccl.count", count);
disco::register_function!("tests.nccl.control", control);

on_the_double!(collectives_in_steady_state_allocate_no_host_memory, [], {
    let session = connected(2);
    for (function, expected) in [("tests.nccl.control", 1), ("tests.nccl.count", 0)] {
        assert_eq!(answers::<i64>(&session, function, ()), [expected; 2]);
    }
});
