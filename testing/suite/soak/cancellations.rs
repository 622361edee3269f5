//! Cancelled calls with operations of communicators, and the calls that are queued behind them.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use disco::error::ErrorKind;
use disco::{DRef, LaneSession, WorkerId, block_on};
use disco_conformance::Fetched;

use super::functions::Together;
use super::random::Random;
use super::session::Setup;
use super::user::{Wrong, words};
use super::watch;

/// The library of the backend `mpi`, in sessions whose ranks are processes of their own.
const MPICH: Fetched = Fetched::new("mpich-5.0.2/lib/libmpi.so.12");
const LIBRARY: &str = "DISCO_MPI_LIBRARY";

/// The variable with which workers find MPI, if it was fetched.
pub(crate) fn mpi() -> Option<(&'static str, PathBuf)> {
    MPICH.path().map(|library| (LIBRARY, library))
}

/// A call that was submitted.
struct Submitted {
    how: Together,
    number: i64,
    call: DRef,
    is_cancelled: bool,
}

/// Rounds of calls, some of which are cancelled at random moments. Each call that was not cancelled gives the right result, or
/// an error that follows from a cancellation. No other user has the session meanwhile. Its communicators are new ones of the
/// session's backend afterwards.
pub(crate) fn run(session: &LaneSession, setup: &Setup, random: &mut Random) -> Wrong<()> {
    let has_mpi = setup.may_use_mpi() && env::var_os(LIBRARY).is_some();
    let backend = if has_mpi && random.chance(60) { "mpi" } else { setup.backend() };
    watch::step(format_args!("init_ccl of {backend} for cancellations"));
    words(block_on(session.init_ccl(backend, &[])))?;
    for _ in 0..1 + random.below(4) {
        let submitted = submit_and_cancel(session, random)?;
        submitted.iter().try_for_each(|call| check(session, call))?;
        let has_failed = match block_on(session.sync_all()) {
            Ok(()) => false,
            Err(error) if follows(&error.kind()) => true,
            Err(error) => return Err(format!("{backend}: sync_all after cancellations gave {error}")),
        };
        if has_failed || !words(block_on(session.is_whole()))? {
            watch::step("init_ccl after cancellations");
            words(block_on(session.init_ccl(backend, &[])))?;
        }
        let (how, number) = (Together::Sum, 1);
        let call = words(block_on(session.call("soak.together", (how.number(), number, 3))))?;
        let sums: Vec<i64> = words(block_on(session.get_all(&call)))?;
        if sums.iter().any(|sum| *sum != how.expected(number, session.world().size())) {
            return Err(format!("{backend}: a sum after cancellations gave {sums:?}"));
        }
    }
    words(block_on(session.init_ccl(setup.backend(), &[])))
}

/// Submits calls, and cancels some of them.
fn submit_and_cancel(session: &LaneSession, random: &mut Random) -> Wrong<Vec<Submitted>> {
    let workers = session.world().size();
    let mut calls = Vec::new();
    for _ in 0..2 + random.below(4) {
        if random.chance(40) {
            let late = (random.below(workers) as i64, random.below(4) as u64);
            words(block_on(session.call("soak.sleep", late)))?;
        }
        let (how, number) = (random.pick(&Together::ALL), 1 + random.below(1000) as i64);
        let elements = random.pick(&[1i64, 3, 300, 20_000, 300_000]);
        let call = words(block_on(session.call("soak.together", (how.number(), number, elements))))?;
        calls.push(Submitted { how, number, call, is_cancelled: false });
    }
    for _ in 0..1 + random.below(3) {
        let limit = random.pick(&[1, 300, 3_000, 15_000]);
        random.pause(Duration::from_micros(limit));
        let at = random.below(calls.len());
        watch::step(format_args!("cancellation of {:?}, call {at} of {}", calls[at].how, calls.len()));
        words(session.cancel(&calls[at].call, "on purpose"))?;
        calls[at].is_cancelled = true;
    }
    Ok(calls)
}

/// Submits calls and cancels some of them, in a session that is about to lose a worker.
pub(crate) fn before_a_loss(session: &LaneSession, random: &mut Random) {
    _ = submit_and_cancel(session, random);
}

fn check(session: &LaneSession, submitted: &Submitted) -> Wrong<()> {
    let Submitted { how, number, call, is_cancelled } = submitted;
    watch::step(format_args!("results of {how:?}, cancelled: {is_cancelled}"));
    for worker in session.world().workers() {
        match block_on(session.get::<i64>(call, worker)) {
            Ok(value) if value == how.expected(*number, session.world().size()) => {}
            // The call was cancelled, or the session has failed after an earlier cancellation.
            Ok(Together::LEFT) => {}
            Err(error) if *is_cancelled && is_cancellation(&error, worker) => {}
            Err(error) if follows(&error.kind()) => {}
            other => return Err(format!("{how:?} of {number}, cancelled: {is_cancelled}, gave {other:?} on {worker}")),
        }
    }
    Ok(())
}

fn is_cancellation(error: &disco::Error, worker: WorkerId) -> bool {
    error.kind() == ErrorKind::Cancelled && error.failure().is_some_and(|failure| failure.worker == worker)
}

/// Whether an operation can fail so because a call before it was cancelled.
fn follows(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::Broken | ErrorKind::Aborted)
}
