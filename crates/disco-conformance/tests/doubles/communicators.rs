//! The suite must find the fault of each double of a backend.

use std::sync::Arc;
use std::time::Duration;

use disco_channel::threads::ThreadLane;
use disco_conformance::communicator::Suite;
use disco_conformance::{Harness, Outcome, SessionSpec};
use disco_core::session::{Deadlines, LaneSession};
use disco_core::worker::{self, WorkerConfig};
use disco_core::{Result, Session, WorkerRange, World};

use crate::lossy::Fault;

/// The harness of a double, with worlds of one and three workers.
#[derive(Debug)]
struct Doubled {
    name: String,
    exact: bool,
    timeout: Duration,
}

impl Harness for Doubled {
    fn name(&self) -> &str {
        "double"
    }

    fn backend(&self) -> &str {
        &self.name
    }

    fn worlds(&self) -> Vec<World> {
        [1, 3].map(|workers| World::new(workers, 1).unwrap()).to_vec()
    }

    fn start(&self, spec: &SessionSpec) -> Result<Box<dyn Session>> {
        let mut config = WorkerConfig::new(spec.world);
        config.check = spec.check;
        config.collective_deadline = spec.collective_deadline;
        let workers = WorkerRange::new(0..spec.world.size() as u32);
        let lane =
            ThreadLane::new(workers, Arc::default(), move |worker, endpoint| worker::run(worker, config, endpoint));
        // A worker that hangs is not waited for.
        let close = Duration::from_millis(10);
        let deadlines = Deadlines::default().with_close(close);
        Ok(Box::new(LaneSession::start(spec.world, vec![Arc::new(lane)], deadlines)?))
    }

    fn check_timeout(&self) -> Duration {
        self.timeout
    }

    fn is_exact(&self) -> bool {
        self.exact
    }

    fn detects_mismatches(&self) -> bool {
        self.exact
    }

    fn detects_dropped_peers(&self) -> bool {
        self.exact
    }
}

fn outcome(fault: Fault, exact: bool, name: &str) -> Outcome {
    let timeout = Duration::from_secs(match fault {
        Fault::Hangs => 1,
        // Ranks have a twelfth of it to return after a failure.
        Fault::IsDeaf | Fault::IgnoresAborts | Fault::DropsSilently => 12,
        _ => 60,
    });
    let suite = Suite::new(Arc::new(Doubled { name: format!("{fault:?}"), exact, timeout }));
    let check = Suite::checks().into_iter().find(|check| check.name() == name).unwrap();
    suite.run(&check)
}

/// The error of a double in this check.
fn why(fault: Fault, name: &str) -> String {
    match outcome(fault, true, name) {
        Outcome::Failed { why } => why,
        other => panic!("{fault:?} passes {name}: {other}"),
    }
}

fn assert_says(why: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| why.contains(part)), "{why}");
}

#[test]
fn one_wrong_element_is_found_and_named() {
    let found = why(Fault::CorruptsOneElement, "all_reduce::i16::sum");
    assert_says(&found, &["1 workers: on the communicator of the world: all_reduce of i16 x 1, whole numbers, sum"]);
    assert_says(&found, &["rank 0 of 1: dst: element 0: expected ", ", got "]);
    for name in ["broadcast::bf16", "all_to_all_v::u8", "send_recv::everybody::f64", "large::all_gather::f32"] {
        assert_says(&why(Fault::CorruptsOneElement, name), &["element", "expected"]);
    }
}

#[test]
fn another_reduction_is_found_in_every_dtype() {
    for dtype in ["i8", "u64", "f8e5m2", "f16", "f64", "bool"] {
        let found = why(Fault::SwapsReduction, &format!("all_reduce::{dtype}::max"));
        assert_says(&found, &["3 workers", "max", "element"]);
    }
    let quiet = why(Fault::SwapsReduction, "mismatch::reduction::is_detected_by_the_backend");
    assert_says(&quiet, &["ranks differ in the reduction, and sync_all gives Ok"]);
    let checked = outcome(Fault::SwapsReduction, true, "mismatch::reduction::is_detected_by_the_session");
    assert!(matches!(checked, Outcome::Passed { .. }), "{checked}");
}

#[test]
fn a_block_from_the_wrong_place_is_found() {
    assert_says(&why(Fault::IgnoresInPlaceOffset, "all_gather::f32"), &["3 workers", "in place", "dst: element"]);
}

#[test]
fn stale_data_is_found() {
    for name in ["all_reduce::f32::sum", "gather::u16", "send_recv::pairs::i32"] {
        assert_says(&why(Fault::LeavesStaleData, name), &["element 0", "expected"]);
    }
}

#[test]
fn a_write_outside_of_a_result_is_found() {
    assert_says(&why(Fault::WritesOutside, "all_to_all::u32"), &["element -1, outside of the tensor's"]);
}

#[test]
fn a_write_to_an_input_is_found() {
    assert_says(
        &why(Fault::ChangesInput, "reduce_scatter::f32::sum"),
        &["src: element 0 of the input, which was changed"],
    );
}

#[test]
fn a_check_that_hangs_fails_after_its_timeout() {
    assert_says(&why(Fault::Hangs, "all_reduce::f32::sum"), &["3 workers: no end after 1s"]);
}

