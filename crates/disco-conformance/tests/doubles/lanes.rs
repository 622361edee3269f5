//! The suite must find the fault of each double of a lane.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use disco_channel::threads::ThreadLane;
use disco_conformance::Outcome;
use disco_conformance::lane::{Harness, Role, Suite, play};
use disco_core::{Channel, Result, WorkerRange};

use crate::leaky::{Fault, Leaky};

#[derive(Debug)]
struct Leaking(Fault);

impl Harness for Leaking {
    fn name(&self) -> &str {
        "double"
    }

    fn lane(&self, workers: WorkerRange, role: Role) -> Result<Box<dyn Channel>> {
        let inner = ThreadLane::new(workers, Arc::default(), move |worker, endpoint| play(role, worker, endpoint));
        Ok(Box::new(Leaky { inner, fault: self.0, sent: AtomicUsize::new(0) }))
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(300)
    }
}

fn outcome(fault: Fault, name: &str) -> Outcome {
    let check = Suite::checks().into_iter().find(|check| check.name() == name).unwrap();
    Suite::new(Arc::new(Leaking(fault))).run(&check)
}

#[test]
fn every_fault_of_a_lane_is_found() {
    for (fault, name) in [
        (Fault::LosesFrames, "frames_arrive_complete_and_in_order_on_all_workers"),
        (Fault::LosesFrames, "more_frames_than_a_full_lane_takes_arrive_in_order"),
        (Fault::MiscountsReplies, "replies_carry_their_number_and_worker"),
        (Fault::ForgetsWorkers, "replies_carry_their_number_and_worker"),
        (Fault::SeesNothing, "progress_counts_received_and_finished_commands"),
        (Fault::SeesNothing, "close_names_stuck_workers_and_their_functions"),
        (Fault::KeepsRoomToItself, "a_full_lane_refuses_frames_and_reports_room"),
        (Fault::TakesMoreThanItsRoom, "a_full_lane_refuses_frames_and_reports_room"),
        (Fault::KeepsNoticesToItself, "notices_arrive_without_a_command"),
        (Fault::KeepsLossesToItself, "a_worker_that_ends_early_is_lost_with_its_number"),
        (Fault::KeepsDeparturesToItself, "workers_are_reported_as_left_after_their_replies"),
        (Fault::SwallowsAborts, "an_abort_overtakes_frames"),
        (Fault::SwallowsAborts, "an_abort_is_accepted_by_a_full_lane"),
        (Fault::QueuesShutdown, "a_signalled_shutdown_overtakes_frames"),
        (Fault::ClosesOverTheStuck, "close_names_stuck_workers_and_their_functions"),
        (Fault::StartsTwice, "a_lane_has_the_workers_of_its_constructor_and_starts_once"),
        // This double turns failures into values, whatever its fault.
        (Fault::StartsTwice, "a_failure_is_a_reply_like_any_other"),
    ] {
        let outcome = outcome(fault, name);
        assert!(matches!(outcome, Outcome::Failed { .. }), "{fault:?} passes {name}: {outcome}");
    }
}

#[test]
fn a_case_passes_on_a_lane_with_an_unrelated_fault() {
    let outcome = outcome(Fault::ClosesOverTheStuck, "workers_use_the_store_while_they_execute_a_frame");
    assert_eq!(outcome, Outcome::Passed { executed: 1 });
}
