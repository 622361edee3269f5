//! Operations that a capture rejects, and captures that fail.

use disco::nccl::cuda::capture;
use disco::nccl::cudarc::driver::result;
use disco::{CommunicatorExt as _, DType, Error, LaneSession, Op, Reduction, Tensor, WorkerContext, block_on};

use crate::alone::{answers, connected, session, text, without, works_again};
use crate::costs::end;
use crate::graph_ends::check_no_graph_is_left;
use crate::graphs::{LEN, read, tensor, two_graphs, write};
use crate::p2p::{call, sharing};
use crate::{on_the_double, with_kernels};

/// The texts of all rejections. Capture and communicator work afterwards.
fn refusals(ctx: &mut WorkerContext) -> disco::Result<String> {
    let (x, large) = (tensor(ctx, LEN)?, tensor(ctx, 2 * LEN)?);
    let shifted = large.window(1, [LEN as i64])?;
    let host = Tensor::zeros(DType::F32, [LEN as i64])?;
    let pinned = ctx.empty_pinned(DType::F32, [LEN as i64])?;
    let before = ctx.queue().record()?;
    let deadline = ctx.deadline();
    let mut all: Vec<disco::Result<()>> = Vec::new();
    let graph = capture(ctx, |ctx| {
        all.push(ctx.comm()?.barrier());
        all.push(ctx.comm()?.synchronize());
        all.push(ctx.comm()?.split(Some(0), 0).map(drop));
        all.push(disco::nccl::extension(ctx.comm()?)?.register(&x));
        all.push(ctx.comm()?.all_reduce_in_place(&x, disco::reductions::TOP_K));
        all.push(ctx.comm()?.enqueue(&[Op::AllToAll { src: None, dst: large.clone() }]));
        all.push(ctx.queue().copy_in(&x, &host));
        all.push(ctx.queue().copy_out(&host, &x));
        all.push(ctx.queue().copy_in(&x, &pinned));
        all.push(ctx.queue().copy_out(&pinned, &x));
        all.push(ctx.queue().record().map(drop));
        all.push(ctx.queue().poll(before).map(drop));
        all.push(ctx.queue().synchronize(deadline));
        all.push(tensor(ctx, 1).map(drop));
        all.push(ctx.empty_pinned(DType::F32, 1).map(drop));
        all.push(disco::nccl::BACKEND.empty(ctx.queue(), DType::F32, [8]).map(drop));
        all.push(capture(ctx, |_| Ok(())).map(drop));
        if let Ok(shared) =
            disco::nccl::extension(ctx.comm()?)?.p2p_fast_path().and_then(|fast_path| fast_path.workspace())
        {
            let shared = shared.clone();
            all.push(ctx.comm()?.all_reduce_in_place(&shifted, Reduction::Sum));
            all.push(shared.main().signal(0.into(), 0));
            all.push(shared.main().wait(0.into(), 0));
            all.push(shared.main().barrier());
            all.push(shared.side()?.put(&x, 0.into(), 0));
            all.push(shared.main().after(&shared.side()?));
        }
        ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)
    })?;
    write(ctx, &x, &[2.0; LEN])?;
    graph.launch()?;
    assert_eq!(read(ctx, &x)?, [2.0 * ctx.world().size() as f32; LEN]);
    assert!(ctx.queue().poll(before)?);
    ctx.comm()?.barrier()?;
    Ok(all.into_iter().map(|result| result.err().map_or("fine".to_owned(), |error| error.to_string()) + "\n").collect())
}

/// A failed capture changes neither the stream nor the communicator.
fn failed_captures(ctx: &mut WorkerContext) -> disco::Result<()> {
    let x = tensor(ctx, LEN)?;
    let on_purpose = capture(ctx, |ctx| {
        ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)?;
        Err(Error::invalid("on purpose"))
    });
    assert_eq!(text(on_purpose), "on purpose");
    let panics = std::panic::AssertUnwindSafe(|| capture(ctx, |_| panic!("on purpose, too")));
    assert!(std::panic::catch_unwind(panics).is_err());
    // The driver rejects a call of the program.
    let ended = capture(ctx, |ctx| {
        ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)?;
        // SAFETY: the memory is not used.
        #[allow(unsafe_code, reason = "the driver's own call")]
        let refused = unsafe { result::malloc_sync(4) };
        refused.map(drop).map_err(|error| Error::invalid(error.to_string())).or(Ok(()))
    });
    let error = text(ended);
    assert_eq!(error, "cuda: cuStreamEndCapture returned 901: operation failed due to a previous error during capture");
    two_graphs(ctx)
}

/// Drops peers' shared memory while the stream is busy, so that a background thread polls the stream during a capture.
fn capture_beside_an_end(ctx: &mut WorkerContext) -> disco::Result<()> {
    for _ in 0..3 {
        let (x, y) = (tensor(ctx, LEN)?, tensor(ctx, LEN)?);
        let mut child = ctx.comm()?.split(Some(0), 0)?.ok_or_else(|| Error::invalid("there is a color"))?;
        let shared = disco::nccl::extension(&mut *child)?.p2p_fast_path()?.workspace()?.clone();
        drop(child);
        // The stream is busy until the capture begins.
        (0..20).try_for_each(|_| ctx.queue().copy_within(&y, &x))?;
        drop(shared);
        two_graphs(ctx)?;
    }
    Ok(())
}

