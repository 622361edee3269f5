//! The end of graphs: with their communicators, in any order, and while a launch waits for a peer.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use disco::nccl::cuda::capture;
use disco::nccl::cudarc::driver::{result, sys};
use disco::nccl::disco_ccl::Graph;
use disco::{CommunicatorExt as _, Error, LaneSession, Reduction, Tensor, WorkerContext, block_on};

use crate::alone::{answers, nvrtc_of_the_double, sum, text, works_again};
use crate::costs::{becomes, end, threads};
use crate::graphs::{LEN, failed, read, tensor, write};
use crate::on_the_double;
use crate::p2p::{call, patient};

thread_local! {
    /// A worker's graph and its tensor.
    static KEPT: RefCell<Option<(Graph, Tensor)>> = const { RefCell::new(None) };
    /// A graph that the program captured itself.
    static OWN: Cell<sys::CUgraph> = const { Cell::new(std::ptr::null_mut()) };
}

/// Captures a graph for later calls.
fn keep(ctx: &mut WorkerContext) -> disco::Result<()> {
    let x = tensor(ctx, LEN)?;
    let graph = capture(ctx, |ctx| ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum))?;
    graph.launch()?;
    KEPT.set(Some((graph, x)));
    ctx.comm()?.synchronize()
}

/// Launches the graph on all workers except `but`.
fn launch_but(ctx: &mut WorkerContext, but: u32) -> disco::Result<()> {
    if ctx.worker() != but.into() {
        KEPT.with_borrow(|kept| kept.as_ref().map_or(Ok(()), |(graph, _)| graph.launch()))?;
    }
    ctx.comm()?.synchronize()
}

/// Launches the graph on all workers, on `late` with a delay, so that the other workers report that they wait.
fn launch_late(ctx: &mut WorkerContext, late: u32) -> disco::Result<()> {
    if ctx.worker() == late.into() {
        // The reports are due within the deadline.
        std::thread::sleep(ctx.deadline() / 2);
    }
    launch_but(ctx, u32::MAX)
}

/// Launches the graph on all workers except `but`, which fails.
fn fail_but_launch(ctx: &mut WorkerContext, but: u32) -> disco::Result<()> {
    if ctx.worker() == but.into() {
        return Err(Error::invalid("no launch today"));
    }
    launch_but(ctx, but)
}

/// Captures until operations fail because the communicator is aborted; `but` fails meanwhile.
fn capture_until_aborted(ctx: &mut WorkerContext, but: u32) -> disco::Result<()> {
    if ctx.worker() == but.into() {
        return Err(Error::invalid("no capture today"));
    }
    let x = tensor(ctx, LEN)?;
    let graph = capture(ctx, |ctx| {
        loop {
            ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)?;
        }
    });
    graph.map(drop)
}

/// A graph of two communicators ends with the first of them, and the other one works.
fn two_communicators(ctx: &mut WorkerContext) -> disco::Result<()> {
    let (x, y, ranks) = (tensor(ctx, LEN)?, tensor(ctx, LEN)?, ctx.world().size() as f32);
    let mut child = ctx.comm()?.split(Some(0), 0)?.ok_or_else(|| Error::invalid("there is a color"))?;
    let graph = capture(ctx, |ctx| {
        ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)?;
        child.all_reduce(&x, &y, Reduction::Sum)
    })?;
    write(ctx, &x, &[1.0; LEN])?;
    graph.launch()?;
    assert_eq!(read(ctx, &y)?, [ranks * ranks; LEN]);
    // This launch completes, although the communicator is dropped.
    write(ctx, &x, &[2.0; LEN])?;
    graph.launch()?;
    drop(child);
    assert_eq!(
        text(graph.launch()),
        "launch of a graph: the communicator is broken since: the communicator was dropped"
    );
    assert_eq!(read(ctx, &y)?, [2.0 * ranks * ranks; LEN]);
    ctx.comm()?.all_reduce_in_place(&y, Reduction::Max)?;
    ctx.comm()?.barrier()
}

