//! Memory freed while a peer's collective waits for this rank.

use std::thread;
use std::time::Duration;

use disco::nccl::cuda::Cuda;
use disco::nccl::disco_ccl::Queue;
use disco::{
    Builder, CommunicatorExt as _, DType, DeviceApi as _, DeviceKind, Reduction, Tensor, WorkerContext, block_on,
};
use disco_conformance::waiting::poll;

use crate::alone::without;
use crate::costs::{becomes, counts, end, threads};
use crate::on_the_double;
use crate::p2p::call;

const MIB: usize = 1 << 20;
/// Name of the thread that frees memory after the device has finished with it.
const REAPER_THREAD: &str = "disco-ccl-reap";
const SYNCHRONIZE_DEADLINE: Duration = Duration::from_secs(10);

/// Time in which the peer enters its collective and waits there, which this rank can't see.
fn let_the_peer_wait() {
    thread::sleep(Duration::from_millis(300));
}

/// All-reduces on two ranks; the first runs `work` while the other's collective waits for it.
fn sum_late(ctx: &mut WorkerContext, work: fn(&mut WorkerContext) -> disco::Result<()>) -> disco::Result<()> {
    let tensor = ctx.empty(DType::F32, [8])?;
    if ctx.worker().index() == 0 {
        let_the_peer_wait();
        work(ctx)?;
    }
    ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Sum)?;
    ctx.comm()?.synchronize()
}

/// Frees more device memory than the cache keeps.
fn free_tensors(ctx: &mut WorkerContext) -> disco::Result<()> {
    sum_late(ctx, |ctx| {
        for at in 0..5 {
            drop(ctx.empty(DType::U8, [(64 * MIB + 512 * at) as i64])?);
        }
        ctx.queue().synchronize(SYNCHRONIZE_DEADLINE)
    })
}

/// Runs copies that need much pinned memory.
fn copy_much(ctx: &mut WorkerContext) -> disco::Result<()> {
    sum_late(ctx, |ctx| {
        let device = ctx.empty(DType::U8, [(40 * MIB) as i64])?;
        let host = Tensor::zeros(DType::U8, [(40 * MIB) as i64])?;
        ctx.queue().copy_in(&device, &host)?;
        ctx.queue().copy_out(&host, &device)?;
        ctx.queue().synchronize(SYNCHRONIZE_DEADLINE)
    })
}

/// Drops a queue with its stream, tensors and pinned memory.
fn drop_a_queue(ctx: &mut WorkerContext) -> disco::Result<()> {
    sum_late(ctx, |ctx| {
        let mut queue = Cuda.bind(ctx.queue().device())?;
        let tensor = Tensor::from_storage(queue.alloc(8)?, DType::U8, [8])?;
        queue.copy_in(&tensor, &Tensor::zeros(DType::U8, [8])?)?;
        queue.synchronize(SYNCHRONIZE_DEADLINE)
    })
}

/// Frees many blocks of the library's memory while the stream waits for the peer in a collective.
fn free_blocks(ctx: &mut WorkerContext) -> disco::Result<()> {
    let tensor = ctx.empty(DType::F32, [8])?;
    // Connects the ranks: the next launch returns at once.
    ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Sum)?;
    ctx.comm()?.synchronize()?;
    if ctx.worker().index() == 0 {
        // The peer frees its blocks meanwhile.
        let_the_peer_wait();
        ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Sum)?;
        return ctx.comm()?.synchronize();
    }
    let blocks = (0..100).map(|_| disco::nccl::BACKEND.empty(ctx.queue(), DType::U8, [512]));
    let blocks = blocks.collect::<disco::Result<Vec<_>>>()?;
    let before = counts().allocations;
    ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Sum)?;
    drop(blocks);
    // Time in which blocks that don't wait for the stream would be freed.
    let freed = poll(Duration::from_millis(20), || (counts().allocations != before).then_some(()));
    assert_eq!((freed, threads(REAPER_THREAD)), (None, 1), "blocks that wait for the stream, and threads");
    ctx.comm()?.synchronize()
}

