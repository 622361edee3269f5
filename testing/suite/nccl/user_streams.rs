//! Streams and memory of the program beside the worker's stream: fences, lent memory, and default streams.

#![allow(unsafe_code)]

use std::sync::Arc;

use disco::nccl::cuda::{Cuda, WorkerStream, keep_pool_memory, unused_pool_memory};
use disco::nccl::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, result, sys};
use disco::{
    CommunicatorExt as _, DType, Device, DeviceApi as _, DeviceKind, Error, Reduction, Tensor, WorkerContext, block_on,
};

use crate::alone::{answers, connected, synchronize, text, to_host, works_again};
use crate::costs::end;
use crate::memory::run_on_two;
use crate::p2p::call;
use crate::{on_the_double, on_the_double_or_a_gpu};

const LEN: usize = 64;
const ROUNDS: usize = 300;
/// Writes of the program's stream before it writes the input of a round.
const STALE_WRITES: usize = 4;

/// Kinds of streams: the per-thread default stream, the legacy default stream, and a created stream.
const PER_THREAD: i64 = 0;
const LEGACY: i64 = 1;
const CREATED: i64 = 2;

/// A stream of the program on the worker's device.
fn own_stream(ctx: &WorkerContext, kind: i64) -> disco::Result<Arc<CudaStream>> {
    let context = CudaContext::new(ctx.device().ordinal as usize).unwrap();
    Ok(match kind {
        PER_THREAD => context.per_thread_stream(),
        LEGACY => context.default_stream(),
        _ => context.new_stream().unwrap(),
    })
}

/// The input of a rank in a round, in whole numbers.
fn input(rank: usize, round: usize) -> Vec<f32> {
    (0..LEN).map(|at| ((rank + 1) * (round % 97 + at)) as f32).collect()
}

/// The sum of the inputs of all ranks, computed on the host.
fn expected(ranks: usize, round: usize) -> Vec<f32> {
    (0..LEN).map(|at| (0..ranks).map(|rank| input(rank, round)[at]).sum()).collect()
}

/// Writes the input of a round, late: other elements are there first.
fn write_late(stream: &Arc<CudaStream>, slice: &mut CudaSlice<f32>, input: &[f32]) {
    for _ in 0..STALE_WRITES {
        stream.memcpy_htod(&[-1.0f32; LEN], slice).unwrap();
    }
    stream.memcpy_htod(input, slice).unwrap();
}

/// Sums memory of the program in place, each round after a late write and before a copy on the program's stream.
fn lend(ctx: &mut WorkerContext, kind: i64) -> disco::Result<()> {
    let (rank, ranks) = (ctx.worker().index(), ctx.world().size());
    let (worker, stream) = (WorkerStream::of(ctx.queue())?, own_stream(ctx, kind)?);
    let mut slice = stream.alloc_zeros::<f32>(LEN).unwrap();
    let mut copy = stream.alloc_zeros::<f32>(LEN).unwrap();
    let address = slice.device_ptr(&stream).0;
    for round in 0..ROUNDS {
        write_late(&stream, &mut slice, &input(rank, round));
        worker.lend(&mut slice, &stream, |tensor| {
            assert_eq!((tensor.data().addr() as u64, tensor.dtype(), tensor.dims()), (address, DType::F32, vec![LEN]));
            ctx.comm()?.all_reduce_in_place(tensor, Reduction::Sum)
        })?;
        stream.memcpy_dtod(&slice, &mut copy).unwrap();
        // The next write may not overtake the collective either.
        write_late(&stream, &mut slice, &[-2.0; LEN]);
        assert_eq!(stream.clone_dtoh(&copy).unwrap(), expected(ranks, round), "round {round}");
    }
    assert_eq!(slice.device_ptr(&stream).0, address, "the program keeps its memory");
    Ok(())
}

