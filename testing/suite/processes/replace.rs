//! Lost workers that are replaced by new processes.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use disco::error::ErrorKind;
use disco::{
    Builder, CommunicatorExt, DRef, DType, Error, Invitation, LaneSession, Reduction, ReplacementPolicy, Value,
    WorkerContext, WorkerId, block_on,
};
use rustix::process::{Pid, Signal, kill_process};

use super::first_line;
use crate::workers::lost;

super::tests!(
    a_killed_worker_is_replaced_and_the_others_keep_their_registers,
    kept_memory_is_found_by_the_worker_that_takes_the_place,
    the_policy_forbids_and_limits_replacements,
    a_timeline_has_the_records_of_the_new_worker,
);

disco::register_function!("replace.number", number);
disco::register_function!("replace.pid", pid);
disco::register_function!("replace.sum", sum);
disco::register_function!("replace.add", add);

fn number(ctx: &mut WorkerContext, offset: i64) -> disco::Result<i64> {
    Ok(ctx.worker().index() as i64 + offset)
}

fn pid(_: &mut WorkerContext) -> disco::Result<i64> {
    Ok(std::process::id().into())
}

/// The sum of the numbers of all workers, by an all-reduce of `count` elements.
fn sum(ctx: &mut WorkerContext, count: usize) -> disco::Result<f64> {
    let number = ctx.worker().index() as f64;
    let tensor = ctx.empty(DType::F64, [count])?;
    tensor.view_mut::<f64>()?.fill(number);
    ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Sum)?;
    let sums = tensor.to_vec::<f64>()?;
    assert!(sums.iter().all(|sum| *sum == sums[0]));
    Ok(sums[0])
}

/// Adds to a number in kept memory of so many numbers. Returns twice the number, and one more if the memory is new.
fn add(ctx: &mut WorkerContext, amount: i64, size: usize) -> disco::Result<i64> {
    let kept = ctx.keep("sum", DType::I64, [size])?;
    // The same memory, once more.
    assert!(!ctx.keep("sum", DType::U8, [8 * size])?.is_new);
    let mut numbers = kept.tensor.view_mut::<i64>()?;
    numbers[size - 1] += amount;
    Ok(2 * numbers[size - 1] + i64::from(kept.is_new))
}

pub(crate) fn start(workers: usize) -> LaneSession {
    let session = Builder::processes(workers).start().unwrap();
    block_on(session.init_ccl("local", &[])).unwrap();
    session
}

pub(crate) fn call(session: &LaneSession, name: &str, args: impl disco::IntoArgs) -> DRef {
    block_on(session.call(name, args)).unwrap()
}

pub(crate) fn kill(session: &LaneSession, workers: &[u32]) {
    let pids = block_on(session.get_all::<i64>(&call(session, "replace.pid", ()))).unwrap();
    for worker in workers {
        kill_process(Pid::from_raw(pids[*worker as usize] as i32).unwrap(), Signal::KILL).unwrap();
    }
}

/// Kills workers, and waits for the loss.
pub(crate) fn lose(session: &LaneSession, workers: &[u32]) -> Error {
    kill(session, workers);
    lost(session)
}

/// Starts the process of an invited worker.
pub(crate) fn accept(invitation: &Invitation) {
    let program = std::env::current_exe().unwrap();
    let child = std::process::Command::new(program).env("DISCO_WORKER", invitation.text()).spawn().unwrap();
    // Reaps the process.
    thread::spawn(move || child.wait_with_output());
}

/// Connects all workers, and checks that they reduce together.
pub(crate) fn check_sums_anew(session: &LaneSession, workers: usize) {
    block_on(session.init_ccl("local", &[])).unwrap();
    check_sums(session, workers);
}

/// Checks that all workers reduce together.
pub(crate) fn check_sums(session: &LaneSession, workers: usize) {
    let expected = (workers * (workers - 1) / 2) as f64;
    for count in [1, 700, 100_000] {
        let sums = block_on(session.get_all::<f64>(&call(session, "replace.sum", (count,)))).unwrap();
        assert_eq!(sums, vec![expected; workers]);
    }
}

