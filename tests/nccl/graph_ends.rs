//! How graphs end: with their communicators, in whatever order, and while a launch waits for a peer.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use disco::nccl::cuda::capture;
use disco::nccl::disco_ccl::Graph;
use disco::session::LaneSession;
use disco::{
    CommunicatorExt as _, DataPlane, Error, Reduction, Session, SessionExt as _, Tensor, WorkerContext, block_on,
};

use crate::alone::{nvrtc, text, works_again};
use crate::costs::check_nothing_is_left;
use crate::graphs::{LEN, tensor};
use crate::on_the_double;
use crate::p2p::{call, patient};

thread_local! {
    /// What a worker keeps from one call to the next.
    static KEPT: RefCell<Option<(Graph, Tensor)>> = const { RefCell::new(None) };
}

/// Keeps a graph for later calls.
fn keep(ctx: &mut WorkerContext) -> disco::Result<()> {
    let x = tensor(ctx, LEN)?;
    let graph = capture(ctx, |ctx| ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum))?;
    graph.launch()?;
    KEPT.set(Some((graph, x)));
    ctx.comm()?.synchronize()
}

/// Launches it; `but` does not.
fn launch_but(ctx: &mut WorkerContext, but: u32) -> disco::Result<()> {
    if ctx.worker() != but.into() {
        KEPT.with_borrow(|kept| kept.as_ref().map_or(Ok(()), |(graph, _)| graph.launch()))?;
    }
    ctx.comm()?.synchronize()
}

/// Launches it, `late` so late that the others tell each other that they wait.
fn launch_late(ctx: &mut WorkerContext, late: u32) -> disco::Result<()> {
    if ctx.worker() == late.into() {
        std::thread::sleep(ctx.deadline() / 2);
    }
    launch_but(ctx, u32::MAX)
}

/// Launches it, and `but` fails in place of that.
fn fail_but_launch(ctx: &mut WorkerContext, but: u32) -> disco::Result<()> {
    if ctx.worker() == but.into() {
        return Err(Error::invalid("no launch today"));
    }
    launch_but(ctx, but)
}

/// What a launch says.
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

/// That all graphs were destroyed, soon.
pub(crate) fn check_no_graph_is_left() {
    #![allow(unsafe_code, reason = "a function of the double's")]
    let library = disco_dl::Library::open(&disco_dl::Candidate::file("libcuda.so.1")).unwrap();
    // SAFETY: this is its type.
    let live: extern "C" fn() -> u64 = unsafe { library.function(c"gpu_double_graphs") }.unwrap();
    let start = Instant::now();
    while live() > 0 && start.elapsed().as_secs() < 10 {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(live(), 0, "graphs and instances");
}

/// What a graph says when it is launched, on worker 0.
fn launch_says(session: &LaneSession) -> String {
    block_on(async {
        let answer = call(session, "tests.graphs.launch_error", ()).await.unwrap();
        session.get_as(&answer, 0.into()).await.unwrap()
    })
}

/// Backends whose communicators have graphs: the second one with kernels, where there is NVRTC.
fn backends() -> Vec<&'static str> {
    if crate::alone::has_nvrtc() { vec!["nccl", "cuda_p2p"] } else { vec!["nccl"] }
}

on_the_double!(
    a_communicator_that_is_dropped_ends_its_graphs,
    ["DISCO_P2P_TOPOLOGY" = "fully_connected", "DISCO_NVRTC_LIBRARY" = &nvrtc()],
    {
        for backend in backends() {
            let session = patient(2);
            block_on(async {
                session.init_ccl(backend, &[]).await.unwrap();
                call(&session, "tests.graphs.keep", ()).await.unwrap();
                session.init_ccl(backend, &[]).await.unwrap();
            });
            check_no_graph_is_left();
            let dropped = "launch of a graph: the communicator is broken since: the communicator was dropped";
            assert_eq!(launch_says(&session), dropped, "{backend}");
            // The graph goes before its communicator.
            block_on(async {
                call(&session, "tests.graphs.keep", ()).await.unwrap();
                call(&session, "tests.graphs.forget", ()).await.unwrap();
                session.shutdown().await.unwrap();
            });
            check_nothing_is_left();
        }
    }
);

on_the_double!(
    a_session_that_is_shut_down_ends_its_graphs,
    ["DISCO_P2P_TOPOLOGY" = "fully_connected", "DISCO_NVRTC_LIBRARY" = &nvrtc()],
    {
        for backend in backends() {
            let session = patient(3);
            block_on(async {
                session.init_ccl(backend, &[]).await.unwrap();
                call(&session, "tests.graphs.keep", ()).await.unwrap();
                session.shutdown().await.unwrap();
            });
            check_nothing_is_left();
            check_no_graph_is_left();
        }
    }
);

on_the_double!(
    a_launch_that_a_peer_does_not_join_ends_at_the_deadline,
    ["DISCO_P2P_TOPOLOGY" = "fully_connected", "DISCO_NVRTC_LIBRARY" = &nvrtc()],
    {
        for backend in backends() {
            let session = disco::Builder::threads(2).collective_deadline(Duration::from_millis(500)).start().unwrap();
            block_on(async {
                session.init_ccl(backend, &[]).await.unwrap();
                call(&session, "tests.graphs.keep", ()).await.unwrap();
                call(&session, "tests.graphs.launch_late", (0,)).await.unwrap();
            });
            let error = text(block_on(call(&session, "tests.graphs.launch_but", (1,))));
            assert!(error.contains("no end after 500ms: rank 1 has not come"), "{backend}: {error}");
            block_on(session.recover()).unwrap();
            check_no_graph_is_left();
            let says = launch_says(&session);
            assert!(says.contains("launch of a graph: the communicator is broken since: "), "{backend}: {says}");
            assert!(says.contains("no end after 500ms: rank 1 has not come"), "{backend}: {says}");
            works_again(&session);
            block_on(session.shutdown()).unwrap();
            check_nothing_is_left();
        }
    }
);

on_the_double!(
    an_abort_ends_a_launch_that_waits_for_a_peer,
    ["DISCO_P2P_TOPOLOGY" = "fully_connected", "DISCO_NVRTC_LIBRARY" = &nvrtc()],
    {
        for backend in backends() {
            let session = disco::Builder::threads(3);
            let session = session.collective_deadline(Duration::from_secs(30)).start().unwrap();
            block_on(async {
                session.init_ccl(backend, &[]).await.unwrap();
                call(&session, "tests.graphs.keep", ()).await.unwrap();
            });
            let error = text(block_on(call(&session, "tests.graphs.fail_but_launch", (1,))));
            assert!(error.contains("no launch today"), "{backend}: {error}");
            block_on(session.recover()).unwrap();
            check_no_graph_is_left();
            let says = launch_says(&session);
            assert!(says.contains("the communicator is broken since: ") && says.contains("no launch today"), "{says}");
            works_again(&session);
            block_on(session.shutdown()).unwrap();
            check_nothing_is_left();
        }
    }
);
