//! Workers and controllers that die, stop or misbehave, and the resulting errors.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use disco::error::{LossCause, LostPeer, ProcessEnd};
use disco::{Builder, Deadlines, Error, LaneSession, Launch, Value, WorkerId, WorkerRange, World, block_on};
use disco_channel::processes::{self, ProcessLane};
use disco_conformance::waiting::{self, wait_until, wait_until_in_collective};
use disco_core::{
    Channel, Command, Frame, Inbox,
    channel::{Notice, Reply},
    worker::WorkerConfig,
};
use rustix::process::{Pid, Signal, kill_process};

use super::functions::resident;
use super::{first_line, life, programs};
use crate::workers::{NOBODY, kill_after};

super::tests!(
    a_killed_worker_is_lost_before_the_silence_limit,
    a_worker_killed_during_a_collective_is_lost_and_leaks_no_memory,
    a_worker_that_exits_in_a_function_is_lost_with_its_status,
    a_stack_overflow_is_the_loss_of_its_worker,
    a_stopped_worker_is_lost_after_the_silence_limit_and_killed,
    a_worker_inside_a_function_is_not_lost_after_the_silence_limit,
    a_worker_that_corrupts_its_cursor_in_the_ring_is_lost,
    syncs_end_although_a_worker_corrupts_the_count_of_polling_callers,
    a_worker_that_sends_invalid_messages_is_lost,
    a_panic_of_the_service_thread_is_the_loss_of_the_lane_s_workers,
    shutdown_names_and_kills_a_stuck_worker,
    workers_end_when_their_controller_is_killed,
    a_worker_that_dies_after_shutdown_was_sent_is_lost,
    a_million_calls_behind_a_stuck_worker_meet_back_pressure_and_fail_at_the_stall_deadline,
    large_calls_behind_a_stuck_worker_meet_back_pressure_and_fail_at_the_stall_deadline,
);

/// A silence limit that no test reaches.
const LONG: Duration = Duration::from_secs(60);

/// A heartbeat interval after which the status of a session has changed.
const HEARTBEAT: Duration = Duration::from_millis(20);

/// Calls a function by name.
fn call<A: disco::IntoArgs>(session: &LaneSession, name: &str, args: A) -> disco::Result<disco::DRef> {
    block_on(async { session.call(name, args).await })
}

fn pid_of(session: &LaneSession, worker: u32) -> Pid {
    let pid = call(session, "tests.pid", ()).unwrap();
    let Value::Int(pid) = block_on(session.value(&pid, WorkerId::new(worker))).unwrap() else { panic!() };
    Pid::from_raw(pid as i32).unwrap()
}

/// Whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// The text of [`loss`].
fn lost(session: LaneSession) -> String {
    first_line(&loss(session))
}

/// The loss that a session reports, from every later operation, too. The shutdown succeeds.
fn loss(session: LaneSession) -> Error {
    let error = block_on(session.sync_all()).unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    let again = block_on(session.sync_worker(WorkerId::new(0))).unwrap_err();
    assert_eq!(again.to_string(), error.to_string(), "a later operation has the same error");
    block_on(session.shutdown()).unwrap();
    error
}

fn a_killed_worker_is_lost_before_the_silence_limit() {
    let session = Builder::processes(3).silence(LONG).start().unwrap();
    kill_process(pid_of(&session, 2), Signal::KILL).unwrap();
    let error = loss(session);
    assert_eq!(first_line(&error), "worker 2 lost: its process ended: signal: 9 (SIGKILL)");
    // A program matches the fields.
    let Error::Lost(loss) = &error else { panic!("{error:?}") };
    let LostPeer::Workers { workers, node: None, .. } = &loss.peer else { panic!("{loss:?}") };
    assert_eq!(*workers, WorkerRange::new(2..3));
    let end = ProcessEnd::Signaled { signal: 9, core_dumped: false };
    assert_eq!(loss.cause, LossCause::ProcessEnded { end, connected: true });
}

/// A session with communicators, and the process id of worker `victim`.
fn connected(victim: u32, silence: Duration) -> (LaneSession, Pid) {
    let session = Builder::processes(3).silence(silence).heartbeat(HEARTBEAT).start().unwrap();
    block_on(session.init_ccl("local", &[])).unwrap();
    let pid = pid_of(&session, victim);
    (session, pid)
}

const KILLED: &str = "worker 2 lost: its process ended: signal: 9 (SIGKILL)";