fn a_killed_worker_is_replaced_and_the_others_keep_their_registers() {
    let session = start(4);
    let number = block_on(session.function("replace.number")).unwrap();
    let numbers = block_on(session.call(&number, (10,))).unwrap();
    assert_eq!(first_line(&lose(&session, &[2])), "worker 2 lost: its process ended: signal: 9 (SIGKILL)");
    let replaced = block_on(session.replace_lost()).unwrap();
    assert_eq!((replaced.workers, replaced.epoch), (vec![WorkerId::new(2)], 1));
    // Handles of functions are valid on all workers, also without another lookup.
    let again = block_on(session.call(&number, (20,))).unwrap();
    assert_eq!(block_on(session.get_all::<i64>(&again)).unwrap(), [20, 21, 22, 23]);
    assert_eq!(block_on(session.get::<i64>(&numbers, WorkerId::new(3))).unwrap(), 13);
    let error = block_on(session.value(&numbers, WorkerId::new(2))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotRestored { epoch: 1 });
    let register = numbers.register();
    let text = error.to_string();
    assert!(
        text.starts_with("worker 2: get (command ")
            && text.ends_with(&format!(
                ": {register} is empty on this worker, which is new since epoch 1: set the register again"
            )),
        "{text}"
    );
    // The data plane is made anew, by the old workers and the new one.
    let error = block_on(session.value(&call(&session, "replace.sum", (1,)), WorkerId::new(1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoCommunicator);
    check_sums_anew(&session, 4);
    block_on(session.set(&numbers, WorkerId::new(2), Value::Int(12))).unwrap();
    assert_eq!(block_on(session.get_all::<i64>(&numbers)).unwrap(), [10, 11, 12, 13]);
    let status = session.status();
    assert_eq!(status.workers.iter().map(|it| it.worker).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(status.failure.is_none() && status.workers.iter().all(|it| it.process.is_some()), "{status:?}");
    block_on(session.shutdown()).unwrap();
}

fn kept_memory_is_found_by_the_worker_that_takes_the_place() {
    let session = start(3);
    let add =
        |amount: i64, size: usize| block_on(session.get_all::<i64>(&call(&session, "replace.add", (amount, size))));
    assert_eq!(add(5, 1000).unwrap(), [11; 3]);
    for round in 0..3 {
        let before = 5 + round;
        lose(&session, &[1, 2]);
        assert_eq!(block_on(session.replace_lost()).unwrap().workers.len(), 2);
        assert_eq!(add(1, 1000).unwrap(), [2 * (before + 1); 3]);
    }
    let error = add(1, 999).unwrap_err().to_string();
    assert!(error.contains("7992 bytes of kept memory \"sum\", which has 8000 bytes: discard it first"), "{error}");
    block_on(session.recover()).unwrap();
    let discard = || block_on(session.get_all::<bool>(&call(&session, "disco.discard_kept", ("sum",)))).unwrap();
    assert_eq!((discard(), discard()), (vec![true; 3], vec![false; 3]));
    assert_eq!(add(2, 999).unwrap(), [5; 3]);
    discard();
    let error = add(1, 1 << 50).unwrap_err().to_string();
    assert!(error.contains("no room for 9007199254740992 bytes of shared memory"), "{error}");
    block_on(session.recover()).unwrap();
    // A worker with another place finds nothing.
    assert_eq!(add(1, 10).unwrap(), [3; 3]);
    block_on(session.resize(2)).unwrap();
    block_on(session.resize(3)).unwrap();
    assert_eq!(add(1, 10).unwrap(), [4, 4, 3]);
    block_on(session.shutdown()).unwrap();
}

fn the_policy_forbids_and_limits_replacements() {
    let session = Builder::processes(2).replacement(ReplacementPolicy::never()).start().unwrap();
    let loss = lose(&session, &[1]);
    for _ in 0..2 {
        let error = block_on(session.replace_lost()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "replace_lost: worker 1: the session never replaces workers (`ReplacementPolicy`)"
        );
        assert_eq!(block_on(session.sync_all()).unwrap_err().to_string(), loss.to_string(), "the session stays lost");
    }
    block_on(session.shutdown()).unwrap();

    let twice = ReplacementPolicy::when_asked().at_most(2, Duration::from_secs(3600));
    let session = Builder::processes(2).replacement(twice).start().unwrap();
    for _ in 0..2 {
        lose(&session, &[1]);
        block_on(session.replace_lost()).unwrap();
    }
    lose(&session, &[1]);
    let error = block_on(session.replace_lost()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "replace_lost: worker 1: 2 workers were replaced within 3600s, and the limit is 2 (`ReplacementPolicy::at_most`)"
    );
    block_on(session.shutdown()).unwrap();
}

fn a_timeline_has_the_records_of_the_new_worker() {
    let (send, receive) = mpsc::channel();
    let builder = Builder::processes(2).timeline(4096, move |timeline| send.send(timeline).unwrap());
    let session = builder.start().unwrap();
    // The lost worker has more records than the new one.
    (0..50).for_each(|_| drop(call(&session, "replace.number", (1,))));
    lose(&session, &[1]);
    block_on(session.replace_lost()).unwrap();
    assert_eq!(block_on(session.get_all::<i64>(&call(&session, "replace.number", (5,)))).unwrap(), [5, 6]);
    block_on(session.shutdown()).unwrap();
    let timeline = receive.recv().unwrap();
    let calls = |worker: usize| {
        let records = &timeline.workers[worker].1.as_ref().unwrap().records;
        records.iter().filter(|record| record.name.as_deref() == Some("replace.number")).count()
    };
    assert_eq!((calls(0), calls(1)), (51, 1));
}
