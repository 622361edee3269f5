//! Replies, state and notices of one worker that gets a fixed list of frames.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use disco_core::activity::Activity;
use disco_core::channel::{Notice, Reply};
use disco_core::worker::{self, WorkerConfig};
use disco_core::{
    Command, Endpoint, Error, Frame, Link, Members, Opaque, RegisterId, Result, Value, WorkerContext, WorkerId, World,
};

fn double(_: &mut WorkerContext, x: i64) -> Result<i64> {
    Ok(2 * x)
}

fn fail(_: &mut WorkerContext) -> Result<()> {
    Err(Error::Invalid("no luck".into()))
}

fn seat(ctx: &mut WorkerContext) -> Result<String> {
    Ok(format!("{} of {}", ctx.worker(), ctx.world().size()))
}

/// Counts calls, and tells the number when it is dropped.
#[derive(Default)]
struct Calls(Cell<i64>);

static DROPPED: AtomicI64 = AtomicI64::new(0);

impl Drop for Calls {
    fn drop(&mut self) {
        DROPPED.fetch_add(self.0.get(), Ordering::Relaxed);
    }
}

fn count(ctx: &mut WorkerContext) -> Result<i64> {
    let calls = ctx.state::<Calls>();
    calls.0.set(calls.0.get() + 1);
    Ok(calls.0.get())
}

/// A value whose destructor panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("went off");
    }
}

fn bomb(_: &mut WorkerContext) -> Result<Opaque> {
    Ok(Opaque::new(Bomb))
}

disco_core::register_function!("worker-test.bomb", bomb);
disco_core::register_function!("worker-test.count", count);
disco_core::register_function!("worker-test.double", double);
disco_core::register_function!("worker-test.fail", fail);
disco_core::register_function!("worker-test.seat", seat);

const WORKER: WorkerId = WorkerId::new(1);

/// A test double of a lane: a list of frames, and the replies to them.
struct Script {
    frames: VecDeque<Frame>,
    current: Option<Frame>,
    link: Arc<Link>,
    replies: Arc<Mutex<Vec<(u64, Reply)>>>,
}

impl Endpoint for Script {
    fn recv(&mut self) -> Result<&Frame> {
        self.current = self.frames.pop_front();
        self.current.as_ref().ok_or_else(|| Error::Closed("script".into()))
    }

    fn reply(&mut self, seq: u64, reply: Reply) -> Result<()> {
        self.replies.lock().unwrap().push((seq, reply));
        Ok(())
    }

    fn link(&self) -> Arc<Link> {
        self.link.clone()
    }
}

/// Runs worker 1 of 2 on commands, each with the ids freed before it. Returns replies and notices as text.
fn run(commands: Vec<(&[u32], Command)>) -> (Vec<String>, Vec<String>) {
    let notices = Arc::new(Mutex::new(Vec::new()));
    let noted = notices.clone();
    let link = Link::of_thread(Arc::default(), Activity::default(), move |notice: Notice| {
        noted.lock().unwrap().push(notice.to_string())
    });
    let frames = (1..)
        .zip(commands)
        .map(|(seq, (freed, command))| Frame::new(seq, freed.iter().copied().map(RegisterId::new), command));
    let replies = Arc::new(Mutex::new(Vec::new()));
    let script = Script { frames: frames.collect(), current: None, link: Arc::new(link), replies: replies.clone() };
    worker::run(WORKER, WorkerConfig::new(World::new(2, 1).unwrap()), script).unwrap();
    let text = |(seq, reply): &(u64, Reply)| match reply {
        Ok(value) => format!("{seq}: {value}"),
        Err(failure) => format!("{seq}: {failure}"),
    };
    let replies = replies.lock().unwrap().iter().map(text).collect();
    let notices = notices.lock().unwrap().clone();
    (replies, notices)
}

fn function(register: u32, name: &str) -> Command {
    Command::GetGlobalFunc { register: register.into(), name: name.into() }
}

fn call(register: u32, function: u32, args: &[Value]) -> Command {
    Command::CallPacked { register: register.into(), function: function.into(), args: args.to_vec() }
}

fn get(register: u32) -> Command {
    Command::DebugGet { register: register.into(), worker: WORKER }
}

fn set(register: u32, value: i64) -> Command {
    Command::DebugSet { register: register.into(), worker: WORKER, value: Value::Int(value) }
}

#[test]
fn commands_are_executed_in_order_and_only_commands_for_this_worker_get_replies() {
    let (replies, notices) = run(vec![
        (&[], function(0, "worker-test.double")),
        (&[], call(1, 0, &[Value::Int(21)])),
        (&[], call(1, 0, &[Value::Register(RegisterId::new(1))])),
        (&[], Command::SyncWorker { worker: WorkerId::new(0) }),
        (&[], Command::SyncWorker { worker: WORKER }),
        (&[], get(1)),
        (&[], set(7, 5)),
        (&[], get(7)),
        (&[], Command::SyncAll),
        (&[], Command::Shutdown),
        (&[], Command::SyncAll),
    ]);
    assert_eq!(replies, ["5: none", "6: 84", "7: none", "8: 5", "9: none"]);
    assert!(notices.is_empty());
}

