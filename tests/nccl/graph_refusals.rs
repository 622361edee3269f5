//! What can't be captured, and captures that fail.

use disco::nccl::cuda::capture;
use disco::nccl::cudarc::driver::result;
use disco::session::LaneSession;
use disco::{
    CommunicatorExt as _, DType, DataPlane, Error, Op, Reduction, Session, SessionExt as _, Tensor, WorkerContext,
    block_on,
};

use crate::alone::{nvrtc, session, text, without, works_again};
use crate::costs::check_nothing_is_left;
use crate::graph_ends::check_no_graph_is_left;
use crate::graphs::{LEN, read, tensor, two_graphs, write};
use crate::on_the_double;
use crate::p2p::{call, patient};

/// What can't be captured, in the words that users get. The capture goes on, and the communicator is whole.
fn refusals(ctx: &mut WorkerContext) -> disco::Result<String> {
    let (x, large) = (tensor(ctx, LEN)?, tensor(ctx, 2 * LEN)?);
    let shifted = large.window(1, [LEN as i64])?;
    let host = Tensor::zeros(DType::F32, [LEN as i64])?;
    let before = ctx.queue().record()?;
    let deadline = ctx.deadline();
    let mut all: Vec<disco::Result<()>> = Vec::new();
    let graph = capture(ctx, |ctx| {
        all.push(ctx.comm()?.barrier());
        all.push(ctx.comm()?.synchronize());
        all.push(ctx.comm()?.split(Some(0), 0).map(drop));
        all.push(ctx.comm()?.register(&x));
        all.push(ctx.comm()?.enqueue(&[Op::AllToAll { src: None, dst: large.clone() }]));
        all.push(ctx.queue().copy_in(&x, &host));
        all.push(ctx.queue().copy_out(&host, &x));
        all.push(ctx.queue().record().map(drop));
        all.push(ctx.queue().poll(before).map(drop));
        all.push(ctx.queue().synchronize(deadline));
        all.push(tensor(ctx, 1).map(drop));
        all.push(disco::nccl::BACKEND.empty(ctx.queue(), DType::F32, [8]).map(drop));
        all.push(capture(ctx, |_| Ok(())).map(drop));
        if let Ok(shared) = disco::nccl::p2p::Shortcut::of(ctx.comm()?).and_then(|shortcut| shortcut.workspace()) {
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

/// Captures that fail leave stream and communicator as they were.
fn failed_captures(ctx: &mut WorkerContext) -> disco::Result<()> {
    let x = tensor(ctx, LEN)?;
    let on_purpose = capture(ctx, |ctx| {
        ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)?;
        Err(Error::invalid("on purpose"))
    });
    assert_eq!(text(on_purpose), "on purpose");
    let panics = std::panic::AssertUnwindSafe(|| capture(ctx, |_| panic!("on purpose, too")));
    assert!(std::panic::catch_unwind(panics).is_err());
    // The program does what the driver refuses.
    let ended = capture(ctx, |ctx| {
        ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)?;
        // SAFETY: nobody uses the memory.
        #[allow(unsafe_code, reason = "the driver's own call")]
        let refused = unsafe { result::malloc_sync(4) };
        refused.map(drop).map_err(|error| Error::invalid(error.to_string())).or(Ok(()))
    });
    let error = text(ended);
    assert_eq!(error, "cuda: cuStreamEndCapture returned 901: operation failed due to a previous error during capture");
    two_graphs(ctx)
}

/// A communicator is dropped with work under way; what ends it in the background asks for the stream while that is captured.
fn capture_beside_an_end(ctx: &mut WorkerContext) -> disco::Result<()> {
    for _ in 0..3 {
        let x = tensor(ctx, LEN)?;
        let mut child = ctx.comm()?.split(Some(0), 0)?.ok_or_else(|| Error::invalid("there is a color"))?;
        let shared = disco::nccl::p2p::Shortcut::of(&mut *child)?.workspace()?.clone();
        drop(child);
        // The stream has enough to do until the capture begins.
        (0..20).try_for_each(|_| ctx.queue().copy_within(&x, &x))?;
        drop(shared);
        two_graphs(ctx)?;
    }
    Ok(())
}

disco::register_function!("tests.graphs.refusals", refusals);
disco::register_function!("tests.graphs.failed_captures", failed_captures);
disco::register_function!("tests.graphs.capture_beside_an_end", capture_beside_an_end);

/// What is refused with both backends, by line.
const REFUSED: [&str; 13] = [
    "barrier: the stream is being captured; a barrier has the host wait, and nothing of a graph is done before its launch",
    "synchronize: the stream is being captured; nothing of a graph is done before its launch",
    "split: the stream is being captured; communicators are made before the capture",
    "register: the stream is being captured; memory is registered before the capture",
    "all_to_all: the stream is being captured; in place it needs 512 bytes of scratch memory, of which there are 1: do it once before \
     the capture",
    "copy to device: the stream is being captured; a graph would copy at each launch what the host has at the capture",
    "copy to host: the stream is being captured; a graph would copy at each launch what the host has at the capture",
    "record: the stream is being captured; nobody can ask for an event of a graph",
    "poll: the stream is being captured; the driver ends a capture in which a thread asks for events",
    "synchronize: the stream is being captured; nothing of a graph is done before its launch",
    "allocation: the stream is being captured; tensors are allocated before the capture",
    "allocation: the stream is being captured; tensors are allocated before the capture",
    "capture: the stream is being captured; a second capture can't begin before the first has ended",
];

fn refused(session: &LaneSession) -> Vec<String> {
    let answer = block_on(call(session, "tests.graphs.refusals", ())).unwrap();
    let text: String = block_on(session.get_as(&answer, 0.into())).unwrap();
    text.lines().map(str::to_owned).collect()
}

on_the_double!(what_can_t_be_captured_is_refused_and_the_capture_goes_on, [], {
    let session = session(2);
    block_on(session.init_ccl("nccl", &[])).unwrap();
    assert_eq!(refused(&session), REFUSED);
});

on_the_double!(
    what_can_t_be_captured_over_peers_memory_is_refused,
    ["DISCO_P2P_TOPOLOGY" = "fully_connected", "DISCO_NVRTC_LIBRARY" = &nvrtc()],
    {
        if !crate::alone::has_nvrtc() {
            return;
        }
        let session = patient(2);
        block_on(session.init_ccl("cuda_p2p", &[])).unwrap();
        let numbered =
            "the stream is being captured; signals are numbered by the host, and a launch would repeat old numbers";
        let more = [
            "all_reduce: the stream is being captured; a tensor that does not start at a multiple of 16 bytes is copied aside, into \
             new memory"
                .to_owned(),
            format!("signal: {numbered}"),
            format!("wait: {numbered}"),
            format!("barrier: {numbered}"),
            "put: the stream is being captured; the side stream is no part of the capture".to_owned(),
            format!("after: {numbered}"),
        ];
        let expected: Vec<String> = REFUSED.into_iter().map(str::to_owned).chain(more).collect();
        assert_eq!(refused(&session), expected);
    }
);

on_the_double!(
    a_driver_without_graphs_says_which_function_it_lacks,
    ["LD_LIBRARY_PATH" = &without("cuGraphLaunch")],
    {
        let session = session(1);
        block_on(session.init_ccl("nccl", &[])).unwrap();
        let error = text(block_on(call(&session, "tests.graphs.keep", ())));
        assert!(error.contains("capture: there are no graphs: the CUDA driver lacks cuGraphLaunch"), "{error}");
        works_again(&session);
    }
);

on_the_double!(a_capture_that_fails_leaves_all_as_it_was, [], {
    let session = session(2);
    block_on(session.init_ccl("nccl", &[])).unwrap();
    block_on(call(&session, "tests.graphs.failed_captures", ())).unwrap();
    block_on(session.shutdown()).unwrap();
    check_nothing_is_left();
    check_no_graph_is_left();
});

on_the_double!(what_ends_in_the_background_ends_no_capture, ["GPU_DOUBLE_DELAY_US" = "1000"], {
    let session = patient(2);
    block_on(session.init_ccl("cuda_p2p", &[])).unwrap();
    block_on(call(&session, "tests.graphs.capture_beside_an_end", ())).unwrap();
});