/// Captures the worker's stream with driver calls.
#[allow(unsafe_code, reason = "the driver's own calls")]
fn keep_own_graph(ctx: &mut WorkerContext) -> disco::Result<()> {
    let (stream, x): (sys::CUstream, _) = (ctx.queue().raw().cast(), tensor(ctx, LEN)?);
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is alive.
    unsafe { result::stream::begin_capture(stream, mode) }.map_err(failed)?;
    ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)?;
    // SAFETY: the capture began above.
    let graph = unsafe { result::stream::end_capture(stream) }.map_err(failed)?;
    OWN.set(graph);
    Ok(())
}

#[allow(unsafe_code, reason = "the driver's own calls")]
fn destroy_own_graph(_: &mut WorkerContext) -> disco::Result<()> {
    // SAFETY: the graph exists and is destroyed once.
    unsafe { sys::cuGraphDestroy(OWN.get()) }.result().map_err(failed)
}

/// The error of a launch.
fn launch_error(_: &mut WorkerContext) -> disco::Result<String> {
    Ok(KEPT.with_borrow(|kept| kept.as_ref().map_or("no graph".into(), |(graph, _)| text(graph.launch()))))
}

fn forget(_: &mut WorkerContext) -> disco::Result<()> {
    KEPT.set(None);
    Ok(())
}

disco::register_function!("tests.graphs.keep", keep);
disco::register_function!("tests.graphs.launch_but", launch_but);
disco::register_function!("tests.graphs.launch_late", launch_late);
disco::register_function!("tests.graphs.fail_but_launch", fail_but_launch);
disco::register_function!("tests.graphs.launch_error", launch_error);
disco::register_function!("tests.graphs.forget", forget);
disco::register_function!("tests.graphs.capture_until_aborted", capture_until_aborted);
disco::register_function!("tests.graphs.two_communicators", two_communicators);
disco::register_function!("tests.graphs.keep_own_graph", keep_own_graph);
disco::register_function!("tests.graphs.destroy_own_graph", destroy_own_graph);

/// Asserts that all graphs are destroyed soon.
pub(crate) fn check_no_graph_is_left() {
    #![allow(unsafe_code, reason = "a function of the test double")]
    let library = disco_dl::Library::open(&disco_dl::Candidate::file("libcuda.so.1")).unwrap();
    // SAFETY: this is the signature of the function.
    let live: extern "C" fn() -> u64 = unsafe { library.function(c"gpu_double_graphs") }.unwrap();
    becomes("graphs and instances", || live(), 0);
}

/// The error of a launch on worker 0.
fn launch_says(session: &LaneSession) -> String {
    answers(session, "tests.graphs.launch_error", ()).swap_remove(0)
}

/// Connects the workers, which capture a graph and keep it.
fn keep_graph(session: &LaneSession, backend: &str) {
    block_on(session.init_ccl(backend, &[])).unwrap();
    block_on(call(session, "tests.graphs.keep", ())).unwrap();
}

/// Backends whose communicators support graphs: `nccl`, and with NVRTC `cuda_p2p`.
fn backends() -> Vec<&'static str> {
    if crate::alone::has_nvrtc() { vec!["nccl", "cuda_p2p"] } else { vec!["nccl"] }
}

/// A test for each of the [`backends`], on devices that are all connected.
macro_rules! on_each_backend {
    ($name:ident, |$backend:ident| $body:block) => {
        on_the_double!(
            $name,
            ["DISCO_P2P_TOPOLOGY" = "fully_connected", "DISCO_NVRTC_LIBRARY" = &nvrtc_of_the_double()],
            {
                for $backend in backends() $body
            }
        );
    };
}

