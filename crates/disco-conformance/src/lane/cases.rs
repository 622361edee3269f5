//! The contract of a lane. The name of each case is a sentence of the contract.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use disco_core::channel::{CallOps, FrameSize, Notice, Polling, Signal};
use disco_core::{AbortCause, Command, Error, Members, WorkerId, WorkerRange, World};

use super::fixture::{CheckResult, Fixture, expect_equal, to_text};
use super::frames::{fingerprint, middling, naming, plain, small, various};
use super::harness::Harness;
use super::recorded::{Event, RecordedEvents};
use super::role::{Role, failure};
use crate::waiting;

/// A case: its name, and the function that checks it.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) run: fn(&dyn Harness) -> CheckResult<()>,
}

macro_rules! cases {
    ($($name:ident)*) => {
        /// All of them.
        pub(super) static ALL: &[Case] = &[$(Case { name: stringify!($name), run: $name }),*];
    };
}

cases! {
    frames_arrive_complete_and_in_order_on_all_workers
    more_frames_than_a_full_lane_takes_arrive_in_order
    a_full_lane_refuses_frames_and_reports_room
    replies_carry_their_number_and_worker
    a_failure_is_a_reply_like_any_other
    notices_arrive_without_a_command
    workers_answer_a_cancellation_and_hear_that_it_is_settled
    an_abort_overtakes_frames
    an_abort_is_accepted_by_a_full_lane
    a_signalled_shutdown_overtakes_frames
    a_shutdown_ends_workers_and_closes_the_lane
    workers_are_reported_as_left_after_their_replies
    workers_that_a_resize_leaves_out_leave_and_are_not_lost
    replies_arrive_once_also_while_callers_poll
    replies_left_for_a_caller_arrive_before_the_end
    a_worker_that_ends_early_is_lost_with_its_number
    lost_workers_do_not_delay_the_others
    close_names_stuck_workers_and_their_functions
    progress_counts_received_and_finished_commands
    workers_use_the_store_while_they_execute_a_frame
    a_store_handle_is_valid_only_in_its_epoch
    a_lane_has_the_workers_of_its_constructor_and_starts_once
    a_dropped_lane_releases_its_inbox
}

fn frames_arrive_complete_and_in_order_on_all_workers(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..3, Role::Recite)?;
    let frames = various();
    frames.iter().try_for_each(|frame| fixture.send(frame))?;
    fixture.wait_for_replies(&(0..3), frames.len())?;
    let expected: Vec<(u64, String)> = frames.iter().map(|frame| (frame.seq(), fingerprint(frame))).collect();
    for worker in 0..3 {
        expect_equal(&format!("frames of worker {worker}"), &fixture.replies_of(worker), &expected)?;
    }
    fixture.end()
}

fn more_frames_than_a_full_lane_takes_arrive_in_order(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..2, Role::Recite)?;
    let count = 3 * fixture.lane.room(FrameSize::Large).clamp(1, 3000) as u64;
    (1..=count).try_for_each(|seq| fixture.send(&small(seq)))?;
    fixture.wait_for_replies(&(0..2), count as usize)?;
    for worker in 0..2 {
        let numbers: Vec<u64> = fixture.replies_of(worker).into_iter().map(|reply| reply.0).collect();
        expect_equal(&format!("numbers on worker {worker}"), &numbers, &(1..=count).collect())?;
    }
    fixture.end()
}

fn a_full_lane_refuses_frames_and_reports_room(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..2, Role::AwaitAbort)?;
    let sent = fill(&fixture)?;
    if fixture.lane.send(&small(sent + 1)).is_ok() {
        return Err(format!("the lane has no room after {sent} frames, and takes another"));
    }
    fixture.abort("go on")?;
    fixture.wait("the lane tells of room", |events| {
        events.iter().any(|event| matches!(event, Event::Room(workers) if *workers == WorkerRange::new(0..2)))
    })?;
    // The refused frame must not arrive.
    fixture.send(&small(sent + 2))?;
    fixture.wait_for_replies(&(0..2), sent as usize + 2)?;
    let last: Vec<u64> = fixture.replies_of(1).iter().rev().take(2).map(|reply| reply.0).collect();
    expect_equal("the last two frames", &last, &vec![sent + 2, sent])?;
    fixture.end()
}

