//! Tests of the member's engine; the simulation tests it together with the controller's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::activity::Progress;
use disco_core::channel::Signal;
use disco_core::wire::{Assignment, Hello, Join, Message, Times};
use disco_core::worker::WorkerConfig;
use disco_core::{Command, Error, Frame, RegisterId, WorkerId, WorkerRange, World};

use super::joining::{self, Joining};
use super::serving::{Action, Event, Member};
use super::upward::Replies;
use crate::clock::MachineClock;

const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn assignment() -> Assignment {
    Assignment {
        behind: [].into(),
        node: 1,
        workers: WorkerRange::new(2..4),
        processes: false,
        config: WorkerConfig::new(World::new(4, 1).unwrap()),
        heartbeat: SECOND,
        silence: 5 * SECOND,
        start: 30 * SECOND,
    }
}

fn node(now: Instant) -> Member {
    Member::node(&assignment(), false, now)
}

fn frame(seq: u64, command: Command) -> Event {
    let bytes = Frame::new(seq, [], command).bytes().unwrap().into();
    Event::Message(Message::Frame { seq, bytes, transfer: None })
}

/// The actions that follow from an event, abbreviated.
fn after(member: &mut Member, event: Event, now: Instant) -> Vec<String> {
    member.handle(event, now);
    let actions = std::iter::from_fn(|| member.next_action());
    let short = |action| match action {
        Action::Send(Message::Alive(_)) => "send Alive".to_owned(),
        Action::Send(message) | Action::SendLast(message) => format!("send {message}"),
        Action::Pass(frame) => format!("pass {}", frame.seq()),
        Action::Stop { cause, limit } => format!("stop after {limit:?}: {cause}"),
        Action::End(result) => format!("end: {}", result.map_or_else(|error| error.to_string(), |()| "ok".into())),
        Action::Signal(signal) => format!("{signal:?}"),
        other => format!("{other:?}"),
    };
    actions.map(short).collect()
}

fn free() -> Command {
    Command::KillReg { register: RegisterId::new(1) }
}

#[test]
fn frames_wait_for_room_and_are_acknowledged_by_quarters_of_the_credit() {
    let (now, mut node) = (Instant::now(), node(Instant::now()));
    for seq in 1..=256 {
        assert!(after(&mut node, frame(seq, free()), now).is_empty());
    }
    assert_eq!(after(&mut node, Event::Room(2), now), ["pass 1", "pass 2"]);
    let passed = after(&mut node, Event::Room(1000), now);
    assert!(passed.len() == 255 && passed[254].starts_with("send Credit { frames: 256"), "{:?}", passed.last());
    assert!(!node.wants_room());
}

#[test]
fn a_shutdown_behind_frames_waits_for_the_workers_and_one_ahead_drops_the_frames() {
    let (now, mut behind, mut ahead) = (Instant::now(), node(Instant::now()), node(Instant::now()));
    after(&mut behind, frame(1, free()), now);
    after(&mut behind, frame(2, Command::Shutdown), now);
    assert_eq!(after(&mut behind, Event::Room(9), now), ["pass 1", "pass 2", "AwaitWorkers"]);
    assert_eq!(after(&mut behind, Event::Left(String::new()), now), ["send Left(\"\")", "end: ok"]);

    after(&mut ahead, frame(1, free()), now);
    assert_eq!(after(&mut ahead, Event::Message(Message::Signal(Signal::Shutdown)), now), ["Shutdown", "AwaitWorkers"]);
    assert!(after(&mut ahead, frame(2, free()), now).is_empty() && !ahead.wants_room());
    assert_eq!(
        after(&mut ahead, Event::Message(Message::Bye("now".into())), now),
        ["stop after 0ns: the session shuts down"]
    );
    let stuck = after(&mut ahead, Event::Left("worker 3".into()), now);
    assert_eq!(stuck, ["send Left(\"worker 3\")", "end: these workers did not stop: worker 3"]);
}

#[test]
fn a_node_sends_heartbeats_until_its_workers_have_left() {
    let now = Instant::now();
    let mut node = node(now);
    after(&mut node, frame(1, free()), now);
    after(&mut node, Event::Message(Message::Signal(Signal::Shutdown)), now);
    after(&mut node, Event::Message(Message::Bye("now".into())), now);
    assert!(!node.wants_room());
    for second in 1..10 {
        assert_eq!(node.next_timeout(), Some(now + second * SECOND));
        assert_eq!(after(&mut node, Event::Timeout, now + second * SECOND), ["send Alive"]);
    }
    let left = after(&mut node, Event::Left("worker 3".into()), now + 10 * SECOND);
    assert_eq!(left[0], "send Left(\"worker 3\")");
    assert_eq!(node.next_timeout(), None);
}