disco::register_function!("tests.graphs.refusals", refusals);
disco::register_function!("tests.graphs.failed_captures", failed_captures);
disco::register_function!("tests.graphs.capture_beside_an_end", capture_beside_an_end);

/// The rejections of both backends, one per line.
const REFUSED: [&str; 17] = [
    "barrier: the stream is being captured; a barrier makes the host wait, and a graph runs only after the capture",
    "synchronize: the stream is being captured; captured work runs when its graph is launched: synchronize after that",
    "split: the stream is being captured; split communicators before the capture",
    "register: the stream is being captured; register memory before the capture",
    "all_reduce disco.top_k f32 x 64 in rows of 64: the stream is being captured; a reduction of the program runs on the host, and a \
     graph can't call it",
    "all_to_all: the stream is being captured; the in-place form needs 512 bytes of scratch memory, and the communicator has 1: run \
     the operation once before the capture",
    "copy to device: the stream is being captured; a graph can't copy host tensors: copy before the capture or after a launch",
    "copy to host: the stream is being captured; a graph can't copy host tensors: copy before the capture or after a launch",
    "copy to device: the stream is being captured; a graph can't copy host tensors: copy before the capture or after a launch",
    "copy to host: the stream is being captured; a graph can't copy host tensors: copy before the capture or after a launch",
    "record: the stream is being captured; the host can't query an event of a graph",
    "poll: the stream is being captured; the driver ends a capture whose thread queries an event: poll after the capture",
    "synchronize: the stream is being captured; captured work runs when its graph is launched: synchronize after that",
    "allocation: the stream is being captured; allocate tensors before the capture",
    "allocation: the stream is being captured; allocate tensors before the capture",
    "allocation: the stream is being captured; allocate tensors before the capture",
    "capture: the stream is being captured; a second capture can't begin before the first has ended",
];

fn refused(session: &LaneSession) -> Vec<String> {
    let texts: Vec<String> = answers(session, "tests.graphs.refusals", ());
    texts[0].lines().map(str::to_owned).collect()
}

on_the_double!(capture_and_communicator_work_after_a_rejected_operation, [], {
    let session = connected(2);
    assert_eq!(refused(&session), REFUSED);
});

with_kernels!(a_capture_refuses_signals_and_unaligned_tensors_of_cuda_p2p, [], {
    let session = sharing(2);
    let numbered = "the stream is being captured; the host numbers signals, and each launch would repeat old numbers: signal outside of the graph";
    let more = [
        "all_reduce: the stream is being captured; the kernel needs tensors that start at a multiple of 16 bytes, and a \
         capture can't allocate an aligned copy"
            .to_owned(),
        format!("signal: {numbered}"),
        format!("wait: {numbered}"),
        format!("barrier: {numbered}"),
        "put: the stream is being captured; the side stream is not part of the capture: use the main stream".to_owned(),
        format!("after: {numbered}"),
    ];
    let expected: Vec<String> = REFUSED.into_iter().map(str::to_owned).chain(more).collect();
    assert_eq!(refused(&session), expected);
});

on_the_double!(
    capture_with_a_driver_without_graphs_is_an_error_with_the_missing_function,
    ["LD_LIBRARY_PATH" = &without("cuGraphLaunch")],
    {
        let session = connected(1);
        let error = text(block_on(call(&session, "tests.graphs.keep", ())));
        assert!(error.contains("capture: graphs are not available: the CUDA driver lacks cuGraphLaunch"), "{error}");
        works_again(&session);
    }
);

on_the_double!(
    a_graph_that_the_driver_refuses_is_an_error,
    ["GPU_DOUBLE_FAULTS" = "cuStreamBeginCapture_v2:1:1=2,cuGraphInstantiateWithFlags:1:1=2,cuGraphLaunch:1:1=719"],
    {
        let session = session(2);
        for expected in [
            "cuda: cuStreamBeginCapture_v2 returned 2: out of memory",
            "cuda: cuGraphInstantiateWithFlags returned 2: out of memory",
            "cuda: cuGraphLaunch returned 719: unspecified launch failure",
        ] {
            block_on(session.init_ccl("nccl", &[])).unwrap();
            let error = text(block_on(call(&session, "tests.graphs.keep", ())));
            assert!(error.contains(expected), "{error}");
            block_on(session.recover()).unwrap();
            check_no_graph_is_left();
        }
        works_again(&session);
    }
);

on_the_double!(stream_and_communicator_work_after_a_failed_capture, [], {
    let session = connected(2);
    block_on(call(&session, "tests.graphs.failed_captures", ())).unwrap();
    end(&session);
    check_no_graph_is_left();
});

on_the_double!(a_background_poll_does_not_invalidate_a_capture, ["GPU_DOUBLE_DELAY_US" = "1000"], {
    let session = sharing(2);
    block_on(call(&session, "tests.graphs.capture_beside_an_end", ())).unwrap();
});