fn a_worker_killed_during_a_collective_is_lost_and_leaks_no_memory() {
    let before = life::steady_resources();
    // Kills at several moments of the collectives.
    for round in 0..8 {
        let (session, pid) = connected(2, LONG);
        call(&session, "tests.reduce", (4 << 20, 1_000_000, NOBODY)).unwrap();
        wait_until_in_collective(&session, 0..3);
        kill_after(Duration::from_millis(7 * round), pid);
        assert_eq!(lost(session), KILLED);
    }
    let is_as_before = || (life::resources() == before).then_some(());
    waiting::poll(Duration::from_secs(5), is_as_before)
        .unwrap_or_else(|| panic!("{before:?} before, now {:?}", life::resources()));
}

fn a_worker_that_exits_in_a_function_is_lost_with_its_status() {
    let session = Builder::processes(3).start().unwrap();
    call(&session, "tests.exit", (1, 3)).unwrap();
    assert_eq!(lost(session), "worker 1 lost: its process ended: exit status: 3");
}

fn a_stack_overflow_is_the_loss_of_its_worker() {
    let session = Builder::processes(2).start().unwrap();
    call(&session, "tests.overflow", (1,)).unwrap();
    assert_eq!(
        lost(session),
        "worker 1 lost: its process ended: signal: 6 (SIGABRT) (core dumped)"
            .replace(" (core dumped)", if core_dumps() { " (core dumped)" } else { "" },)
    );
}

/// Whether the status of an aborted process says that it dumped core.
fn core_dumps() -> bool {
    let status = std::process::Command::new("/bin/sh").args(["-c", "kill -ABRT $$"]).status().unwrap();
    status.to_string().contains("core dumped")
}

fn a_stopped_worker_is_lost_after_the_silence_limit_and_killed() {
    let session = Builder::processes(3).silence(Duration::from_millis(500)).start().unwrap();
    let pid = pid_of(&session, 1);
    kill_process(pid, Signal::STOP).unwrap();
    assert_eq!(lost(session), "worker 1 lost: no message came from it for 500ms");
    assert!(!is_alive(pid.as_raw_nonzero().get() as u32));
}

fn a_worker_inside_a_function_is_not_lost_after_the_silence_limit() {
    let session = Builder::processes(2).silence(Duration::from_millis(500)).start().unwrap();
    call(&session, "tests.sleep", (1, 1.0)).unwrap();
    block_on(session.sync_all()).unwrap();
    block_on(session.shutdown()).unwrap();
}

fn a_worker_that_corrupts_its_cursor_in_the_ring_is_lost() {
    // Commands over sockets, in place of the ring, end with another error.
    let deadlines = Deadlines::default().with_stall(Duration::from_secs(10));
    let session = Builder::processes(3).deadlines(deadlines).start().unwrap();
    // Worker 2 is the second reader. It hangs, because the reader would overwrite the cursor.
    call(&session, "tests.scribble", (2, 5 + 2, true)).unwrap();
    let nop = block_on(session.function("tests.take_4")).unwrap();
    // The controller reads the cursors when the ring is full.
    let error = loop {
        if let Err(error) = block_on(session.call(&nop, (1, 2.0, "text", true))) {
            break error;
        }
    };
    assert_eq!(error.to_string(), "worker 2 lost: it put garbage into the ring: its cursor in the ring");
    block_on(session.shutdown()).unwrap();
}

fn syncs_end_although_a_worker_corrupts_the_count_of_polling_callers() {
    let session = Builder::processes(3).start().unwrap();
    call(&session, "tests.scribble", (2, 4, false)).unwrap();
    for _ in 0..10 {
        block_on(session.sync_all()).unwrap();
        block_on(session.sync_worker(1.into())).unwrap();
    }
    block_on(session.shutdown()).unwrap();
}

fn a_worker_that_sends_invalid_messages_is_lost() {
    let cases = [
        ("ahead of its epoch", "a request in epoch 5, which has not begun"),
        ("in another's name", "another worker's name of a descriptor: 0x700000000"),
    ];
    for (program, why) in cases {
        let (folder, path) = programs::script(program);
        // The invalid message arrives before or after the end of the start.
        let error = match Builder::processes(2)
            .process_options(|processes| processes.launch = Some(Launch::program(path, std::env::args_os().skip(1))))
            .start()
        {
            Ok(session) => lost(session),
            Err(error) => error.to_string(),
        };
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(error, format!("worker 1 lost: it sent garbage: {why}"));
    }
}

/// An inbox that panics on a reply.
#[derive(Debug)]
struct PanickingInbox(mpsc::Sender<String>);

impl Inbox for PanickingInbox {
    fn reply(&self, _: WorkerId, _: u64, _: Reply) {
        panic!("a defect, on purpose");
    }

    fn notice(&self, _: WorkerId, _: Notice) {}

    fn room(&self, _: WorkerRange) {}