#[test]
fn a_leaving_node_ignores_transfers_and_their_frames() {
    let (now, mut node) = (Instant::now(), node(Instant::now()));
    let ahead = |transfer, left, len| Event::Message(Message::Ahead { transfer, left, bytes: vec![0; len].into() });
    assert!(after(&mut node, ahead(1, 1, 1), now).is_empty());
    assert_eq!(after(&mut node, Event::Message(Message::Signal(Signal::Shutdown)), now), ["Shutdown", "AwaitWorkers"]);
    // The rest of the first transfer, and a part of an unknown transfer.
    let frame = Event::Message(Message::Frame { seq: 1, bytes: Arc::default(), transfer: Some(1) });
    for event in
        [ahead(1, 0, 1), frame, ahead(2, 5, 1), ahead(3, 0, usize::MAX >> 40), Event::Message(Message::Withdraw(9))]
    {
        assert!(after(&mut node, event, now).is_empty());
    }
}

#[test]
fn a_node_whose_controller_is_silent_or_lost_stops_its_workers() {
    let now = Instant::now();
    let why = "controller lost: no message came from it for 5s";
    let mut silent = node(now);
    for second in 1..5 {
        assert!(after(&mut silent, Event::Timeout, now + second * SECOND).contains(&"send Alive".to_owned()));
    }
    let stopped = after(&mut silent, Event::Timeout, now + 5 * SECOND);
    assert_eq!(stopped, [format!("send Bye(\"the {why}\")"), format!("stop after 1s: the {why}")]);
    assert_eq!(silent.next_timeout(), None);
    let ended = after(&mut silent, Event::Left(String::new()), now);
    assert_eq!(ended, ["send Left(\"\")".to_owned(), format!("end: the {why}")]);

    let mut frozen = node(now);
    let actions = after(&mut frozen, Event::Timeout, now + 60 * SECOND);
    assert_eq!(
        actions,
        ["ReadProgress", "send Alive"],
        "a node that did not run could not receive from the controller"
    );

    let closed = after(&mut node(now), Event::Closed, now);
    assert!(closed[1].ends_with("it closed the connection"), "{closed:?}");
    let full = after(&mut node(now), Event::Full(7), now);
    assert!(full[1].ends_with("it has left 7 bytes unread"), "{full:?}");
    let strange = after(&mut node(now), Event::Message(Message::Ready), now);
    assert!(strange[1].ends_with("it sent Ready"), "{strange:?}");
    let late = after(&mut node(now), Event::Started(Err(Error::NoCommunicator)), now);
    assert!(late[0].starts_with("send Bye"), "{late:?}");
}

#[test]
fn progress_is_reported_when_it_changes_and_is_a_worker_process_s_heartbeat() {
    let now = Instant::now();
    let at = |received| Progress::new(received, 0);
    let mut node = node(now);
    let both = |first, second| Event::Progress(vec![at(first), at(second)]);
    assert!(after(&mut node, both(0, 0), now).is_empty());
    assert!(after(&mut node, both(0, 1), now)[0].starts_with("send From { workers: WorkerRange { first: 3, len: 1 }"));
    assert!(after(&mut node, both(0, 1), now + 9 * SECOND).is_empty());
    let equal = after(&mut node, both(1, 1), now);
    assert!(equal.len() == 1 && equal[0].contains("first: 2, len: 2"), "{equal:?}");

    let mut worker = Member::worker(SECOND, 1 << 20, now);
    assert_eq!(after(&mut worker, Event::Progress(vec![at(1)]), now + SECOND / 2).len(), 1);
    assert_eq!(after(&mut worker, Event::Timeout, now + SECOND), ["ReadProgress"]);
    assert!(after(&mut worker, Event::Progress(vec![at(1)]), now + SECOND).is_empty());
    assert_eq!(after(&mut worker, Event::Timeout, now + 3 * SECOND / 2), ["ReadProgress"]);
    let heartbeat = after(&mut worker, Event::Progress(vec![at(1)]), now + 3 * SECOND / 2);
    assert!(heartbeat[0] == "Rest" && heartbeat[1].starts_with("send Progress"), "{heartbeat:?}");
}

