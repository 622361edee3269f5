//! Workers that die or stop while NCCL is their data plane, on its test double.

use std::env;
use std::thread;
use std::time::Duration;

use disco::{
    Builder, CommunicatorExt, DType, Deadlines, Error, LaneSession, Placement, Reduction, Tensor, Value, WorkerContext,
    WorkerId, block_on,
};
use disco_conformance::waiting;
use rustix::process::{Pid, Signal, kill_process};

use super::{first_line, programs};
use crate::workers::NOBODY;

super::tests!(
    "nccl":
    a_worker_killed_before_an_all_reduce_of_nccl_is_lost_with_its_signal,
    a_worker_killed_while_peers_wait_for_it_in_an_all_reduce_of_nccl_is_lost_with_its_signal,
    a_worker_killed_during_all_reduces_of_nccl_is_lost_with_its_signal,
    worker_0_of_a_session_apart_is_killed_during_all_reduces_of_nccl,
    the_deadline_of_an_all_reduce_of_nccl_names_the_operation_and_a_stopped_rank,
);

disco::register_function!("tests.nccl.reduce", reduce);

/// All-reduces ones `times` times, and returns a sum; worker `stuck` hangs instead.
fn reduce(ctx: &mut WorkerContext, times: i64, stuck: u32) -> disco::Result<f32> {
    if ctx.worker() == stuck.into() {
        waiting::hang();
    }
    let ones = Tensor::from_slice(&[1.0_f32; 1 << 12], [1 << 12])?;
    let (tensor, sums) = (ctx.empty(DType::F32, [1 << 12])?, Tensor::zeros(DType::F32, [1 << 12])?);
    ctx.queue().copy_in(&tensor, &ones)?;
    for _ in 0..times {
        ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Sum)?;
    }
    ctx.queue().copy_out(&sums, &tensor)?;
    let deadline = ctx.deadline();
    ctx.queue().synchronize(deadline)?;
    Ok(sums.to_vec::<f32>()?[0])
}

/// The output of the program `nccl`, which finds the double: the errors of a session whose worker 2 is killed or
/// stopped at `when`.
fn end_of(when: &str) -> String {
    let mut command = programs::command("nccl");
    command.arg(when).env("LD_LIBRARY_PATH", disco_gpu_double::folder()).env_remove("DISCO_NCCL_LIBRARY");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const KILLED: &str = "worker 2 lost: its process ended: signal: 9 (SIGKILL)\nworker 2 is new: [27.0, 27.0, 27.0]\n";

fn a_worker_killed_before_an_all_reduce_of_nccl_is_lost_with_its_signal() {
    assert_eq!(end_of("before"), KILLED);
}

fn a_worker_killed_while_peers_wait_for_it_in_an_all_reduce_of_nccl_is_lost_with_its_signal() {
    assert_eq!(end_of("waited for"), KILLED);
}

fn a_worker_killed_during_all_reduces_of_nccl_is_lost_with_its_signal() {
    assert_eq!(end_of("in the middle"), KILLED);
}

fn worker_0_of_a_session_apart_is_killed_during_all_reduces_of_nccl() {
    let said = "worker 0 lost: its process ended: signal: 9 (SIGKILL)\nworker 0 is new: [27.0, 27.0, 27.0]\n";
    assert_eq!(end_of("apart"), said);
}

fn the_deadline_of_an_all_reduce_of_nccl_names_the_operation_and_a_stopped_rank() {
    let said = end_of("stop");
    let [waited, killed] = said.lines().collect::<Vec<_>>().try_into().unwrap();
    assert!(waited.starts_with("worker 0: tests.nccl.reduce (") || waited.starts_with("worker 1: tests.nccl.reduce ("));
    assert!(waited.ends_with("): all_reduce sum f32 x 4096: no end after 500ms: rank 2 has not arrived"), "{waited}");
    assert!(killed.starts_with("not stopped after 500ms: worker 2 ("), "{killed}");
}

/// The program `nccl`.
pub(crate) fn run() {
    disco::init();
    let when = env::args().next_back().unwrap();
    if when == "stop" { stop() } else { die(&when) }
}

/// Stops worker 2 before an all-reduce whose deadline is half a second, and prints the errors.
fn stop() {
    let limit = Duration::from_millis(500);
    let deadlines = Deadlines::default().with_close(limit);
    let session =
        Builder::processes(3).silence(Duration::from_secs(60)).collective_deadline(limit).deadlines(deadlines);
    let session = session.start().unwrap();
    block_on(async {
        session.init_ccl("nccl", &[]).await.unwrap();
        kill_process(pid_of(&session, 2).await, Signal::STOP).unwrap();
        session.call("tests.nccl.reduce", (1, NOBODY)).await.unwrap();
        println!("{}", first_line(&session.sync_worker(WorkerId::new(0)).await.unwrap_err()));
        println!("{}", session.shutdown().await.unwrap_err());
    });
}

/// The process id of a worker.
async fn pid_of(session: &LaneSession, worker: u32) -> Pid {
    let pids = session.call("tests.pid", ()).await.unwrap();
    let Value::Int(pid) = session.value(&pids, WorkerId::new(worker)).await.unwrap() else { panic!() };
    Pid::from_raw(pid as i32).unwrap()
}

/// Checks that a tensor of the controller reaches the devices of all workers.
async fn check_broadcast(session: &LaneSession, round: i64) -> disco::Result<()> {
    let sent = Tensor::from_vec((round..round + 100_000).collect::<Vec<i64>>(), [100_000])?;
    let all = session.empty(DType::I64, [100_000], Placement::All).await?;
    session.broadcast(&sent, &all).await?;
    for back in session.get_all::<Tensor>(&all).await? {
        assert!(back.to_vec::<i64>()? == sent.to_vec::<i64>()?, "round {round}");
    }
    Ok(())
}

/// Kills worker 2, or worker 0 that is a process of its own, before an all-reduce or while others are in one, prints the error, and
/// goes on with a new worker.
fn die(when: &str) {
    let is_apart = when == "apart";
    let session = Builder::processes(3).silence(Duration::from_secs(60)).heartbeat(Duration::from_millis(20));
    let session = session.apart(is_apart).start().unwrap();
    block_on(async {
        session.init_ccl("nccl", &[]).await.unwrap();
        let pid = pid_of(&session, if is_apart { 0 } else { 2 }).await;
        let kill = || kill_process(pid, Signal::KILL).unwrap();
        let reduce = session.function("tests.nccl.reduce").await.unwrap();
        if when == "before" {
            kill();
        }
        let args = if is_apart || when == "in the middle" { (1_000_000, NOBODY) } else { (1, 2) };
        // Fails if the loss is already known.
        _ = session.call(&reduce, args).await;
        if when != "before" {
            waiting::wait_until_inside(&session, "tests.nccl.reduce", 0..3);
            // The status does not say when they wait for their streams.
            thread::sleep(Duration::from_millis(50));
            kill();
        }
        let error = session.sync_all().await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        println!("{}", first_line(&error));
        let new = session.replace_lost().await.unwrap().workers;
        session.init_ccl("nccl", &[]).await.unwrap();
        let sums = session.call(&reduce, (3, NOBODY)).await.unwrap();
        println!("{} is new: {:?}", new[0], session.get_all::<f32>(&sums).await.unwrap());
        for round in 0..3 {
            check_broadcast(&session, round).await.unwrap();
        }
        session.shutdown().await.unwrap();
    });
}
