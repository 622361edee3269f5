//! Operations that are captured once and launched many times, by Disco's capture and by the program's own capture.

use disco::nccl::cuda::capture;
use disco::nccl::cudarc::driver::{result, sys};
use disco::nccl::disco_ccl;
use disco::{CommunicatorExt as _, DType, DeviceKind, Error, Op, Reduction, Tensor, WorkerContext, block_on};

use crate::alone::{connected, session, synchronize, text, without};
use crate::costs::{check_nothing_is_left, counts, end};
use crate::graph_ends::check_no_graph_is_left;
use crate::kernels::number;
use crate::p2p::{call, patient, sharing};
use crate::{on_the_double, on_the_double_or_a_gpu, with_kernels};

/// Number of elements of a block.
pub(crate) const LEN: usize = 64;

/// The inputs of a rank in a round: whole numbers.
fn inputs(rank: usize, len: usize, round: usize) -> Vec<f32> {
    (0..len).map(|at| number(rank, at, 5 * round)).collect()
}

pub(crate) fn write(ctx: &mut WorkerContext, tensor: &Tensor, numbers: &[f32]) -> disco::Result<()> {
    ctx.queue().copy_in(tensor, &Tensor::from_slice(numbers, [numbers.len() as i64])?)
}

pub(crate) fn read(ctx: &mut WorkerContext, tensor: &Tensor) -> disco::Result<Vec<f32>> {
    let host = Tensor::zeros(DType::F32, tensor.shape().clone())?;
    ctx.queue().copy_out(&host, tensor)?;
    ctx.comm()?.synchronize()?;
    synchronize(ctx)?;
    host.to_vec()
}

pub(crate) fn tensor(ctx: &mut WorkerContext, len: usize) -> disco::Result<Tensor> {
    ctx.empty(DType::F32, [len as i64])
}

/// Converts sums computed in `f64` to `f32`.
fn sums(values: impl Iterator<Item = f64>) -> Vec<f32> {
    values.map(|value| value as f32).collect()
}