fn replies_carry_their_number_and_worker(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 2..5, Role::Recite)?;
    fixture.send(&small(41))?;
    fixture.wait_for_replies(&(2..5), 1)?;
    for worker in 2..5 {
        let numbers: Vec<u64> = fixture.replies_of(worker).into_iter().map(|reply| reply.0).collect();
        expect_equal("numbers of replies", &numbers, &vec![41])?;
    }
    fixture.end()
}

fn a_failure_is_a_reply_like_any_other(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..2, Role::Recite)?;
    fixture.send(&plain(3, Command::SyncWorker { worker: WorkerId::new(1) }))?;
    fixture.wait_for_replies(&(0..2), 1)?;
    expect_equal("the reply", &fixture.replies_of(1), &vec![(3, failure(WorkerId::new(1), 3).to_string())])?;
    fixture.end()
}

fn notices_arrive_without_a_command(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..2, Role::Notify)?;
    let has_notice = |events: &[Event], worker: WorkerId| {
        events.iter().any(|event| match event {
            Event::Notice(from, Notice::Failed { epoch: 0, failure: text }) => {
                *from == worker && *text == failure(worker, 4)
            }
            _ => false,
        })
    };
    fixture.wait("a notice of both workers", |events| (0..2).all(|worker| has_notice(events, worker.into())))?;
    fixture.end()
}

fn workers_answer_a_cancellation_and_hear_that_it_is_settled(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..2, Role::AwaitAbort)?;
    fill(&fixture)?;
    to_text(fixture.lane.signal(Signal::Cancel { command: 5, cause: "not needed".into() }))?;
    let has_answered = |events: &[Event], worker: WorkerId| {
        let ops = CallOps::Collectives(0);
        let is_answer =
            |notice: &Notice| matches!(notice, Notice::Cancelled { command: 5, has_left: true, ops: it } if *it == ops);
        events.iter().any(|event| matches!(event, Event::Notice(from, notice) if *from == worker && is_answer(notice)))
    };
    fixture.wait("the answers", |events| (0..2).all(|worker| has_answered(events, worker.into())))?;
    to_text(fixture.lane.signal(Signal::Settle { command: 4, breaks: None }))?;
    // Again and again: it aborts the listeners that the workers have by then.
    waiting::wait_until("the end of the cancellation", || {
        let settled = fixture.lane.signal(Signal::Settle { command: 5, breaks: Some("not needed".into()) });
        settled.is_err() || (0..2).all(|worker| !fixture.replies_of(worker).is_empty())
    });
    let cause = AbortCause::Cancelled { command: 5, why: "not needed".into() };
    for worker in 0..2 {
        expect_equal("the cause", &fixture.replies_of(worker)[0], &(0, cause.to_string()))?;
    }
    fixture.end()
}

fn an_abort_overtakes_frames(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..2, Role::AwaitAbort)?;
    (1..=3).try_for_each(|seq| fixture.send(&small(seq)))?;
    fixture.abort("worker 1 failed")?;
    fixture.wait_for_replies(&(0..2), 4)?;
    for worker in 0..2 {
        let replies = fixture.replies_of(worker);
        expect_equal("the first reply", &replies[0], &(0, "worker 1 failed".into()))?;
        expect_equal(
            "numbers after it",
            &replies[1..].iter().map(|reply| reply.0).collect::<Vec<_>>(),
            &vec![1, 2, 3],
        )?;
    }
    fixture.end()
}

fn an_abort_is_accepted_by_a_full_lane(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..1, Role::AwaitAbort)?;
    fill(&fixture)?;
    fixture.abort("it is full")?;
    fixture.wait_for_replies(&(0..1), 1)?;
    expect_equal("the first reply", &fixture.replies_of(0)[0], &(0, "it is full".into()))?;
    fixture.end()
}

