//! Sessions that get other numbers of workers.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use disco::{
    Builder, DType, Deadlines, Error, LaneSession, Launch, Placement, Rank, ReplacementPolicy, Scope, Tensor, Value,
    WorkerContext, WorkerId, block_on,
};
use disco_conformance::waiting;
use rustix::process::{Pid, Signal, kill_process};

use super::first_line;
use super::replace::{accept, call, check_sums_anew, lose, start};

super::tests!(
    survivors_of_a_loss_are_numbered_anew_and_keep_their_registers,
    a_session_of_one_worker_grows_by_processes,
    a_resize_that_can_not_be_changes_nothing,
    a_worker_of_a_lost_session_that_does_not_leave_is_killed,
    output_follows_the_numbers,
);

disco::register_function!("resize.fail", fail);
disco::register_function!("resize.print", print);
disco::register_function!("resize.seat", seat);
disco::register_function!("resize.stay", stay);

/// Fails on one worker.
fn fail(ctx: &mut WorkerContext, worker: i64) -> disco::Result<i64> {
    if ctx.worker().wire() == worker { Err(Error::invalid("as this test wants")) } else { Ok(0) }
}

/// Prints a line.
fn print(ctx: &mut WorkerContext, text: String) -> disco::Result<()> {
    println!("{text} of {}", ctx.worker());
    Ok(())
}

/// One worker does not return.
fn stay(ctx: &mut WorkerContext, worker: u32) -> disco::Result<()> {
    if ctx.worker() == worker.into() {
        waiting::hang();
    }
    Ok(())
}

fn wait_for_end_of(pid: i64) {
    let path = format!("/proc/{pid}");
    waiting::wait_until(&format!("the end of process {pid}"), || !Path::new(&path).exists());
}

/// The worker, the number of workers and the group, as the worker knows them.
fn seat(ctx: &mut WorkerContext) -> disco::Result<String> {
    Ok(format!("{} of {} in {}", ctx.worker(), ctx.world().size(), ctx.group()))
}

fn worker(number: u32) -> WorkerId {
    WorkerId::new(number)
}

fn resize(session: &LaneSession, workers: usize) -> disco::Resized {
    block_on(session.resize(workers)).unwrap()
}

/// New numbers as text: `0 1 - 2`.
fn numbers(resized: &disco::Resized) -> String {
    let numbers = resized.numbers.iter().map(|number| number.map_or("-".to_owned(), |id| id.index().to_string()));
    numbers.collect::<Vec<_>>().join(" ")
}

/// The value of `replace.number` on all workers.
fn ask(session: &LaneSession, offset: i64) -> Vec<i64> {
    block_on(session.get_all(&call(session, "replace.number", (offset,)))).unwrap()
}

/// Checks that everything follows the numbers 0 to `workers`.
fn check(session: &LaneSession, workers: usize) {
    assert_eq!(session.world().size(), workers);
    assert_eq!(ask(session, 0), (0..workers as i64).collect::<Vec<_>>());
    check_sums_anew(session, workers);
    let status = session.status();
    assert_eq!(status.workers.iter().map(|it| it.worker).collect::<Vec<_>>(), (0..workers).collect::<Vec<_>>());
    assert!(status.failure.is_none(), "{status:?}");
    let pids: Vec<i64> = block_on(session.get_all(&call(session, "replace.pid", ()))).unwrap();
    let known = status.workers.iter().map(|it| i64::from(it.process.unwrap()));
    assert!(known.eq(pids.iter().copied()), "{pids:?} {status:?}");
    let last = worker(workers as u32 - 1);
    block_on(session.sync_worker(last)).unwrap();
    let recordings = session.observer().recordings(usize::MAX, Duration::from_secs(5)).unwrap();
    assert_eq!(recordings.len(), workers);
    assert!(recordings.iter().all(|(_, recording)| recording.is_ok()));
    assert!(matches!(
        block_on(session.sync_worker(worker(workers as u32))),
        Err(Error::NoSuchWorker { workers: known, .. }) if known == workers
    ));
}