/// Sums a tensor of the worker that the program's stream fills and reads, with some of the fences. Returns the number of
/// rounds with a wrong result.
fn sum_with_fences(ctx: &mut WorkerContext, from: bool, to: bool) -> disco::Result<i64> {
    let (rank, ranks) = (ctx.worker().index(), ctx.world().size());
    let (worker, stream) = (WorkerStream::of(ctx.queue())?, own_stream(ctx, PER_THREAD)?);
    let tensor = ctx.empty(DType::F32, [LEN as i64])?;
    synchronize(ctx)?;
    let (mut slice, address) = (stream.alloc_zeros::<f32>(LEN).unwrap(), tensor.data().addr() as sys::CUdeviceptr);
    let pointer = slice.device_ptr(&stream).0;
    let copy = |dst, src| {
        // SAFETY: both ranges have `LEN` elements and live until the stream has made the copy, for which each round
        // waits.
        unsafe { result::memcpy_dtod_async(dst, src, LEN * size_of::<f32>(), stream.cu_stream()) }.unwrap();
    };
    let mut wrong = 0;
    for round in 0..ROUNDS {
        write_late(&stream, &mut slice, &input(rank, round));
        copy(address, pointer);
        if from {
            worker.fence_from(&stream)?;
        }
        ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Sum)?;
        if to {
            worker.fence_to(&stream)?;
        }
        copy(pointer, address);
        wrong += i64::from(stream.clone_dtoh(&slice).unwrap() != expected(ranks, round));
        ctx.comm()?.synchronize()?;
    }
    Ok(wrong)
}

disco::register_function!("tests.nccl.lend", lend);
disco::register_function!("tests.nccl.sum_with_fences", sum_with_fences);

fn lend_on_two_ranks(kind: i64) {
    let session = connected(2);
    block_on(call(&session, "tests.nccl.lend", (kind,))).unwrap();
    end(&session);
}

on_the_double_or_a_gpu!(
    lent_memory_of_a_per_thread_default_stream_is_summed_in_each_round,
    ["GPU_DOUBLE_DELAY_US" = "20"],
    { lend_on_two_ranks(PER_THREAD) }
);

on_the_double_or_a_gpu!(
    lent_memory_of_the_legacy_default_stream_is_summed_in_each_round,
    ["GPU_DOUBLE_DELAY_US" = "20"],
    { lend_on_two_ranks(LEGACY) }
);

on_the_double_or_a_gpu!(lent_memory_of_a_created_stream_is_summed_in_each_round, ["GPU_DOUBLE_DELAY_US" = "20"], {
    lend_on_two_ranks(CREATED)
});

/// The rounds with a wrong result on each of two ranks.
fn wrong_rounds(from: bool, to: bool) -> Vec<i64> {
    answers(&connected(2), "tests.nccl.sum_with_fences", (from, to))
}

on_the_double!(fences_both_ways_order_the_streams_and_either_is_needed, ["GPU_DOUBLE_DELAY_US" = "20"], {
    assert_eq!(wrong_rounds(true, true), [0, 0]);
    for (from, to) in [(false, true), (true, false)] {
        let wrong = wrong_rounds(from, to);
        println!("fence_from {from}, fence_to {to}: {wrong:?} of {ROUNDS} rounds are wrong");
        assert!(wrong.iter().all(|wrong| *wrong > 0), "fence_from {from}, fence_to {to}: {wrong:?}");
    }
});

/// Lends memory to a collective that the other rank never joins.
fn lend_alone(ctx: &mut WorkerContext) -> disco::Result<()> {
    if ctx.worker().index() == 1 {
        return Ok(());
    }
    let (worker, stream) = (WorkerStream::of(ctx.queue())?, own_stream(ctx, PER_THREAD)?);
    let mut slice = stream.clone_htod(&[1.0f32; LEN]).unwrap();
    let address = slice.device_ptr(&stream).0;
    worker.lend(&mut slice, &stream, |tensor| ctx.comm()?.all_reduce_in_place(tensor, Reduction::Sum))?;
    let mut copy = stream.alloc_zeros::<f32>(LEN).unwrap();
    stream.memcpy_dtod(&slice, &mut copy).unwrap();
    assert!(matches!(ctx.comm()?.synchronize(), Err(Error::Deadline { .. })), "the other rank does not join");
    // The abort ends the collective, and with it the wait of the program's stream.
    stream.synchronize().unwrap();
    let sum = |tensor: &Tensor| ctx.comm()?.all_reduce_in_place(tensor, Reduction::Sum);
    let refused = worker.lend(&mut slice, &stream, sum);
    assert!(matches!(refused, Err(Error::Broken { .. })), "{refused:?}");
    // The other rank has not ended its communicator, so this rank's memory is not reused.
    assert!(slice.len() == LEN && slice.device_ptr(&stream).0 != address, "the program has other memory");
    stream.memcpy_htod(&[3.0f32; LEN], &mut slice).unwrap();
    assert_eq!(stream.clone_dtoh(&slice).unwrap(), [3.0; LEN]);
    Ok(())
}