/// Captures several collectives, one of which needs another's result, and replays them with new inputs and with other
/// operations in between. Compares the results with plain loops. Works on any kind of device.
fn sequence(ctx: &mut WorkerContext, rounds: u32, is_scaled: bool) -> disco::Result<()> {
    let (ranks, own) = (ctx.world().size(), ctx.worker().index());
    let (next, previous) = ((own + 1) % ranks, (own + ranks - 1) % ranks);
    let (src, sum, got) = (tensor(ctx, LEN)?, tensor(ctx, LEN)?, tensor(ctx, LEN)?);
    let (scaled, first, part) = (tensor(ctx, LEN)?, tensor(ctx, LEN)?, tensor(ctx, LEN)?);
    let (all, mixed) = (tensor(ctx, ranks * LEN)?, tensor(ctx, ranks * LEN)?);
    let (long, eager) = (tensor(ctx, ranks * LEN)?, tensor(ctx, 4)?);
    // This run allocates the scratch memory of the in-place form.
    ctx.comm()?.enqueue(&[Op::AllToAll { src: None, dst: mixed.clone() }])?;
    let kind = ctx.device().kind;
    let runtime = disco_ccl::Queue::of(ctx.queue(), kind)?.runtime().clone();
    let graph = runtime.capture(|| {
        ctx.queue().copy_within(&mixed, &long)?;
        let comm = ctx.comm()?;
        comm.all_reduce(&src, &sum, Reduction::Sum)?;
        comm.all_gather(&src, &all)?;
        comm.enqueue(&[
            Op::Send { src: src.clone(), to: (next as u32).into() },
            Op::Recv { dst: got.clone(), from: (previous as u32).into() },
        ])?;
        comm.enqueue(&[Op::Broadcast { src: (own == 0).then(|| src.clone()), dst: first.clone(), root: 0.into() }])?;
        let op = Op::AllReduce { src: Some(src.clone()), dst: scaled.clone(), reduction: Reduction::Sum };
        if is_scaled {
            disco::nccl::extension(comm)?.premul_sum(&op, 0.5 * (own + 1) as f64)?;
        }
        comm.reduce_scatter(&all, &part, Reduction::Sum)?;
        comm.enqueue(&[Op::AllToAll { src: None, dst: mixed.clone() }])
    })?;
    for round in 1..=rounds as usize {
        let each: Vec<Vec<f32>> = (0..ranks).map(|rank| inputs(rank, ranks * LEN, round)).collect();
        write(ctx, &src, &each[own][..LEN])?;
        write(ctx, &long, &each[own])?;
        write(ctx, &eager, &[round as f32; 4])?;
        ctx.comm()?.all_reduce_in_place(&eager, Reduction::Sum)?;
        graph.launch()?;
        ctx.comm()?.all_reduce_in_place(&eager, Reduction::Max)?;
        let over = |at: usize| each.iter().map(move |numbers| f64::from(numbers[at]));
        let factors = |at: usize| over(at).enumerate().map(|(rank, x)| 0.5 * (rank + 1) as f64 * x).sum::<f64>();
        assert_eq!(read(ctx, &eager)?, [(ranks * round) as f32; 4], "round {round}");
        assert_eq!(read(ctx, &sum)?, sums((0..LEN).map(|at| over(at).sum())), "round {round}");
        if is_scaled {
            assert_eq!(read(ctx, &scaled)?, sums((0..LEN).map(factors)), "round {round}");
        }
        assert_eq!(read(ctx, &all)?, each.iter().flat_map(|x| x[..LEN].to_vec()).collect::<Vec<_>>(), "round {round}");
        assert_eq!(read(ctx, &got)?, each[previous][..LEN], "round {round}");
        assert_eq!(read(ctx, &first)?, each[0][..LEN], "round {round}");
        assert_eq!(read(ctx, &part)?, sums(each[own][..LEN].iter().map(|x| ranks as f64 * f64::from(*x))));
        let blocks = each.iter().flat_map(|numbers| numbers[own * LEN..][..LEN].to_vec());
        assert_eq!(read(ctx, &mixed)?, blocks.collect::<Vec<_>>(), "round {round}");
    }
    Ok(())
}

/// Launches two graphs alternately, with an eager operation in between.
pub(crate) fn two_graphs(ctx: &mut WorkerContext) -> disco::Result<()> {
    let ranks = ctx.world().size() as f32;
    let (a, b) = (tensor(ctx, LEN)?, tensor(ctx, LEN)?);
    let in_place = |ctx: &mut WorkerContext, tensor: &Tensor| ctx.comm()?.all_reduce_in_place(tensor, Reduction::Sum);
    let first = capture(ctx, |ctx| in_place(ctx, &a))?;
    let second = capture(ctx, |ctx| in_place(ctx, &b).and_then(|()| in_place(ctx, &b)))?;
    write(ctx, &a, &[1.0; LEN])?;
    write(ctx, &b, &[1.0; LEN])?;
    let mut expected = [1.0f32; 2];
    for _ in 0..3 {
        first.launch()?;
        second.launch()?;
        in_place(ctx, &a)?;
        second.launch()?;
        expected = [expected[0] * ranks * ranks, expected[1] * ranks.powi(4)];
        assert_eq!([read(ctx, &a)?, read(ctx, &b)?], expected.map(|number| vec![number; LEN]));
    }
    Ok(())
}

pub(crate) fn failed(error: result::DriverError) -> Error {
    Error::invalid(error.to_string())
}