disco::register_function!("tests.nccl.free_blocks", free_blocks);
disco::register_function!("tests.nccl.free_tensors", free_tensors);
disco::register_function!("tests.nccl.copy_much", copy_much);
disco::register_function!("tests.nccl.drop_a_queue", drop_a_queue);

/// Calls a function on two workers with a collective deadline of 5 s.
pub(crate) fn run_on_two(function: &str) {
    let session = Builder::threads(2).collective_deadline(Duration::from_secs(5)).start().unwrap();
    block_on(async {
        session.init_ccl("nccl", &[]).await.unwrap();
        call(&session, function, ()).await.unwrap();
    });
    end(&session);
}

on_the_double!(freed_tensors_do_not_wait_for_a_peer_that_waits_for_this_rank, [], {
    run_on_two("tests.nccl.free_tensors");
});

on_the_double!(large_copies_do_not_wait_for_a_peer_that_waits_for_this_rank, [], {
    run_on_two("tests.nccl.copy_much");
});

on_the_double!(a_dropped_queue_does_not_wait_for_a_peer_that_waits_for_this_rank, [], {
    run_on_two("tests.nccl.drop_a_queue");
});

on_the_double!(one_background_thread_frees_blocks_after_their_stream_and_ends, [], {
    run_on_two("tests.nccl.free_blocks");
    becomes("background threads", || threads(REAPER_THREAD), 0);
});

/// Allocates tensors of similar sizes one after the other, and checks their contents.
fn allocate_many(ctx: &mut WorkerContext) -> disco::Result<()> {
    // The double counts allocations of the process.
    if ctx.worker().index() != 0 {
        return Ok(());
    }
    let runtime = Queue::of(ctx.queue(), DeviceKind::Cuda)?.runtime().clone();
    let (before, start) = (counts().allocations, runtime.memory());
    for at in 0..200 {
        drop(ctx.empty(DType::U8, [(8 * MIB + 512 * (at + 1)) as i64])?);
    }
    ctx.queue().synchronize(SYNCHRONIZE_DEADLINE)?;
    let then = runtime.memory();
    assert_eq!((then.in_use, then.allocations), (start.in_use, start.allocations + 200));
    assert!((8 * MIB..10 * MIB).contains(&(then.peak - start.in_use)), "{then:?}");
    assert!(then.reserved <= then.in_use + 18 * MIB, "one block serves all: {then:?}");
    let live = counts().allocations - before;
    assert_eq!(live, u64::from(!then.has_pool), "one block is kept where the driver has no pool");
    runtime.trim(0)?;
    assert_eq!(runtime.memory().reserved, runtime.memory().in_use);
    // A tensor from the cache.
    let large = ctx.empty(DType::U8, [(600 * MIB) as i64])?;
    drop(large);
    drop(ctx.empty(DType::U8, [(700 * MIB) as i64])?);
    let text = ctx.empty(DType::U8, [(2000 * MIB) as i64]).unwrap_err().to_string();
    assert!(text.starts_with("no room for 2097152000 bytes on cuda:"), "{text}");
    Ok(())
}

disco::register_function!("tests.nccl.allocate_many", allocate_many);

on_the_double!(allocations_of_similar_sizes_reuse_one_block, [], {
    run_on_two("tests.nccl.allocate_many");
});

on_the_double!(
    allocations_of_similar_sizes_reuse_one_block_without_pools,
    ["LD_LIBRARY_PATH" = &without("cuMemAllocFromPoolAsync")],
    {
        run_on_two("tests.nccl.allocate_many");
    }
);

on_the_double!(
    freed_tensors_do_not_wait_for_a_peer_without_pools,
    ["LD_LIBRARY_PATH" = &without("cuMemPoolCreate")],
    {
        run_on_two("tests.nccl.free_tensors");
        run_on_two("tests.nccl.drop_a_queue");
    }
);