disco::register_function!("tests.nccl.lend_alone", lend_alone);

on_the_double!(an_abort_ends_the_wait_of_the_programs_stream_and_replaces_memory_that_peers_may_write, [], {
    let session = connected(2);
    block_on(async {
        // The ranks connect first: the first launch waits for the other rank.
        call(&session, "tests.nccl.lend", (CREATED,)).await.unwrap();
        let broken = text(call(&session, "tests.nccl.lend_alone", ()).await);
        assert!(broken.contains("rank 1 has not arrived"), "the function itself has succeeded: {broken}");
    });
    works_again(&session);
    end(&session);
});

/// Lends memory of the device's pool, which the peer's device can't access before.
fn lend_from_pool(ctx: &mut WorkerContext) -> disco::Result<()> {
    let (worker, stream) = (WorkerStream::of(ctx.queue())?, own_stream(ctx, CREATED)?);
    // SAFETY: the memory is written before it is read.
    let pointer = unsafe { result::malloc_async(stream.cu_stream(), LEN * size_of::<f32>()) }.unwrap();
    // SAFETY: the allocation has `LEN` elements, and the slice is leaked below.
    let mut slice = unsafe { stream.upgrade_device_ptr::<f32>(pointer, LEN) };
    stream.memcpy_htod(&[1.0; LEN], &mut slice).unwrap();
    worker.lend(&mut slice, &stream, |tensor| ctx.comm()?.all_reduce_in_place(tensor, Reduction::Sum))?;
    assert_eq!(stream.clone_dtoh(&slice).unwrap(), [2.0; LEN]);
    // SAFETY: nothing uses the memory any more.
    unsafe { result::free_async(slice.leak(), stream.cu_stream()) }.unwrap();
    ctx.comm()?.synchronize()
}

disco::register_function!("tests.nccl.lend_from_pool", lend_from_pool);

on_the_double_or_a_gpu!(lent_memory_of_the_devices_pool_is_opened_to_peers, [], {
    run_on_two("tests.nccl.lend_from_pool");
});

/// Keeps a clone of a lent tensor.
fn keep(ctx: &mut WorkerContext) -> disco::Result<()> {
    let (worker, stream) = (WorkerStream::of(ctx.queue())?, own_stream(ctx, PER_THREAD)?);
    let mut slice = stream.clone_htod(&[1.0f32; LEN]).unwrap();
    let address = slice.device_ptr(&stream).0;
    let mut kept = None;
    let refused = worker.lend(&mut slice, &stream, |tensor| {
        ctx.comm()?.all_reduce_in_place(tensor, Reduction::Sum)?;
        kept = Some(tensor.clone());
        Ok(())
    });
    let refused = text(refused);
    assert!(refused.contains("a clone of the lent tensor is still in use"), "{refused}");
    let now = slice.device_ptr(&stream).0;
    assert!(slice.len() == LEN && now != address, "the program has other memory, which nothing else uses");
    let kept = kept.unwrap();
    let host = to_host(ctx, &kept)?;
    assert_eq!(host.to_vec::<f32>()?, [2.0; LEN], "the clone has the old memory");
    // A panic leaves the program with usable memory, too.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        worker.lend(&mut slice, &stream, |_| -> disco::Result<()> { panic!("expected by this test") })
    }));
    assert!(panicked.is_err() && slice.device_ptr(&stream).0 == now);
    Ok(())
}

disco::register_function!("tests.nccl.keep", keep);

on_the_double!(lent_memory_that_a_clone_keeps_is_replaced_and_freed_later, [], {
    run_on_two("tests.nccl.keep");
});

on_the_double!(streams_of_other_devices_and_captures_are_refused, [], {
    let mut queue = Cuda.bind(Device::new(DeviceKind::Cuda, 0)).unwrap();
    let worker = WorkerStream::of(&mut *queue).unwrap();
    let (other, own) = (CudaContext::new(1).unwrap(), CudaContext::new(0).unwrap());
    let (foreign, stream) = (other.per_thread_stream(), own.per_thread_stream());
    for refused in [worker.fence_from(&foreign), worker.fence_to(&foreign)] {
        let refused = text(refused);
        assert!(refused.contains("cuda:1") && refused.contains("cuda:0"), "{refused}");
    }
    let mut slice = foreign.alloc_zeros::<f32>(LEN).unwrap();
    let refused = text(worker.lend(&mut slice, &stream, |_| Ok(())));
    assert!(refused.contains("memory of cuda:1 can't be used by the worker on cuda:0"), "{refused}");
    worker.fence_from(&stream).unwrap();
    worker.fence_to(&stream).unwrap();
    let runtime = disco::nccl::disco_ccl::Queue::of(&mut *queue, DeviceKind::Cuda).unwrap().runtime().clone();
    let graph = runtime.capture(|| {
        let refused = text(worker.fence_from(&stream));
        assert!(refused.contains("the worker's stream is being captured"), "{refused}");
        Ok(())
    });
    graph.unwrap();
});