/// A graph keeps the tensors of operations, and tensors that are dropped during the capture.
#[allow(unsafe_code, reason = "the driver's own calls")]
fn tensors_of_graphs(ctx: &mut WorkerContext) -> disco::Result<()> {
    let (src, dst) = (tensor(ctx, LEN)?, tensor(ctx, LEN)?);
    write(ctx, &src, &[3.0; LEN])?;
    let mut between = Some((tensor(ctx, LEN)?, tensor(ctx, LEN)?));
    let stream: sys::CUstream = ctx.queue().raw().cast();
    let copy = |to: &Tensor, from: &Tensor| {
        let (to, from) = (to.data() as sys::CUdeviceptr, from.data() as sys::CUdeviceptr);
        // SAFETY: both tensors have at least this size, and the graph keeps them alive.
        unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, 4 * LEN, stream) }.result().map_err(failed)
    };
    let graph = capture(ctx, |ctx| {
        if let Some((first, second)) = between.take() {
            ctx.comm()?.all_reduce(&src, &first, Reduction::Sum)?;
            copy(&second, &first)?;
            copy(&dst, &second)?;
        }
        Ok(())
    })?;
    drop(src);
    let ranks = ctx.world().size() as f32;
    for _ in 0..3 {
        // New tensors overwrite the memory if it is free.
        let others = (0..4).map(|_| tensor(ctx, LEN)).collect::<disco::Result<Vec<_>>>()?;
        others.iter().try_for_each(|other| write(ctx, other, &[7.0; LEN]))?;
        write(ctx, &dst, &[0.0; LEN])?;
        graph.launch()?;
        drop(others);
        assert_eq!(read(ctx, &dst)?, [3.0 * ranks; LEN]);
    }
    let in_use = |ctx: &mut WorkerContext| -> disco::Result<usize> {
        Ok(disco_ccl::Queue::of(ctx.queue(), DeviceKind::Cuda)?.runtime().memory().in_use)
    };
    let before = in_use(ctx)?;
    graph.launch()?;
    // Ordered after the launch.
    drop(graph);
    assert_eq!(before - in_use(ctx)?, 3 * 4 * LEN);
    assert_eq!(read(ctx, &dst)?, [3.0 * ranks; LEN]);
    Ok(())
}

/// Each launch copies the current contents of a tensor into the next rank's shared memory.
fn copies_to_a_peer(ctx: &mut WorkerContext) -> disco::Result<()> {
    let shared = disco::nccl::extension(ctx.comm()?)?.p2p_fast_path()?.workspace()?.clone();
    let (ranks, own) = (shared.size(), ctx.worker().index());
    let next = (((own + 1) % ranks) as u32).into();
    let (src, dst) = (tensor(ctx, LEN)?, tensor(ctx, LEN)?);
    let graph = capture(ctx, |_| shared.main().put(&src, next, 0))?;
    for round in 1..=3 {
        write(ctx, &src, &[(10 * round + own) as f32; LEN])?;
        graph.launch()?;
        shared.main().barrier()?;
        shared.main().get(&dst, shared.rank(), 0)?;
        let expected = (10 * round + (own + ranks - 1) % ranks) as f32;
        assert_eq!(read(ctx, &dst)?, [expected; LEN]);
        shared.main().barrier()?;
    }
    Ok(())
}

/// Captures the worker's stream with the program's own calls.
#[allow(unsafe_code, reason = "the driver's own calls")]
fn own_capture(ctx: &mut WorkerContext) -> disco::Result<()> {
    let stream: sys::CUstream = ctx.queue().raw().cast();
    let (x, mut other) = (tensor(ctx, LEN)?, Some(tensor(ctx, LEN)?));
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is alive.
    unsafe { result::stream::begin_capture(stream, mode) }.map_err(failed)?;
    ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)?;
    let error = text(ctx.comm()?.barrier());
    assert!(error.starts_with("barrier: the stream is being captured; "), "{error}");
    // Its memory is free after the capture.
    drop(other.take());
    let error = text(tensor(ctx, 1));
    assert!(error.starts_with("allocation: the stream is being captured; "), "{error}");
    // SAFETY: the capture began above.
    let graph = unsafe { result::stream::end_capture(stream) }.map_err(failed)?;
    let mut exec = std::ptr::null_mut();
    // SAFETY: the graph was made just now.
    unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) }.result().map_err(failed)?;
    // SAFETY: the executable does not need the graph.
    unsafe { sys::cuGraphDestroy(graph) }.result().map_err(failed)?;
    let ranks = ctx.world().size() as f32;
    for round in 1..=3 {
        write(ctx, &x, &[round as f32; LEN])?;
        // SAFETY: the tensor stays until the launch is done.
        unsafe { sys::cuGraphLaunch(exec, stream) }.result().map_err(failed)?;
        assert_eq!(read(ctx, &x)?, [ranks * round as f32; LEN]);
    }
    // SAFETY: the executable exists and is destroyed once.
    unsafe { sys::cuGraphExecDestroy(exec) }.result().map_err(failed)?;
    ctx.comm()?.barrier()
}