on_each_backend!(dropping_a_communicator_ends_its_graphs, |backend| {
    let session = patient(2);
    keep_graph(&session, backend);
    block_on(session.init_ccl(backend, &[])).unwrap();
    check_no_graph_is_left();
    let dropped = "launch of a graph: the communicator is broken since: the communicator was dropped";
    assert_eq!(launch_says(&session), dropped, "{backend}");
    // The graph is dropped before its communicator.
    block_on(async {
        call(&session, "tests.graphs.keep", ()).await.unwrap();
        call(&session, "tests.graphs.forget", ()).await.unwrap();
    });
    end(&session);
});

on_each_backend!(shutdown_of_a_session_ends_its_graphs, |backend| {
    let session = patient(3);
    keep_graph(&session, backend);
    end(&session);
    check_no_graph_is_left();
});

on_each_backend!(a_graph_launch_without_a_peer_ends_at_the_deadline, |backend| {
    let session = disco::Builder::threads(2).collective_deadline(Duration::from_millis(500)).start().unwrap();
    keep_graph(&session, backend);
    block_on(call(&session, "tests.graphs.launch_late", (0,))).unwrap();
    let error = text(block_on(call(&session, "tests.graphs.launch_but", (1,))));
    assert!(error.contains("no end after 500ms: rank 1 has not arrived"), "{backend}: {error}");
    block_on(session.recover()).unwrap();
    check_no_graph_is_left();
    let says = launch_says(&session);
    assert!(says.contains("launch of a graph: the communicator is broken since: "), "{backend}: {says}");
    assert!(says.contains("no end after 500ms: rank 1 has not arrived"), "{backend}: {says}");
    works_again(&session);
    end(&session);
});

on_each_backend!(an_abort_ends_a_launch_that_waits_for_a_peer, |backend| {
    let session = disco::Builder::threads(3);
    let session = session.collective_deadline(Duration::from_secs(30)).start().unwrap();
    keep_graph(&session, backend);
    let error = text(block_on(call(&session, "tests.graphs.fail_but_launch", (1,))));
    assert!(error.contains("no launch today"), "{backend}: {error}");
    block_on(session.recover()).unwrap();
    check_no_graph_is_left();
    let says = launch_says(&session);
    assert!(says.contains("the communicator is broken since: ") && says.contains("no launch today"), "{says}");
    works_again(&session);
    end(&session);
});

on_each_backend!(an_abort_ends_a_capture, |backend| {
    let session = patient(2);
    block_on(session.init_ccl(backend, &[])).unwrap();
    let error = text(block_on(call(&session, "tests.graphs.capture_until_aborted", (1,))));
    assert!(error.contains("no capture today"), "{backend}: {error}");
    block_on(session.recover()).unwrap();
    works_again(&session);
    end(&session);
    check_no_graph_is_left();
});

on_the_double!(a_graph_of_two_communicators_ends_with_the_first, ["GPU_DOUBLE_DELAY_US" = "200"], {
    let session = patient(2);
    block_on(session.init_ccl("nccl", &[])).unwrap();
    block_on(call(&session, "tests.graphs.two_communicators", ())).unwrap();
    end(&session);
    check_no_graph_is_left();
});

on_the_double!(a_communicator_ends_when_the_program_has_destroyed_its_own_graph, [], {
    let session = disco::Builder::threads(2).collective_deadline(Duration::from_millis(500)).start().unwrap();
    block_on(async {
        session.init_ccl("nccl", &[]).await.unwrap();
        call(&session, "tests.graphs.keep_own_graph", ()).await.unwrap();
        // The workers wait for a while, and then leave the communicators to background threads.
        session.init_ccl("nccl", &[]).await.unwrap();
        assert_eq!(sum(&session).await.unwrap(), 3.0);
        assert_ne!(threads("disco-ccl-end"), 0, "the graphs hold the communicators");
        call(&session, "tests.graphs.destroy_own_graph", ()).await.unwrap();
    });
    end(&session);
    check_no_graph_is_left();
    becomes("threads that end communicators", || threads("disco-ccl-end"), 0);
});
