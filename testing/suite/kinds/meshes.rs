//! Communicators along axes of meshes: failures, new data planes, and other numbers of workers.

use std::time::Duration;

use disco::error::ErrorKind;
use disco::{
    CommunicatorExt as _, DType, Deadlines, LaneSession, Mesh, Placement, Reduction, Result, Tensor, WorkerContext,
    block_on,
};

use super::marker::stay;
use super::{Kind, builder, call};

super::tests![
    a_mesh_that_does_not_fit_is_refused_with_sizes_that_would,
    before_init_ccl_there_is_no_communicator_along_an_axis,
    an_unknown_axis_or_a_text_that_is_no_mesh_is_an_error_of_the_worker_function,
    workers_that_use_different_axes_first_are_a_mismatch,
    an_absent_worker_of_a_collective_along_an_axis_is_named,
    a_worker_that_does_not_use_the_axes_is_named_with_comm_in,
];

disco::register_function!("tests.mesh_sum", sum);
disco::register_function!("tests.mesh_divided", divided);
disco::register_function!("tests.mesh_apart", apart);
disco::register_function!("tests.mesh_forgotten", forgotten);

/// The sum of the workers' numbers along an axis.
fn sum(ctx: &mut WorkerContext, mesh: Mesh, axis: String) -> Result<i64> {
    let x = Tensor::from_slice(&[ctx.worker().index() as i64], [1])?;
    ctx.comm_in(&mesh.along(&[&axis])?)?.all_reduce_in_place(&x, Reduction::Sum)?;
    Ok(x.to_vec::<i64>()?[0])
}

/// Workers 1 and 2 use another axis than workers 0 and 3, so that each gets a communicator of two ranks.
fn divided(ctx: &mut WorkerContext, mesh: Mesh) -> Result<i64> {
    let axis = if [1, 2].contains(&ctx.worker().index()) { "dp" } else { "tp" };
    sum(ctx, mesh, axis.into())
}

/// Worker 1 makes a split by hand, and leaves worker 0 alone.
fn apart(ctx: &mut WorkerContext, mesh: Mesh) -> Result<i64> {
    if ctx.worker().index() == 1 {
        return Ok(ctx.comm()?.split(None, 0)?.is_some().into());
    }
    sum(ctx, mesh, "tp".into())
}

/// Worker 1 forgets the communicator.
fn forgotten(ctx: &mut WorkerContext, mesh: Mesh) -> Result<i64> {
    if ctx.worker().index() == 1 { Ok(0) } else { sum(ctx, mesh, "tp".into()) }
}

fn a_worker_that_does_not_use_the_axes_is_named_with_comm_in(kind: Kind) {
    let session = builder(kind).collective_deadline(Duration::from_millis(300)).start().unwrap();
    block_on(session.init_ccl("local", &[])).unwrap();
    call(&session, "tests.mesh_forgotten", (mesh("dp=2,tp=2"),)).unwrap();
    let text = block_on(session.sync_all()).unwrap_err().to_string();
    assert!(text.contains(": comm_in, in its split: no end after 300ms: rank 1 has not arrived"), "{text}");
    block_on(session.recover()).unwrap();
    block_on(session.shutdown()).unwrap();
}

fn mesh(text: &str) -> Mesh {
    text.parse().unwrap()
}

fn start(kind: Kind) -> LaneSession {
    let session = builder(kind).start().unwrap();
    block_on(session.init_ccl("local", &[])).unwrap();
    session
}

/// The sums along an axis on all workers.
fn sums(session: &LaneSession, text: &str, axis: &str) -> Result<Vec<i64>> {
    block_on(async {
        let sums = session.call("tests.mesh_sum", (mesh(text), axis)).await?;
        session.get_all(&sums).await
    })
}