/// Captures copies on the program's stream and the sum of their results as one graph. Replays it with new inputs.
fn capture_both(ctx: &mut WorkerContext) -> disco::Result<()> {
    let (rank, ranks) = (ctx.worker().index(), ctx.world().size());
    let (worker, stream) = (WorkerStream::of(ctx.queue())?, own_stream(ctx, CREATED)?);
    // SAFETY: the uses of the slices are ordered by their stream, by fences and by waits for the stream.
    unsafe { stream.context().disable_event_tracking() };
    let mut inputs = stream.alloc_zeros::<f32>(LEN).unwrap();
    let mut slice = stream.alloc_zeros::<f32>(LEN).unwrap();
    let mut sums = stream.alloc_zeros::<f32>(LEN).unwrap();
    let mut step = || {
        // Memory of the graph alone, when captured.
        // SAFETY: the memory is written before it is read.
        let pointer = unsafe { result::malloc_async(stream.cu_stream(), LEN * size_of::<f32>()) }.unwrap();
        // SAFETY: the allocation has `LEN` elements, and the slice is leaked below.
        let mut copy = unsafe { stream.upgrade_device_ptr::<f32>(pointer, LEN) };
        stream.memcpy_dtod(&inputs, &mut copy).unwrap();
        stream.memcpy_dtod(&copy, &mut slice).unwrap();
        // SAFETY: later work of the stream does not use the memory.
        unsafe { result::free_async(copy.leak(), stream.cu_stream()) }.unwrap();
        worker.lend(&mut slice, &stream, |tensor| ctx.comm()?.all_reduce_in_place(tensor, Reduction::Sum))?;
        stream.memcpy_dtod(&slice, &mut sums).unwrap();
        Ok(())
    };
    step()?;
    // SAFETY: the slices outlive the graph, and the waits for the sums are waits for the launches.
    let graph = unsafe { worker.capture(&stream, &mut step) }?;
    for round in 0..ROUNDS {
        write_late(&stream, &mut inputs, &input(rank, round));
        worker.fence_from(&stream)?;
        graph.launch()?;
        worker.fence_to(&stream)?;
        // The next write may not overtake the graph.
        write_late(&stream, &mut inputs, &[-2.0; LEN]);
        assert_eq!(stream.clone_dtoh(&sums).unwrap(), expected(ranks, round), "round {round}");
    }
    Ok(())
}

disco::register_function!("tests.nccl.capture_both", capture_both);

on_the_double_or_a_gpu!(
    work_of_a_stream_of_the_program_is_captured_with_its_collective,
    ["GPU_DOUBLE_DELAY_US" = "20"],
    {
        run_on_two("tests.nccl.capture_both");
    }
);

on_the_double!(the_pool_of_a_device_keeps_its_memory, [], {
    keep_pool_memory(0).unwrap();
    let context = CudaContext::new(0).unwrap();
    let (mut threshold, ordinal) = (0u64, context.cu_device());
    // SAFETY: the device exists.
    let pool = unsafe { result::device::get_mem_pool(ordinal) }.unwrap();
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the pool is that of the device, and the attribute has 64 bits.
    unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut threshold).cast()) }.result().unwrap();
    assert_eq!((threshold, unused_pool_memory(0).unwrap()), (u64::MAX, 0));
    let stream = context.new_stream().unwrap();
    // SAFETY: nothing uses the memory.
    let pointer = unsafe { result::malloc_async(stream.cu_stream(), 1000) }.unwrap();
    assert_eq!(unused_pool_memory(0).unwrap(), 0);
    // SAFETY: the memory is freed once.
    unsafe { result::free_async(pointer, stream.cu_stream()) }.unwrap();
    assert_eq!(unused_pool_memory(0).unwrap(), 1000);
    let error = text(keep_pool_memory(99));
    assert!(error.contains("cuDeviceGet"), "{error}");
});