#[test]
fn progress_of_an_idle_worker_is_polled_once_a_heartbeat_until_it_runs() {
    let now = Instant::now();
    let mut inside = Progress::new(2, 1);
    inside.inside = Some("f".into());
    let poll = |member: &mut Member, progress: &Progress, at| {
        after(member, Event::Timeout, at);
        after(member, Event::Progress(vec![progress.clone()]), at)
    };
    let mut worker = Member::worker(SECOND, 1 << 20, now);
    assert_eq!(worker.next_timeout(), Some(now + SECOND / 5));
    poll(&mut worker, &inside, now + 2 * SECOND);
    poll(&mut worker, &inside, now + 9 * SECOND);
    assert_eq!(worker.next_timeout(), Some(now + 9 * SECOND + SECOND / 5), "inside a function");
    let idle = Progress::new(2, 2);
    poll(&mut worker, &idle, now + 10 * SECOND);
    assert_eq!(worker.next_timeout(), Some(now + 10 * SECOND + SECOND / 5), "its progress has just changed");
    assert_eq!(poll(&mut worker, &idle, now + 11 * SECOND)[0], "Rest");
    assert_eq!(poll(&mut worker, &idle, now + 12 * SECOND).len(), 1, "the heartbeat and no other message");
    assert_eq!(worker.next_timeout(), Some(now + 13 * SECOND));
    after(&mut worker, Event::WorkerRuns, now + 12 * SECOND);
    assert_eq!(worker.next_timeout(), Some(now + 12 * SECOND + SECOND / 5));

    let mut node = node(now);
    poll(&mut node, &idle, now + SECOND / 2);
    poll(&mut node, &idle, now + 2 * SECOND);
    let rests = node.next_timeout();
    after(&mut node, frame(3, free()), now + 2 * SECOND);
    assert!(node.next_timeout() < rests, "a frame has come");
}

#[test]
fn a_worker_process_whose_controller_is_lost_ends_or_is_killed() {
    let now = Instant::now();
    let stopped = ["stop after 4s: the controller lost: it closed the connection"];
    let mut stuck = Member::worker(SECOND, 1 << 20, now);
    assert_eq!(after(&mut stuck, Event::Closed, now), stopped);
    assert!(after(&mut stuck, Event::Timeout, now + 3 * SECOND).is_empty());
    assert_eq!(stuck.next_timeout(), Some(now + 4 * SECOND));
    assert_eq!(after(&mut stuck, Event::Timeout, now + 4 * SECOND), ["Kill", "end: ok"]);

    let mut free = Member::worker(SECOND, 1 << 20, now);
    after(&mut free, Event::Closed, now);
    let lost = ["end: the controller lost: it closed the connection"];
    assert_eq!(after(&mut free, Event::Left(String::new()), now), lost);

    let mut early = Member::worker(SECOND, 1 << 20, now);
    assert!(after(&mut early, Event::Left(String::new()), now).is_empty());
    assert_eq!(after(&mut early, Event::Closed, now), [stopped[0], "end: ok"]);
}

#[test]
fn joining_ends_when_the_member_is_accepted_refused_or_timed_out() {
    let now = Instant::now();
    let join = || {
        Joining::new(
            Message::Join(Join { name: "host".into(), rack: String::new(), is_spare: false, functions: Vec::new() }),
            now,
        )
    };
    let hello = || {
        let hello = Hello { token: [].into(), worker: WorkerId::new(1), thread: 1, functions: Vec::new() };
        Joining::new(Message::Hello(hello), now)
    };
    let after = |joining: &mut Joining, event, now| {
        joining.handle(event, now);
        let actions = std::iter::from_fn(|| joining.next_action());
        let short = |action| match action {
            joining::Action::Send(message) => message.to_string().chars().take(5).collect(),
            joining::Action::Taken(_) => "taken".to_owned(),
            joining::Action::Refused(error) => error.to_string(),
            other => format!("{other:?}"),
        };
        actions.map(short).collect::<Vec<String>>()
    };
    let mut taken = join();
    assert_eq!(after(&mut taken, Event::Timeout, now + SECOND), ["Join(", "ShowWaiting", "Alive"]);
    assert!(after(&mut taken, Event::Message(Message::Alive(Times::default())), now + SECOND).is_empty());
    assert_eq!(after(&mut taken, Event::Message(Message::Assign(assignment())), now + SECOND), ["taken"]);
    assert_eq!((after(&mut taken, Event::Closed, now), taken.next_timeout()), (Vec::new(), None));

    let bye = || Event::Message(Message::Bye("full".into()));
    assert_eq!(after(&mut join(), bye(), now)[1], "the controller lost: it refuses this node: full");
    assert_eq!(after(&mut join(), Event::Closed, now)[1], "Retry(ConnectionClosed)");
    let silent = after(&mut join(), Event::Timeout, now + 10 * SECOND);
    assert_eq!(silent[1], "Retry(Silent(10s))");
    assert_eq!(after(&mut hello(), bye(), now)[1], "the controller refuses worker 1: full");
    assert_eq!(after(&mut hello(), Event::Closed, now)[1], "the controller lost: it closed the connection");
    let mut slow = hello();
    assert_eq!(after(&mut slow, Event::PartReceived, now + 20 * SECOND).len(), 1);
    assert_eq!(after(&mut slow, Event::Timeout, now + 30 * SECOND), ["the controller lost: it did not answer"]);
}