disco::register_function!("tests.graphs.sequence", sequence);
disco::register_function!("tests.graphs.two_graphs", two_graphs);
disco::register_function!("tests.graphs.tensors_of_graphs", tensors_of_graphs);
disco::register_function!("tests.graphs.own_capture", own_capture);
disco::register_function!("tests.graphs.copies_to_a_peer", copies_to_a_peer);

on_the_double!(collectives_are_captured_once_and_launched_with_other_inputs, [], {
    for workers in [1, 2, 4] {
        let session = connected(workers);
        block_on(call(&session, "tests.graphs.sequence", (10, true))).unwrap();
    }
    check_nothing_is_left();
    check_no_graph_is_left();
});

on_the_double_or_a_gpu!(one_rank_captures_and_launches, [], {
    let session = patient(1);
    block_on(async {
        session.init_ccl("nccl", &[]).await.unwrap();
        call(&session, "tests.graphs.sequence", (10, true)).await.unwrap();
        for function in ["two_graphs", "tensors_of_graphs", "own_capture", "failed_captures"] {
            call(&session, &format!("tests.graphs.{function}"), ()).await.unwrap();
        }
    });
    end(&session);
});

on_the_double!(a_capture_waits_for_operations_that_return_in_progress, ["GPU_DOUBLE_CONNECT" = "2"], {
    let session = connected(2);
    block_on(call(&session, "tests.graphs.sequence", (3, false))).unwrap();
});

with_kernels!(kernels_over_peers_memory_are_captured, ["DISCO_P2P_ONE_SHOT" = "128"], {
    let session = patient(3);
    block_on(async {
        session.init_ccl("cuda_p2p", &[]).await.unwrap();
        let before = counts().calls;
        call(&session, "tests.graphs.two_graphs", ()).await.unwrap();
        assert_eq!(counts().calls, before, "NCCL is not called");
        call(&session, "tests.graphs.sequence", (10, true)).await.unwrap();
    });
    end(&session);
    check_no_graph_is_left();
});

on_the_double!(collectives_are_captured_on_amd_devices, [], {
    let session = session(2);
    block_on(session.init_ccl("rccl", &[])).unwrap();
    block_on(call(&session, "tests.graphs.sequence", (10, true))).unwrap();
});

on_the_double!(a_graph_keeps_the_tensors_of_its_operations, ["GPU_DOUBLE_DELAY_US" = "200"], {
    let session = connected(2);
    block_on(call(&session, "tests.graphs.tensors_of_graphs", ())).unwrap();
});

on_the_double!(
    a_graph_keeps_tensors_without_pools,
    ["LD_LIBRARY_PATH" = &without("cuMemPoolCreate"), "GPU_DOUBLE_DELAY_US" = "200"],
    {
        let session = connected(2);
        block_on(call(&session, "tests.graphs.own_capture", ())).unwrap();
        block_on(call(&session, "tests.graphs.two_graphs", ())).unwrap();
    }
);

on_the_double!(copies_into_peers_memory_are_captured, [], {
    let session = sharing(3);
    block_on(call(&session, "tests.graphs.copies_to_a_peer", ())).unwrap();
});

on_the_double!(programs_capture_the_worker_s_stream_themselves, [], {
    let session = connected(2);
    block_on(call(&session, "tests.graphs.own_capture", ())).unwrap();
    end(&session);
    check_no_graph_is_left();
});
