use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::channel::{Notice, Polled as _, Reply, Signal};
use disco_core::{Channel, Command, Endpoint, Error, Frame, Inbox, Result, Value, WorkerId, WorkerRange};

use super::{ThreadEndpoint, ThreadLane};

/// Records the calls of the inbox as text, in order of arrival.
#[derive(Default)]
struct Recorder {
    calls: Mutex<Vec<String>>,
    holds_back: AtomicBool,
}

impl Recorder {
    fn record(&self, what: String) {
        self.calls.lock().unwrap().push(what);
    }

    fn sorted(&self) -> Vec<String> {
        let mut events = self.calls.lock().unwrap().clone();
        events.sort();
        events
    }
}

impl Inbox for Recorder {
    fn reply(&self, from: WorkerId, seq: u64, reply: Reply) {
        self.record(format!("{from} replies to {seq}: {reply:?}"));
    }
    fn accepts_large_replies(&self) -> bool {
        !self.holds_back.load(Ordering::SeqCst)
    }
    fn notice(&self, from: WorkerId, notice: Notice) {
        self.record(format!("{from} notes: {notice}"));
    }
    fn room(&self, workers: WorkerRange) {
        self.record(format!("room for {workers:?}"));
    }
    fn left(&self, _: WorkerRange) {}
    fn lost(&self, _: WorkerRange, why: Error) {
        self.record(why.to_string());
    }
}

const LONG: Duration = Duration::from_secs(60);

fn start<F>(range: Range<u32>, run: F) -> (ThreadLane, Arc<Recorder>)
where
    F: Fn(WorkerId, ThreadEndpoint) -> Result<()> + Send + Sync + 'static,
{
    let lane = ThreadLane::new(WorkerRange::new(range), Arc::default(), run);
    let events = Arc::new(Recorder::default());
    lane.start(events.clone()).unwrap();
    (lane, events)
}

/// A worker that answers every command.
fn obedient(_: WorkerId, mut endpoint: ThreadEndpoint) -> Result<()> {
    while let Ok(frame) = endpoint.recv() {
        if *frame.command() == Command::Shutdown {
            break;
        }
        let seq = frame.seq();
        endpoint.reply(seq, Ok(Value::None))?;
    }
    Ok(())
}

fn frame(seq: u64, command: Command) -> Arc<Frame> {
    Arc::new(Frame::new(seq, Vec::new(), command))
}

fn close(lane: &ThreadLane, limit: Duration) -> Result<()> {
    lane.close(limit)
}

#[test]
fn threads_carry_the_names_of_their_workers() {
    let (lane, events) = start(3..4, |_, mut endpoint| {
        let name = thread::current().name().map(Value::from);
        endpoint.reply(0, Ok(name.unwrap_or(Value::None)))?;
        obedient(WorkerId::new(3), endpoint)
    });
    lane.send(&frame(1, Command::Shutdown)).unwrap();
    close(&lane, LONG).unwrap();
    assert!(events.sorted()[0].contains("disco-worker-3"), "{:?}", events.sorted());
}

#[test]
fn a_worker_that_ends_before_shutdown_is_reported_lost_with_the_reason() {
    let (lane, events) = start(0..4, |worker, endpoint| match worker.index() {
        0 => panic!("bad {}", "luck"),
        1 => Err(Error::NoCommunicator),
        2 => Ok(()),
        _ => obedient(worker, endpoint),
    });
    while events.calls.lock().unwrap().len() < 3 {
        thread::yield_now();
    }
    lane.signal(Signal::Shutdown).unwrap();
    close(&lane, LONG).unwrap();
    let lost: Vec<_> = events.sorted().into_iter().filter(|text| text.contains("lost")).collect();
    assert_eq!(lost.len(), 3);
    assert_eq!(lost[0], "worker 0 lost: its thread panicked: bad luck");
    assert_eq!(lost[1], format!("worker 1 lost: its thread ended: {}", Error::NoCommunicator));
    assert_eq!(lost[2], "worker 2 lost: its thread ended before shutdown");
}

#[test]
fn a_second_start_and_a_start_without_workers_fail() {
    let (lane, events) = start(0..1, obedient);
    assert!(lane.start(events.clone()).unwrap_err().to_string().ends_with("the lane was started before"));
    let none = ThreadLane::new(WorkerRange::new(2..2), Arc::default(), obedient);
    assert!(none.start(events).unwrap_err().to_string().contains("a lane has 1 to 65535 workers"));
    let idle = ThreadLane::new(WorkerRange::new(0..1), Arc::default(), obedient);
    assert!(idle.send(&frame(1, Command::SyncAll)).unwrap_err().to_string().ends_with("the lane was not started"));
    close(&idle, LONG).unwrap();
}

#[test]
fn a_large_reply_waits_until_the_inbox_accepts_it_or_the_lane_closes() {
    // Answers a sync of all workers with a small reply, and any other command with a large one.
    let (lane, events) = start(0..1, |_, mut endpoint| {
        while let Ok(frame) = endpoint.recv() {
            let (seq, bytes) = (frame.seq(), if *frame.command() == Command::SyncAll { 1 } else { 100_000 });
            endpoint.reply(seq, Ok(Value::from(vec![7u8; bytes])))?;
        }
        Ok(())
    });
    let large = Command::SyncWorker { worker: WorkerId::new(0) };
    let wait_for = |count| {
        let end = Instant::now() + LONG;
        while events.sorted().len() < count {
            assert!(Instant::now() < end, "{count} replies are missing: {:?}", events.sorted());
            thread::yield_now();
        }
    };
    events.holds_back.store(true, Ordering::SeqCst);
    lane.send(&frame(1, Command::SyncAll)).unwrap();
    wait_for(1);
    lane.send(&frame(2, large.clone())).unwrap();
    // Time in which the lane would deliver the reply.
    thread::sleep(Duration::from_millis(50));
    assert_eq!(events.sorted().len(), 1);
    events.holds_back.store(false, Ordering::SeqCst);
    wait_for(2);
    events.holds_back.store(true, Ordering::SeqCst);
    lane.send(&frame(3, large)).unwrap();
    lane.signal(Signal::Shutdown).unwrap();
    close(&lane, LONG).unwrap();
}

#[test]
fn a_reply_that_is_left_for_a_caller_that_polls_is_delivered_before_the_loss_of_its_worker() {
    let (left, is_left) = mpsc::channel();
    let (lane, events) = start(3..4, move |_, mut endpoint| {
        let seq = endpoint.recv()?.seq();
        endpoint.reply(seq, Ok(Value::None))?;
        left.send(()).unwrap();
        _ = endpoint.recv()?;
        panic!("expected by the test");
    });
    lane.note_caller(true);
    lane.send(&frame(1, Command::SyncAll)).unwrap();
    is_left.recv_timeout(LONG).unwrap();
    assert!(events.sorted().is_empty(), "the caller has not polled yet");
    lane.send(&frame(2, Command::SyncAll)).unwrap();
    close(&lane, LONG).unwrap();
    let calls = events.calls.lock().unwrap().clone();
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert!(calls[0].starts_with("worker 3 replies to 1") && calls[1].contains("expected by the test"), "{calls:?}");
    lane.note_caller(false);
}