#[test]
fn a_backend_that_ignores_aborts_is_found() {
    let name = "abort::barrier::a_worker_fails_and_the_others_return";
    let late = "3 workers: the ranks inside barrier did not return within 1s after worker 0 failed; ";
    let no_listener = "the backend registered no listener with `Link::on_abort` on worker 0: `connect` must do so";
    assert_says(&why(Fault::IsDeaf, name), &[&format!("{late}{no_listener}")]);
    let listener = "the backend registered listeners with `Link::on_abort`, so their `abort` does not end the wait";
    assert_says(&why(Fault::IgnoresAborts, name), &[&format!("{late}{listener}")]);
}

#[test]
fn a_backend_that_does_not_detect_dropped_peers_is_found() {
    let name = "drop::a_rank_that_drops_its_communicator_ends_the_wait_of_the_others";
    let found = why(Fault::DropsSilently, name);
    let told =
        "3 workers: rank 0 dropped its communicator, and no rank that waited for it got `Error::Lost`: rank 1: error: ";
    assert_says(&found, &[told, "no end after 1s"]);
    let undetected = outcome(Fault::DropsSilently, false, name);
    assert!(matches!(undetected, Outcome::Passed { executed: 2 }), "{undetected}");
    let passed = outcome(Fault::PassesBarriers, false, name);
    assert_says(&passed.to_string(), &["rank 0 dropped its communicator, and the barrier of rank 1 gives Ok"]);
}

#[test]
fn an_enqueue_that_returns_before_a_host_operation_is_complete_is_found() {
    let found = why(Fault::DelaysErrors, "deadline::a_rank_that_is_absent_ends_the_wait_of_the_others");
    assert_says(&found, &["`enqueue` returned Ok, but host operations must be complete when it returns"]);
}

#[test]
fn a_scenario_whose_reductions_the_backend_lacks_is_skipped() {
    let skipped = outcome(Fault::LacksMinAndMax, true, "order::concurrent_submissions_arrive_in_one_order");
    assert_eq!(skipped.to_string(), "skipped: there is no all_reduce min of i32");
    let skipped = outcome(Fault::LacksMinAndMax, true, "mismatch::reduction::is_detected_by_the_session");
    assert_eq!(skipped.to_string(), "skipped: there is no all_reduce max of f32");
}

#[test]
fn a_lacking_operation_must_be_refused_and_is_skipped_with_the_reason() {
    let skipped = outcome(Fault::LacksBf16, true, "all_reduce::bf16::sum");
    assert_eq!(skipped.to_string(), "skipped: LacksBf16 does not support reductions of bf16");
    let other = outcome(Fault::LacksBf16, true, "broadcast::bf16");
    assert!(matches!(other, Outcome::Passed { .. }), "{other}");
    assert_says(&why(Fault::RunsWhatItLacks, "reduce::bf16::min"), &["ran, although the capabilities lack it"]);
}

#[test]
fn faults_of_barriers_and_orders_are_found() {
    let barrier = why(Fault::PassesBarriers, "barrier::no_rank_passes_before_all_have_arrived");
    assert_says(&barrier, &["passed barrier", "of 3 ranks had arrived"]);
    assert_says(&why(Fault::MixesMessages, "send_recv::many::u8"), &["message 0 received from rank"]);
    assert_says(&why(Fault::IgnoresKeys, "split::ranks_are_ordered_by_key_then_by_rank"), &["of the ranks [2, 1, 0]"]);
}

#[test]
fn a_difference_in_the_last_bit_fails_only_exact_backends() {
    let name = "all_reduce::f32::sum";
    assert_says(&why(Fault::RoundsDifferently, name), &["differ in their bits"]);
    let tolerant = outcome(Fault::RoundsDifferently, false, name);
    assert!(matches!(tolerant, Outcome::Passed { .. }), "{tolerant}");
}

/// The first check leaves its session broken, because its last communicator is a split.
#[test]
fn a_check_does_not_fail_in_a_session_that_an_earlier_check_has_broken() {
    let timeout = Duration::from_secs(60);
    let suite = Suite::new(Arc::new(Doubled { name: "EndsWithItsSplit".into(), exact: true, timeout }));
    let run = |name: &str| suite.run(&Suite::checks().into_iter().find(|check| check.name() == name).unwrap());
    for name in ["broadcast::u8", "all_reduce::i32::sum"] {
        let outcome = run(name);
        assert!(matches!(outcome, Outcome::Passed { .. }), "{name}: {outcome}");
    }
    let why = suite.close().unwrap_err().to_string();
    let told = "`all_reduce::i32::sum` passes in a new session, and fails in one that `broadcast::u8` has left broken: 3 workers: ";
    assert_says(&why, &[told, "double: this communicator has ended"]);
    assert!(suite.close().is_ok(), "it is told once");
}

#[test]
fn an_unavailable_backend_is_an_error_with_the_reason() {
    let harness = Doubled { name: "IsAbsent".into(), exact: true, timeout: Duration::from_secs(1) };
    assert_eq!(harness.probe().unwrap_err().to_string(), "libdouble.so is not available");
    assert!(matches!(outcome(Fault::IsAbsent, true, "broadcast::u8"), Outcome::Failed { .. }));
}