fn a_signalled_shutdown_overtakes_frames(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..2, Role::AwaitAbort)?;
    (1..=3).try_for_each(|seq| fixture.send(&small(seq)))?;
    to_text(fixture.lane.signal(Signal::Shutdown))?;
    fixture.abort("leave")?;
    to_text(fixture.lane.close(fixture.timeout))?;
    for worker in 0..2 {
        let numbers: Vec<u64> = fixture.replies_of(worker).into_iter().map(|reply| reply.0).collect();
        if numbers.iter().any(|number| *number > 0) {
            return Err(format!("worker {worker} took commands after the shutdown was signalled: {numbers:?}"));
        }
    }
    nobody_is_lost(&fixture)
}

fn a_shutdown_ends_workers_and_closes_the_lane(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..2, Role::Recite)?;
    fixture.send(&small(1))?;
    fixture.send(&plain(2, Command::Shutdown))?;
    to_text(fixture.lane.close(fixture.timeout))?;
    expect_equal("replies", &fixture.replies_of(1).len(), &1)?;
    match fixture.lane.send(&small(3)) {
        Err(Error::Closed(_)) => {}
        other => return Err(format!("a frame after close gives {other:?}")),
    }
    to_text(fixture.lane.close(fixture.timeout))?;
    nobody_is_lost(&fixture)
}

fn workers_are_reported_as_left_after_their_replies(harness: &dyn Harness) -> CheckResult<()> {
    for overtakes in [false, true] {
        let fixture = Fixture::start(harness, 2..5, Role::Enlarge)?;
        fixture.send(&small(1))?;
        if overtakes {
            to_text(fixture.lane.signal(Signal::Shutdown))?
        } else {
            fixture.send(&plain(2, Command::Shutdown))?
        }
        to_text(fixture.lane.close(fixture.timeout))?;
        let events = fixture.events.so_far();
        for worker in (2..5).map(WorkerId::new) {
            let left = |event: &Event| matches!(event, Event::Left(workers) if workers.contains(worker));
            let Some(first) = events.iter().position(left) else {
                return Err(format!("{worker} has left, but the lane has not reported it"));
            };
            let is_reply = |event: &Event| matches!(event, Event::Reply(from, ..) if *from == worker);
            if events[first..].iter().any(is_reply) {
                return Err(format!("the lane has reported {worker} as left before its last reply"));
            }
            if !overtakes && !events[..first].iter().any(is_reply) {
                return Err(format!("the lane has reported {worker} as left, and its reply is missing"));
            }
        }
        nobody_is_lost(&fixture)?;
    }
    Ok(())
}

fn replies_arrive_once_also_while_callers_poll(harness: &dyn Harness) -> CheckResult<()> {
    const FRAMES: u64 = 2000;
    let fixture = Fixture::start(harness, 0..3, Role::Acknowledge)?;
    let (lanes, is_over) = ([fixture.lane.clone()], AtomicBool::new(false));
    thread::scope(|scope| {
        for rounds in [0, 1, 30] {
            let (lanes, is_over) = (&lanes, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let polling = Polling::start(lanes);
                    (0..rounds).for_each(|_| polling.poll());
                    drop(polling);
                    thread::yield_now();
                }
            });
        }
        let answered = (1..=FRAMES).try_for_each(|seq| fixture.send(&small(seq)));
        let answered = answered.and_then(|()| fixture.wait_for_replies(&(0..3), FRAMES as usize));
        is_over.store(true, Ordering::Relaxed);
        answered
    })?;
    for worker in 0..3 {
        let mut numbers: Vec<u64> = fixture.replies_of(worker).into_iter().map(|reply| reply.0).collect();
        numbers.sort_unstable();
        expect_equal("numbers of replies", &numbers, &(1..=FRAMES).collect())?;
    }
    fixture.end()
}

fn replies_left_for_a_caller_arrive_before_the_end(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..2, Role::Acknowledge)?;
    if let Some(polled) = fixture.lane.polled() {
        polled.note_caller(true);
    }
    (1..=3).try_for_each(|seq| fixture.send(&small(seq)))?;
    fixture.send(&plain(4, Command::Shutdown))?;
    to_text(fixture.lane.close(fixture.timeout))?;
    let events = fixture.events.so_far();
    for worker in 0..2 {
        let left = |event: &Event| matches!(event, Event::Left(workers) if workers.contains(WorkerId::new(worker)));
        let before = events.iter().position(left).unwrap_or(0);
        let is_reply = |event: &&Event| matches!(event, Event::Reply(from, ..) if from.index() == worker as usize);
        expect_equal("the replies before the end", &events[..before].iter().filter(is_reply).count(), &3)?;
    }
    nobody_is_lost(&fixture)
}

