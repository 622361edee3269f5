//! The contract of a lane, one sentence a case.

use std::sync::Arc;
use std::time::Duration;

use disco_core::channel::{Notice, Signal};
use disco_core::{Command, Error, WorkerId, WorkerRange};

use super::frames::{fingerprint, middling, naming, plain, small, various};
use super::heard::{Event, Heard};
use super::role::{Role, failure};
use super::stage::{Stage, Wrong, alike, said};
use super::suite::Harness;

/// A sentence, and what shows it.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) run: fn(&dyn Harness) -> Wrong<()>,
}

macro_rules! cases {
    ($($name:ident)*) => {
        /// All of them.
        pub(super) static ALL: &[Case] = &[$(Case { name: stringify!($name), run: $name }),*];
    };
}

cases! {
    frames_arrive_in_order_and_whole_on_all_workers
    more_frames_than_the_lane_takes_arrive_in_order
    a_full_lane_takes_nothing_and_tells_of_room
    replies_carry_their_number_and_worker
    a_failure_is_a_reply_like_any_other
    notices_arrive_unasked
    an_abort_overtakes_frames_and_is_heard
    an_abort_needs_no_room
    a_signalled_shutdown_overtakes_frames
    a_shutdown_ends_workers_and_closes_the_lane
    workers_are_told_as_left_behind_their_replies
    a_worker_that_ends_early_is_lost_with_its_number
    those_who_are_lost_hold_nobody_up
    close_names_who_is_stuck_and_where
    progress_tells_what_was_received_and_finished
    the_store_is_shared_while_a_frame_is_worked_on
    a_store_stays_in_the_epoch_that_its_worker_was_in
    a_lane_reaches_the_workers_that_it_was_made_for_and_starts_once
    a_dropped_lane_lets_go_of_its_inbox
}

fn frames_arrive_in_order_and_whole_on_all_workers(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 0..3, Role::Recite)?;
    let frames = various();
    frames.iter().try_for_each(|frame| stage.send(frame))?;
    stage.wait_for_replies(&(0..3), frames.len())?;
    let expected: Vec<(u64, String)> = frames.iter().map(|frame| (frame.seq(), fingerprint(frame))).collect();
    for worker in 0..3 {
        alike(&format!("frames of worker {worker}"), &stage.replies_of(worker), &expected)?;
    }
    stage.end()
}

fn more_frames_than_the_lane_takes_arrive_in_order(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 0..2, Role::Recite)?;
    let count = 3 * stage.lane.room().clamp(1, 3000) as u64;
    (1..=count).try_for_each(|seq| stage.send(&small(seq)))?;
    stage.wait_for_replies(&(0..2), count as usize)?;
    for worker in 0..2 {
        let numbers: Vec<u64> = stage.replies_of(worker).into_iter().map(|reply| reply.0).collect();
        alike(&format!("numbers on worker {worker}"), &numbers, &(1..=count).collect())?;
    }
    stage.end()
}

fn a_full_lane_takes_nothing_and_tells_of_room(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 0..2, Role::AwaitAbort)?;
    let sent = fill(&stage)?;
    if stage.lane.send(&small(sent + 1)).is_ok() {
        return Err(format!("the lane has no room after {sent} frames, and takes another"));
    }
    stage.abort("go on")?;
    stage.wait("the lane tells of room", |events| {
        events.iter().any(|event| matches!(event, Event::Room(workers) if *workers == WorkerRange::new(0..2)))
    })?;
    // And nothing of what was refused came.
    stage.send(&small(sent + 2))?;
    stage.wait_for_replies(&(0..2), sent as usize + 2)?;
    let last: Vec<u64> = stage.replies_of(1).iter().rev().take(2).map(|reply| reply.0).collect();
    alike("the last two frames", &last, &vec![sent + 2, sent])?;
    stage.end()
}

fn replies_carry_their_number_and_worker(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 2..5, Role::Recite)?;
    let frame = plain(41, Command::SyncAll);
    stage.send(&frame)?;
    stage.wait_for_replies(&(2..5), 1)?;
    for worker in 2..5 {
        alike("replies", &stage.replies_of(worker), &vec![(41, fingerprint(&frame))])?;
    }
    stage.end()
}

fn a_failure_is_a_reply_like_any_other(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 0..2, Role::Recite)?;
    stage.send(&plain(3, Command::SyncWorker { worker: WorkerId::new(1) }))?;
    stage.wait_for_replies(&(0..2), 1)?;
    alike("the reply", &stage.replies_of(1), &vec![(3, failure(WorkerId::new(1), 3).to_string())])?;
    stage.end()
}