fn survivors_of_a_loss_are_numbered_anew_and_keep_their_registers() {
    let session = start(5);
    let number = block_on(session.function("replace.number")).unwrap();
    let before = block_on(session.call(&number, (10,))).unwrap();
    lose(&session, &[2]);
    let resized = resize(&session, 4);
    assert_eq!((numbers(&resized).as_str(), resized.epoch, &resized.workers[..]), ("0 1 - 2 3", 1, &[][..]));
    // The registers of old workers 0, 1, 3 and 4.
    assert_eq!(block_on(session.get_all::<i64>(&before)).unwrap(), [10, 11, 13, 14]);
    assert_eq!(block_on(session.get::<i64>(&before, worker(2))).unwrap(), 13);
    let seats = block_on(session.get_all::<String>(&call(&session, "resize.seat", ()))).unwrap();
    assert_eq!(seats, (0..4).map(|it| format!("worker {it} of 4 in group 0")).collect::<Vec<_>>());
    let after = block_on(session.call(&number, (20,))).unwrap();
    assert_eq!(block_on(session.get_all::<i64>(&after)).unwrap(), [20, 21, 22, 23]);
    check(&session, 4);
    // Small and large values reach the worker that has the number now.
    let tensor = Tensor::zeros(DType::F32, [1 << 20]).unwrap();
    for (at, value) in [(2, Value::Int(7)), (3, tensor.into())] {
        block_on(session.set(&before, worker(at), value)).unwrap();
    }
    assert_eq!(block_on(session.get::<i64>(&before, worker(2))).unwrap(), 7);
    assert_eq!(block_on(session.get::<Tensor>(&before, worker(3))).unwrap().elements(), 1 << 20);
    assert_eq!(block_on(session.get::<i64>(&before, worker(1))).unwrap(), 11);
    // Rooted operations, and errors.
    let src = block_on(session.empty(DType::F64, [1], Placement::All)).unwrap();
    block_on(session.set_each(&src, |id| Tensor::from_vec(vec![id.index() as f64 + 1.0], [1]).unwrap())).unwrap();
    block_on(session.broadcast_from(&src, &src, Rank::new(3), Scope::World)).unwrap();
    for at in 0..4 {
        let copy: Tensor = block_on(session.get(&src, worker(at))).unwrap();
        assert_eq!(copy.to_vec::<f64>().unwrap(), [4.0]);
    }
    call(&session, "resize.fail", (2,));
    let error = block_on(session.sync_all()).unwrap_err();
    assert_eq!(error.failure().unwrap().worker, worker(2));
    assert!(error.to_string().starts_with("worker 2: resize.fail (command "), "{error}");
    block_on(session.recover()).unwrap();
    assert_eq!(first_line(&lose(&session, &[3])), "worker 3 lost: its process ended: signal: 9 (SIGKILL)");
    let resized = resize(&session, 2);
    assert_eq!((numbers(&resized).as_str(), resized.epoch), ("0 1 - -", 3));
    check(&session, 2);
    block_on(session.shutdown()).unwrap();
}

fn a_session_of_one_worker_grows_by_processes() {
    let session = start(1);
    assert_eq!(resize(&session, 3).workers, [worker(1), worker(2)]);
    check(&session, 3);
    let pids: Vec<i64> = block_on(session.get_all(&call(&session, "replace.pid", ()))).unwrap();
    assert!(pids[0] == i64::from(std::process::id()) && pids[1] != pids[0] && pids[2] != pids[0]);
    block_on(session.shutdown()).unwrap();
}

fn a_resize_that_can_not_be_changes_nothing() {
    let session = Builder::processes(4).groups(2).replacement(ReplacementPolicy::never()).start().unwrap();
    let text = |workers| block_on(session.resize(workers)).unwrap_err().to_string();
    assert_eq!(text(0), "resize to 0: 0 workers in 2 groups: a session needs at least 1 worker");
    assert_eq!(text(5), "resize to 5: 5 workers in 2 groups: groups must be of equal size");
    assert_eq!(ask(&session, 0), [0, 1, 2, 3]);
    // The policy is about replacement.
    assert_eq!(resize(&session, 2).epoch, 1);
    assert_eq!(ask(&session, 0), [0, 1]);
    block_on(session.shutdown()).unwrap();
    assert!(matches!(block_on(session.resize(4)), Err(Error::Closed(_))));
    // New workers that can't be started.
    let invited = AtomicUsize::new(0);
    let builder = Builder::processes(2).process_options(|processes| {
        processes.launch = Some(Launch::elsewhere(move |invitation| {
            if invited.fetch_add(1, Ordering::Relaxed) == 1 {
                return Err(Error::invalid("no machine is free"));
            }
            accept(invitation);
            Ok(())
        }))
    });
    let session = builder.start().unwrap();
    assert_eq!(block_on(session.resize(3)).unwrap_err().to_string(), "no machine is free");
    assert_eq!(ask(&session, 0), [0, 1]);
    let resized = resize(&session, 3);
    assert_eq!((resized.epoch, resized.workers), (1, vec![worker(2)]));
    check(&session, 3);
    block_on(session.shutdown()).unwrap();
}

fn a_worker_of_a_lost_session_that_does_not_leave_is_killed() {
    let deadlines = Deadlines::default().with_close(Duration::from_secs(1));
    let session = Builder::processes(4).deadlines(deadlines).start().unwrap();
    block_on(session.init_ccl("local", &[])).unwrap();
    let pids: Vec<i64> = block_on(session.get_all(&call(&session, "replace.pid", ()))).unwrap();
    call(&session, "resize.stay", (3,));
    kill_process(Pid::from_raw(pids[1] as i32).unwrap(), Signal::KILL).unwrap();
    while !matches!(block_on(session.sync_worker(worker(2))), Err(Error::Lost(_))) {}
    let resized = resize(&session, 2);
    assert_eq!(numbers(&resized), "0 - 1 -");
    check(&session, 2);
    wait_for_end_of(pids[3]);
    check(&session, 2);
    block_on(session.shutdown()).unwrap();
}

fn output_follows_the_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let session = Builder::processes(4)
        .process_options(|processes| processes.log_dir = Some(folder.path().into()))
        .start()
        .unwrap();
    lose(&session, &[1]);
    resize(&session, 4);
    call(&session, "resize.print", ("a line",));
    block_on(session.sync_all()).unwrap();
    block_on(session.shutdown()).unwrap();
    for number in 1..4 {
        let text = std::fs::read_to_string(folder.path().join(format!("{number}/stdout.log"))).unwrap();
        assert_eq!(text, format!("a line of worker {number}\n"));
    }
}