#[test]
fn replies_to_a_sync_of_all_go_up_together_unless_one_is_late() {
    let mut replies = Replies::new(WorkerRange::new(2..6));
    let sync = |seq| Frame::new(seq, [], Command::SyncAll);
    let replied = |replies: &mut Replies, workers, seq| replied(&replies.add(WorkerRange::new(workers), seq));
    replies.expect(&sync(1));
    replies.expect(&Frame::new(2, [], Command::SyncWorker { worker: WorkerId::new(2) }));
    assert_eq!(replied(&mut replies, 2..3, 1), "");
    assert_eq!(replied(&mut replies, 2..3, 2), "2: worker 2");
    assert_eq!(replied(&mut replies, 2..3, 1), "", "the same worker again");
    assert_eq!(replied(&mut replies, 4..6, 1), "", "those of a node behind");
    assert_eq!(replied(&mut replies, 3..4, 1), "1: workers 2 to 5");

    replies.expect(&sync(3));
    replies.expect(&sync(4));
    assert_eq!(replied(&mut replies, 3..5, 3), "");
    assert_eq!(self::replied(&replies.split()), "3: workers 3 to 4");
    assert_eq!(replied(&mut replies, 2..3, 3), "3: worker 2", "a late reply goes alone");
    assert!(replies.split().is_empty());
}

#[test]
fn replies_that_were_sent_early_are_not_sent_again_with_the_last_ones() {
    let mut replies = Replies::new(WorkerRange::new(0..4));
    replies.expect(&Frame::new(1, [], Command::SyncAll));
    assert!(replies.add(WorkerRange::new(1..2), 1).is_empty() && replies.add(WorkerRange::new(3..4), 1).is_empty());
    assert_eq!(replied(&replies.flush()), "1: worker 1, 1: worker 3");
    assert!(replies.flush().is_empty() && replies.add(WorkerRange::new(0..1), 1).is_empty());
    assert_eq!(replied(&replies.add(WorkerRange::new(2..3), 1)), "1: worker 0, 1: worker 2");
    assert!(replies.flush().is_empty());
}

#[test]
fn replies_do_not_wait_for_workers_that_are_gone() {
    let mut replies = Replies::new(WorkerRange::new(0..4));
    replies.retire(WorkerRange::new(2..4));
    replies.expect(&Frame::new(1, [], Command::SyncAll));
    assert!(replies.add(WorkerRange::new(1..2), 1).is_empty());
    assert_eq!(replied(&replies.add(WorkerRange::new(0..1), 1)), "1: workers 0 to 1");
    assert!(replies.flush().is_empty());
}

/// The numbers and workers of replies.
fn replied(messages: &[Message]) -> String {
    let text = |message: &Message| match message {
        Message::From { workers, message } => match &**message {
            Message::Reply { seq, .. } => format!("{seq}: {workers}"),
            other => other.to_string(),
        },
        other => other.to_string(),
    };
    messages.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[test]
fn a_node_answers_the_controller_s_heartbeats_at_once_with_its_clock() {
    let start = Instant::now();
    let clock = MachineClock::new(move |at| 5_000_000_000 + at.saturating_duration_since(start).as_nanos() as u64);
    let mut node = node(start).with_clock(clock);
    let mut answers = |event, at| {
        node.handle(event, at);
        let sent = |action| if let Action::Send(Message::Alive(times)) = action { Some(times) } else { None };
        std::iter::from_fn(|| node.next_action()).filter_map(sent).collect::<Vec<_>>()
    };
    let ask = |sent| Event::Message(Message::Alive(Times { sent, ..Times::default() }));
    let half = SECOND / 2;
    assert_eq!(answers(ask(77), start + half), [Times { sent: 5_500_000_000, echo: 77, held: 0 }]);
    // The answer was also the member's heartbeat.
    assert_eq!(answers(Event::Timeout, start + SECOND), []);
    let late = Times { sent: 6_500_000_000, echo: 77, held: 1_000_000_000 };
    assert_eq!(answers(Event::Timeout, start + half + SECOND), [late]);
    assert_eq!(answers(ask(0), start + half + SECOND), [], "the other end compares no clocks");
}