fn notices_arrive_unasked(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 0..2, Role::Notify)?;
    let heard = |events: &[Event], worker: WorkerId| {
        events.iter().any(|event| match event {
            Event::Notice(from, Notice::Failed { epoch: 0, failure: said }) => {
                *from == worker && *said == failure(worker, 4)
            }
            _ => false,
        })
    };
    stage.wait("a notice of both workers", |events| (0..2).all(|worker| heard(events, worker.into())))?;
    stage.end()
}

fn an_abort_overtakes_frames_and_is_heard(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 0..2, Role::AwaitAbort)?;
    (1..=3).try_for_each(|seq| stage.send(&small(seq)))?;
    stage.abort("worker 1 failed")?;
    stage.wait_for_replies(&(0..2), 4)?;
    for worker in 0..2 {
        let replies = stage.replies_of(worker);
        alike("the first reply", &replies[0], &(0, "worker 1 failed".into()))?;
        alike("numbers after it", &replies[1..].iter().map(|reply| reply.0).collect::<Vec<_>>(), &vec![1, 2, 3])?;
    }
    stage.end()
}

fn an_abort_needs_no_room(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 0..1, Role::AwaitAbort)?;
    fill(&stage)?;
    stage.abort("it is full")?;
    stage.wait_for_replies(&(0..1), 1)?;
    alike("the first reply", &stage.replies_of(0)[0], &(0, "it is full".into()))?;
    stage.end()
}

fn a_signalled_shutdown_overtakes_frames(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 0..2, Role::AwaitAbort)?;
    (1..=3).try_for_each(|seq| stage.send(&small(seq)))?;
    said(stage.lane.signal(Signal::Shutdown))?;
    stage.abort("leave")?;
    said(stage.lane.close(stage.patience))?;
    for worker in 0..2 {
        let numbers: Vec<u64> = stage.replies_of(worker).into_iter().map(|reply| reply.0).collect();
        if numbers.iter().any(|number| *number > 0) {
            return Err(format!("worker {worker} took commands after the shutdown was signalled: {numbers:?}"));
        }
    }
    nobody_is_lost(&stage)
}

fn a_shutdown_ends_workers_and_closes_the_lane(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 0..2, Role::Recite)?;
    stage.send(&small(1))?;
    stage.send(&plain(2, Command::Shutdown))?;
    said(stage.lane.close(stage.patience))?;
    alike("replies", &stage.replies_of(1).len(), &1)?;
    match stage.lane.send(&small(3)) {
        Err(Error::Closed(_)) => {}
        other => return Err(format!("a frame after close gives {other:?}")),
    }
    said(stage.lane.close(stage.patience))?;
    nobody_is_lost(&stage)
}

fn workers_are_told_as_left_behind_their_replies(harness: &dyn Harness) -> Wrong<()> {
    for overtakes in [false, true] {
        let stage = Stage::start(harness, 2..5, Role::Enlarge)?;
        stage.send(&small(1))?;
        match overtakes {
            false => stage.send(&plain(2, Command::Shutdown))?,
            true => said(stage.lane.signal(Signal::Shutdown))?,
        }
        said(stage.lane.close(stage.patience))?;
        let events = stage.heard.so_far();
        for worker in (2..5).map(WorkerId::new) {
            let left = |event: &Event| matches!(event, Event::Left(workers) if workers.contains(worker));
            let Some(first) = events.iter().position(left) else {
                return Err(format!("{worker} has left, which is not told"));
            };
            let is_reply = |event: &Event| matches!(event, Event::Reply(from, ..) if *from == worker);
            if events[first..].iter().any(is_reply) {
                return Err(format!("{worker} is told as left before its last reply"));
            }
            if !overtakes && !events[..first].iter().any(is_reply) {
                return Err(format!("{worker} is told as left, and its reply does not come"));
            }
        }
        nobody_is_lost(&stage)?;
    }
    Ok(())
}

fn a_worker_that_ends_early_is_lost_with_its_number(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 0..4, Role::EndEarly)?;
    stage.send(&small(1))?;
    stage.wait("the loss of three workers", |events| lost(events).len() >= 3)?;
    stage.wait_for_replies(&(3..4), 1)?;
    let mut lost = lost(&stage.heard.so_far());
    lost.sort_by_key(|(worker, _)| *worker);
    alike("who is lost", &lost.iter().map(|(worker, _)| *worker).collect::<Vec<_>>(), &vec![0, 1, 2])?;
    for (worker, why) in &lost {
        if !why.starts_with(&format!("worker {worker} lost: ")) {
            return Err(format!("the loss of worker {worker} is told as: {why}"));
        }
    }
    stage.end()
}

fn those_who_are_lost_hold_nobody_up(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 0..4, Role::EndEarly)?;
    let count = 3 * stage.lane.room().clamp(1, 3000) as u64;
    (1..=count).try_for_each(|seq| stage.send(&small(seq)))?;
    stage.wait_for_replies(&(3..4), count as usize)?;
    stage.end()
}