fn a_worker_that_ends_early_is_lost_with_its_number(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..4, Role::EndEarly)?;
    fixture.send(&small(1))?;
    fixture.wait("the loss of three workers", |events| lost(events).len() >= 3)?;
    fixture.wait_for_replies(&(3..4), 1)?;
    let mut lost = lost(&fixture.events.so_far());
    lost.sort_by_key(|(worker, _)| *worker);
    expect_equal("the lost workers", &lost.iter().map(|(worker, _)| *worker).collect::<Vec<_>>(), &vec![0, 1, 2])?;
    for (worker, why) in &lost {
        if !why.starts_with(&format!("worker {worker} lost: ")) {
            return Err(format!("the error about worker {worker} does not name it: {why}"));
        }
    }
    fixture.end()
}

fn lost_workers_do_not_delay_the_others(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..4, Role::EndEarly)?;
    let count = 3 * fixture.lane.room(FrameSize::Large).clamp(1, 3000) as u64;
    (1..=count).try_for_each(|seq| fixture.send(&small(seq)))?;
    fixture.wait_for_replies(&(3..4), count as usize)?;
    fixture.end()
}

fn close_names_stuck_workers_and_their_functions(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 1..3, Role::Stick)?;
    fixture.send(&small(17))?;
    fixture.watch("worker 1 is inside `f`", |lane| lane.progress(WorkerId::new(1)).inside)?;
    fixture.send(&plain(18, Command::Shutdown))?;
    match fixture.lane.close(Duration::from_millis(50)) {
        Err(Error::Stuck { workers, .. }) if workers.contains("worker 1") && !workers.contains("worker 2") => {
            let is_complete = ["in command 17", "inside `f`"].iter().all(|part| workers.contains(part));
            is_complete
                .then_some(())
                .ok_or_else(|| format!("the error does not name the command and the function of worker 1: {workers}"))
        }
        other => Err(format!("worker 1 is stuck, and close gives {other:?}")),
    }
}

fn progress_counts_received_and_finished_commands(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 1..3, Role::Stick)?;
    fixture.send(&small(5))?;
    fixture.send(&small(6))?;
    let of = |worker: u32, received: u64, finished: u64| {
        fixture.watch(&format!("worker {worker} received {received} and finished {finished}"), |lane| {
            let progress = lane.progress(WorkerId::new(worker));
            ((progress.received, progress.finished) == (received, finished)).then_some(())
        })
    };
    of(2, 6, 6)?;
    of(1, 5, 0)?;
    let stranger = fixture.lane.progress(WorkerId::new(7));
    expect_equal("progress of a worker of another lane", &(stranger.received, stranger.finished), &(0, 0))?;
    to_text(fixture.lane.signal(Signal::Shutdown))?;
    // Worker 1 is stuck for good.
    _ = fixture.lane.close(Duration::from_millis(50));
    Ok(())
}

fn workers_use_the_store_while_they_execute_a_frame(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..3, Role::Meet)?;
    for seq in 1..=5 {
        fixture.send(&naming(seq, &(0..3)))?;
        fixture.wait_for_replies(&(0..3), seq as usize)?;
    }
    for worker in 0..3 {
        let expected: Vec<(u64, String)> =
            (1..=5).map(|seq| (seq, format!("{:?}", disco_core::Value::from(vec![0u8, 1, 2])))).collect();
        expect_equal(&format!("whom worker {worker} met"), &fixture.replies_of(worker), &expected)?;
    }
    fixture.end()
}