fn a_mesh_that_does_not_fit_is_refused_with_sizes_that_would(kind: Kind) {
    let session = start(kind);
    let why = "mesh `dp=2,tp=3` has 6 places, and the session has 4 workers; `dp=2,tp=2` or `dp=1,tp=4` would fit";
    block_on(async {
        let x = session.empty(DType::F32, [1], Placement::All).await?;
        let tp = mesh("dp=2,tp=3").along(&["tp"])?;
        let error = session.all_reduce(&x, &x, Reduction::Sum, tp.clone()).await.unwrap_err();
        assert_eq!(error.to_string(), format!("all_reduce: {why}"));
        let error = session.all_gather_v(&x, &x, &[1, 1, 1], tp).await.unwrap_err();
        assert_eq!(error.to_string(), format!("all_gather_v: {why}"));
        // Nothing was submitted.
        session.sync_all().await
    })
    .unwrap();
    let error = sums(&session, "dp=2,tp=3", "tp").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().starts_with("worker ") && error.to_string().ends_with(why), "{error}");
    block_on(session.shutdown()).unwrap();
}

fn before_init_ccl_there_is_no_communicator_along_an_axis(kind: Kind) {
    let session = builder(kind).start().unwrap();
    let error = sums(&session, "dp=2,tp=2", "tp").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoCommunicator);
    assert!(error.to_string().contains("init_ccl"), "{error}");
    block_on(session.shutdown()).unwrap();
}

fn an_unknown_axis_or_a_text_that_is_no_mesh_is_an_error_of_the_worker_function(kind: Kind) {
    let session = start(kind);
    let error = sums(&session, "data=2,tensor=2", "tensr").unwrap_err().to_string();
    assert!(error.ends_with("mesh `data=2,tensor=2` has no axis `tensr`; did you mean `tensor`?"), "{error}");
    block_on(session.init_ccl("local", &[])).unwrap();
    let called = call(&session, "tests.mesh_sum", ("dp=2;tp=2", "tp")).unwrap();
    let error = block_on(session.get_all::<i64>(&called)).unwrap_err().to_string();
    assert!(error.contains("expected a mesh") && error.contains("`dp=2;tp=2` is no mesh"), "{error}");
    block_on(session.shutdown()).unwrap();
}

fn workers_that_use_different_axes_first_are_a_mismatch(kind: Kind) {
    let session = start(kind);
    for (function, why) in [
        // Worker 1 or worker 2 is the first to compare its axis.
        ("tests.mesh_divided", " splits along dp of dp=2,tp=2, rank 0 along tp of dp=2,tp=2"),
        ("tests.mesh_apart", "rank 0 splits along tp of dp=2,tp=2 and becomes rank 0 of 1, not rank 0 of 2"),
    ] {
        call(&session, function, (mesh("dp=2,tp=2"),)).unwrap();
        let error = block_on(session.sync_all()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        let text = error.to_string();
        assert!(text.contains(": comm_in: ranks disagree: rank ") && text.contains(why), "{text}");
        block_on(session.init_ccl("local", &[])).unwrap();
        assert_eq!(sums(&session, "dp=2,tp=2", "tp").unwrap(), [1, 1, 5, 5]);
        // Without the communicator of the sum.
        block_on(session.init_ccl("local", &[])).unwrap();
    }
    block_on(session.shutdown()).unwrap();
}

fn an_absent_worker_of_a_collective_along_an_axis_is_named(kind: Kind) {
    let deadlines = Deadlines::default().with_collective(Duration::from_millis(400));
    let session = builder(kind).deadlines(deadlines).start().unwrap();
    block_on(session.init_ccl("local", &[])).unwrap();
    assert_eq!(sums(&session, "dp=2,tp=2", "dp").unwrap(), [2, 4, 2, 4]);
    let inside = stay(&session, 3);
    let error = sums(&session, "dp=2,tp=2", "dp").unwrap_err().to_string();
    assert!(error.contains(", split dp of dp=2,tp=2, set 1, as each worker has recorded it:"), "{error}");
    assert!(error.ends_with("Missing: worker 3 has not called it."), "{error}");
    drop(inside);
    block_on(session.init_ccl("local", &[])).unwrap();
    block_on(session.shutdown()).unwrap();
}