fn close_names_who_is_stuck_and_where(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 1..3, Role::Stick)?;
    stage.send(&small(17))?;
    stage.watch("worker 1 is inside `f`", |lane| lane.progress(WorkerId::new(1)).inside)?;
    stage.send(&plain(18, Command::Shutdown))?;
    match stage.lane.close(Duration::from_millis(50)) {
        Err(Error::Stuck { workers, .. }) if workers.contains("worker 1") && !workers.contains("worker 2") => {
            let told = ["in command 17", "inside `f`"].iter().all(|part| workers.contains(part));
            told.then_some(()).ok_or_else(|| format!("it is not told where worker 1 is: {workers}"))
        }
        other => Err(format!("worker 1 is stuck, and close gives {other:?}")),
    }
}

fn progress_tells_what_was_received_and_finished(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 1..3, Role::Stick)?;
    stage.send(&small(5))?;
    stage.send(&small(6))?;
    let of = |worker: u32, received: u64, finished: u64| {
        stage.watch(&format!("worker {worker} received {received} and finished {finished}"), |lane| {
            let progress = lane.progress(WorkerId::new(worker));
            ((progress.received, progress.finished) == (received, finished)).then_some(())
        })
    };
    of(2, 6, 6)?;
    of(1, 5, 0)?;
    let stranger = stage.lane.progress(WorkerId::new(7));
    alike("progress of a worker of another lane", &(stranger.received, stranger.finished), &(0, 0))?;
    said(stage.lane.signal(Signal::Shutdown))?;
    // Worker 1 is stuck for good.
    _ = stage.lane.close(Duration::from_millis(50));
    Ok(())
}

fn the_store_is_shared_while_a_frame_is_worked_on(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 0..3, Role::Meet)?;
    for seq in 1..=5 {
        stage.send(&naming(seq, &(0..3)))?;
        stage.wait_for_replies(&(0..3), seq as usize)?;
    }
    for worker in 0..3 {
        let expected: Vec<(u64, String)> =
            (1..=5).map(|seq| (seq, format!("{:?}", disco_core::Value::from(vec![0u8, 1, 2])))).collect();
        alike(&format!("whom worker {worker} met"), &stage.replies_of(worker), &expected)?;
    }
    stage.end()
}

fn a_store_stays_in_the_epoch_that_its_worker_was_in(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 0..2, Role::Recover)?;
    stage.send(&small(1))?;
    stage.wait_for_replies(&(0..2), 1)?;
    stage.send(&plain(2, Command::Recover { epoch: 1 }))?;
    // Now worker 0 is in epoch 1, and worker 1 is late.
    stage.wait_for_replies(&(0..2), 2)?;
    stage.send(&small(3))?;
    stage.wait_for_replies(&(0..2), 3)?;
    for (worker, frame, expected) in
        [(0, 0, "true, true"), (1, 0, "true, true"), (0, 2, "false, true"), (1, 2, "false, false")]
    {
        let what = format!("whether stores work on worker {worker}, the first that it got and the latest");
        alike(&what, &stage.replies_of(worker)[frame].1.as_str(), &expected)?;
    }
    stage.end()
}

fn a_lane_reaches_the_workers_that_it_was_made_for_and_starts_once(harness: &dyn Harness) -> Wrong<()> {
    let stage = Stage::start(harness, 2..4, Role::Recite)?;
    alike("workers", &stage.lane.workers(), &WorkerRange::new(stage.workers.clone()))?;
    if stage.lane.start(Arc::new(Heard::default())).is_ok() {
        return Err("it started twice".into());
    }
    stage.end()
}

fn a_dropped_lane_lets_go_of_its_inbox(harness: &dyn Harness) -> Wrong<()> {
    let Stage { lane, heard, patience, .. } = Stage::start(harness, 0..2, Role::Recite)?;
    said(lane.send(&small(1)))?;
    drop(lane);
    let start = std::time::Instant::now();
    while Arc::strong_count(&heard) > 1 {
        if start.elapsed() > patience {
            return Err(format!("something holds the inbox {patience:?} after the lane was dropped"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    match lost(&heard.so_far()).is_empty() {
        true => Ok(()),
        false => Err("workers that were let go are told as lost".into()),
    }
}

/// Sends frames until there is no room. Returns how many.
fn fill(stage: &Stage) -> Wrong<u64> {
    let mut sent = 0;
    while stage.lane.room() > 0 {
        sent += 1;
        said(stage.lane.send(&middling(sent)))?;
    }
    Ok(sent)
}

fn nobody_is_lost(stage: &Stage) -> Wrong<()> {
    match lost(&stage.heard.so_far()) {
        lost if lost.is_empty() => Ok(()),
        lost => Err(format!("workers that left at shutdown are told as lost: {lost:?}")),
    }
}

/// Who is lost, and why.
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