fn a_store_handle_is_valid_only_in_its_epoch(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..2, Role::Recover)?;
    fixture.send(&small(1))?;
    fixture.wait_for_replies(&(0..2), 1)?;
    fixture.send(&plain(2, Command::Recover { epoch: 1 }))?;
    // Now worker 0 is in epoch 1, and worker 1 is late.
    fixture.wait_for_replies(&(0..2), 2)?;
    fixture.send(&small(3))?;
    fixture.wait_for_replies(&(0..2), 3)?;
    for (worker, frame, expected) in
        [(0, 0, "true, true"), (1, 0, "true, true"), (0, 2, "false, true"), (1, 2, "false, false")]
    {
        let what = format!("whether stores work on worker {worker}, the first that it got and the latest");
        expect_equal(&what, &fixture.replies_of(worker)[frame].1.as_str(), &expected)?;
    }
    fixture.end()
}

fn workers_that_a_resize_leaves_out_leave_and_are_not_lost(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 0..3, Role::Recite)?;
    let members = to_text(World::new(2, 1).and_then(|world| Members::new(world, [0, 1].map(WorkerId::new))))?;
    let resize = Command::Resize { epoch: 1, members: members.into() };
    let last = WorkerId::new(2);
    let understood = fixture.lane.facts().understands.map_or(Ok(()), |check| check(&resize));
    let permitted = fixture.lane.starts().map_or(Ok(()), |starts| starts.check_leave(last.into()));
    if understood.and(permitted).is_err() {
        return fixture.end();
    }
    fixture.send(&small(1))?;
    fixture.send(&plain(2, resize))?;
    fixture.send(&small(3))?;
    fixture.wait_for_replies(&(0..2), 3)?;
    let has_left = |event: &Event| matches!(event, Event::Left(workers) if workers.contains(last));
    fixture.wait("the report that worker 2 has left", |events| events.iter().any(has_left))?;
    expect_equal("replies of worker 2", &fixture.replies_of(2).len(), &1)?;
    expect_equal("lost workers", &lost(&fixture.events.so_far()).len(), &0)?;
    fixture.end()
}

fn a_lane_has_the_workers_of_its_constructor_and_starts_once(harness: &dyn Harness) -> CheckResult<()> {
    let fixture = Fixture::start(harness, 2..4, Role::Recite)?;
    expect_equal("workers", &fixture.lane.facts().workers, &WorkerRange::new(fixture.workers.clone()))?;
    if fixture.lane.start(Arc::new(RecordedEvents::default())).is_ok() {
        return Err("it started twice".into());
    }
    fixture.end()
}

fn a_dropped_lane_releases_its_inbox(harness: &dyn Harness) -> CheckResult<()> {
    let Fixture { lane, events, timeout, .. } = Fixture::start(harness, 0..2, Role::Recite)?;
    to_text(lane.send(&small(1)))?;
    drop(lane);
    let is_released = || (Arc::strong_count(&events) == 1).then_some(());
    waiting::poll(timeout, is_released)
        .ok_or_else(|| format!("something holds the inbox {timeout:?} after the lane was dropped"))?;
    if lost(&events.so_far()).is_empty() { Ok(()) } else { Err("the dropped lane has reported workers as lost".into()) }
}

/// Sends frames until there is no room. Returns their number.
fn fill(fixture: &Fixture) -> CheckResult<u64> {
    let mut sent = 0;
    while fixture.lane.room(FrameSize::Large) > 0 {
        sent += 1;
        to_text(fixture.lane.send(&middling(sent)))?;
    }
    Ok(sent)
}

fn nobody_is_lost(fixture: &Fixture) -> CheckResult<()> {
    match lost(&fixture.events.so_far()) {
        lost if lost.is_empty() => Ok(()),
        lost => Err(format!("the lane has reported workers that left at shutdown as lost: {lost:?}")),
    }
}

/// The lost workers, with the errors.
fn lost(events: &[Event]) -> Vec<(usize, String)> {
    let lost = events.iter().filter_map(|event| match event {
        Event::Lost(workers, why) => Some((workers, why)),
        _ => None,
    });
    let each = |(workers, why): (&WorkerRange, &Error)| {
        let why = why.to_string();
        workers.indices().map(move |worker| (worker, why.clone())).collect::<Vec<_>>()
    };
    lost.flat_map(each).collect()
}