#[test]
fn an_unknown_function_poisons_the_worker_and_suggests_a_similar_name() {
    let (replies, notices) = run(vec![(&[], function(3, "worker-test.dobule")), (&[], Command::SyncAll)]);
    let failure = "worker 1: function (command 1, register 3): \
                   no worker function `worker-test.dobule` is registered; did you mean `worker-test.double`?";
    assert_eq!(replies, [format!("2: {failure}")]);
    assert_eq!(notices, [format!("failed: {failure}")]);
}

#[test]
fn a_poisoned_worker_skips_calls_keeps_earlier_values_and_still_frees() {
    let (replies, notices) = run(vec![
        (&[], function(0, "worker-test.double")),
        (&[], function(1, "worker-test.fail")),
        (&[], call(2, 0, &[Value::Int(1)])),
        (&[], call(3, 1, &[])),
        (&[], call(4, 0, &[Value::Int(2)])),
        (&[], get(2)),
        (&[], get(3)),
        (&[], get(4)),
        (&[2], get(2)),
    ]);
    let failure = "worker 1: worker-test.fail (command 4, register 3): no luck";
    assert_eq!(replies, ["6: 2".into(), format!("7: {failure}"), format!("8: {failure}"), format!("9: {failure}")]);
    assert_eq!(notices.len(), 1, "the first error is told once");
}

#[test]
fn recovery_clears_the_failure_and_keeps_poisoned_registers() {
    let (replies, notices) = run(vec![
        (&[], function(0, "worker-test.fail")),
        (&[], call(1, 0, &[])),
        (&[], Command::Recover { epoch: 1 }),
        (&[], Command::SyncAll),
        (&[], get(1)),
        (&[], call(1, 0, &[])),
        (&[], Command::SyncAll),
    ]);
    assert_eq!(
        replies,
        [
            "4: none",
            "5: worker 1: worker-test.fail (command 2, register 1): no luck",
            "7: worker 1: worker-test.fail (command 6, register 1): no luck",
        ]
    );
    assert_eq!(notices.len(), 2);
}

#[test]
fn a_resize_gives_the_worker_another_number_and_its_lane_knows_it_by_its_place() {
    let resize = |epoch, workers, places: &[u32]| {
        let world = World::new(workers, 1).unwrap();
        let members = Members::new(world, places.iter().copied().map(WorkerId::new)).unwrap();
        Command::Resize { epoch, members: members.into() }
    };
    let (replies, notices) = run(vec![
        (&[], function(0, "worker-test.seat")),
        (&[], function(1, "worker-test.fail")),
        (&[], set(7, 5)),
        (&[], resize(1, 3, &[1, 3, 4])),
        (&[], call(2, 0, &[])),
        (&[], get(2)),
        (&[], get(7)),
        (&[], call(3, 1, &[])),
        // Its place is 1, and its number 0.
        (&[], Command::DebugGet { register: RegisterId::new(7), worker: WorkerId::new(0) }),
        (&[], get(3)),
        (&[], resize(2, 2, &[0, 1])),
        (&[], call(2, 0, &[])),
        (&[], get(2)),
        (&[], resize(3, 1, &[0])),
        (&[], Command::SyncAll),
    ]);
    let failure = "worker 1: worker-test.fail (command 8, register 3): no luck";
    assert_eq!(
        replies,
        [
            "3: none".into(),
            "6: \"worker 0 of 3\"".into(),
            "7: 5".into(),
            format!("10: {failure}"),
            "13: \"worker 1 of 2\"".into(),
        ]
    );
    assert_eq!(notices, [format!("failed: {failure}")]);
}

#[test]
fn a_destructor_that_panics_is_a_failure_of_its_worker() {
    let (replies, notices) = run(vec![
        (&[], function(0, "worker-test.bomb")),
        (&[], call(1, 0, &[])),
        (&[1], Command::SyncAll),
        (&[], get(1)),
        (&[], Command::Recover { epoch: 1 }),
        (&[], Command::SyncAll),
    ]);
    let failure = "worker 1: free (command 3, register 1): panicked: went off";
    assert_eq!(replies, [format!("3: {failure}"), format!("4: {failure}"), "6: none".into()]);
    assert_eq!(notices, [format!("failed: {failure}")]);
}

#[test]
fn freed_and_killed_registers_are_empty() {
    let (replies, _) = run(vec![
        (&[], set(1, 5)),
        (&[], set(2, 6)),
        (&[1], get(1)),
        (&[], Command::KillReg { register: RegisterId::new(2) }),
        (&[], get(2)),
        (&[], get(2_000)),
    ]);
    assert_eq!(
        replies[2..],
        [
            "3: worker 1: get (command 3, register 1): register 1 is empty",
            "5: worker 1: get (command 5, register 2): register 2 is empty",
            "6: worker 1: get (command 6, register 2000): register 2000 is empty",
        ]
    );
}

#[test]
fn state_outlives_a_recovery_and_ends_with_the_worker() {
    let count = || {
        let (replies, _) = run(vec![
            (&[], function(0, "worker-test.count")),
            (&[], call(1, 0, &[])),
            (&[], Command::Recover { epoch: 1 }),
            (&[], call(1, 0, &[])),
            (&[], get(1)),
        ]);
        assert_eq!(replies, ["5: 2"]);
    };
    count();
    assert_eq!(DROPPED.load(Ordering::Relaxed), 2);
    count();
    assert_eq!(DROPPED.load(Ordering::Relaxed), 4);
}