    fn left(&self, _: WorkerRange) {}

    fn lost(&self, workers: WorkerRange, error: Error) {
        self.0.send(format!("{}: {error}", workers.first())).unwrap();
    }
}

fn a_panic_of_the_service_thread_is_the_loss_of_the_lane_s_workers() {
    let options = processes::Options::new(WorkerConfig::new(World::new(3, 1).unwrap()));
    let lane = ProcessLane::new(WorkerRange::new(1..3), Arc::default(), options);
    let (tell, told) = mpsc::channel();
    lane.start(Arc::new(PanickingInbox(tell))).unwrap();
    lane.send(&Arc::new(Frame::new(1, [], Command::SyncAll))).unwrap();
    for worker in 1..3 {
        let why = "the service thread of the lane panicked";
        assert_eq!(told.recv_timeout(LONG).unwrap(), format!("worker {worker}: worker {worker} lost: {why}"));
    }
    lane.close(LONG).unwrap();
}

fn shutdown_names_and_kills_a_stuck_worker() {
    let deadlines = Deadlines::default().with_close(Duration::from_millis(300));
    let session = Builder::processes(3).deadlines(deadlines).start().unwrap();
    let pid = pid_of(&session, 2);
    call(&session, "tests.hang", (2,)).unwrap();
    let error = block_on(session.shutdown()).unwrap_err().to_string();
    let text = "not stopped after 300ms: worker 2 (finished command 4, in command 5, inside `tests.hang`; killed)";
    assert_eq!(error, text);
    assert!(!is_alive(pid.as_raw_nonzero().get() as u32));
}

fn workers_end_when_their_controller_is_killed() {
    let mut controller = programs::command("controller").stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(controller.stdout.take().unwrap()).lines().map(Result::unwrap);
    let pids: Vec<u32> = lines.take_while(|line| line != "ready").map(|line| line.parse().unwrap()).collect();
    assert!(pids.len() == 3 && pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");
    controller.kill().unwrap();
    controller.wait().unwrap();
    wait_until("the end of the workers", || !pids.iter().any(|pid| is_alive(*pid)));
}

fn a_million_calls_behind_a_stuck_worker_meet_back_pressure_and_fail_at_the_stall_deadline() {
    let (stall, close) = (Duration::from_secs(1), Duration::from_millis(100));
    let deadlines = Deadlines::default().with_stall(stall).with_close(close);
    let session = Builder::processes(3).deadlines(deadlines).start().unwrap();
    call(&session, "tests.hang", (1,)).unwrap();
    let nop = block_on(session.function("tests.take_4")).unwrap();
    let before = resident();
    let error = (0..1_000_000).find_map(|_| block_on(session.call(&nop, (1, 2.0, "text", true))).err()).unwrap();
    let text =
        "worker 1 took no command for 1s and its lane is full: finished command 1, in command 2, inside `tests.hang`";
    assert_eq!(error.to_string(), text);
    assert!(resident() < before + (16 << 20), "{} bytes more", resident() - before);
    assert!(block_on(session.shutdown()).unwrap_err().to_string().starts_with("not stopped after 100ms: worker 1 ("));
}

fn large_calls_behind_a_stuck_worker_meet_back_pressure_and_fail_at_the_stall_deadline() {
    let (stall, close) = (Duration::from_secs(1), Duration::from_millis(100));
    let deadlines = Deadlines::default().with_stall(stall).with_close(close);
    let session = Builder::processes(2).deadlines(deadlines).start().unwrap();
    call(&session, "tests.hang", (1,)).unwrap();
    let length = block_on(session.function("tests.length")).unwrap();
    let text = "x".repeat(1 << 20);
    let before = resident();
    let error = (0..10_000).find_map(|_| block_on(session.call(&length, (text.as_str(),))).err()).unwrap();
    assert!(error.to_string().starts_with("worker 1 took no command for 1s and its lane is full: "), "{error}");
    assert!(resident() < before + (200 << 20), "{} bytes more", resident() - before);
    assert!(block_on(session.shutdown()).is_err());
}

fn a_worker_that_dies_after_shutdown_was_sent_is_lost() {
    let session = Builder::processes(3).start().unwrap();
    block_on(session.init_ccl("local", &[])).unwrap();
    call(&session, "tests.sleep", (1, 0.2)).unwrap();
    call(&session, "tests.exit", (1, 3)).unwrap();
    // The other workers wait for worker 1 in the collective.
    call(&session, "tests.reduce", (1000, 1, NOBODY)).unwrap();
    let error = block_on(session.shutdown()).unwrap_err();
    assert_eq!(error.to_string(), "worker 1 lost: its process ended: exit status: 3");
}
