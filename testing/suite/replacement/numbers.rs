//! Messages about workers whose numbers are not their places.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use disco_conformance::waiting::wait_until;
use disco_core::error::Error;
use disco_core::session::{Deadlines, LaneSession};
use disco_core::worker::WorkerConfig;
use disco_core::{Channel, Result, WorkerContext, WorkerId, WorkerRange, World};
use futures_lite::future::block_on;

use super::lane::{Fate, Mortal};

disco_core::register_function!("replacement.stay", stay);

static IS_OPEN: AtomicBool = AtomicBool::new(false);

/// One worker does not return before the end of the test.
fn stay(ctx: &mut WorkerContext, worker: u32) -> Result<()> {
    if ctx.worker() == WorkerId::new(worker) {
        wait_until("the end of the test", || IS_OPEN.load(Ordering::Relaxed));
    }
    Ok(())
}

#[test]
fn after_a_resize_refusals_and_stuck_workers_are_named_by_numbers() {
    let (fate, config) = (Fate::new(1), WorkerConfig::new(World::new(5, 1).unwrap()));
    let lane = Arc::new(Mortal::new(WorkerRange::new(0..5), config, &fate)) as Arc<dyn Channel>;
    let limits = Deadlines::default().with_close(Duration::from_millis(100));
    let session = LaneSession::start(config.world, vec![lane], limits).unwrap();
    fate.kill_at(1);
    while block_on(session.sync_all()).is_ok() {}
    block_on(session.resize(4)).unwrap();

    let refused = block_on(session.subset([1, 2], 1)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "subset: workers 1, 2: their lane supports no subsets; workers that are threads or processes do"
    );
    fate.refuses.store(true, Ordering::Relaxed);
    fate.kill_at(3);
    while block_on(session.sync_all()).is_ok() {}
    let refused = block_on(session.replace_lost()).unwrap_err();
    assert_eq!(refused.to_string(), "worker 2 can't be replaced: no place is free");
    block_on(session.resize(3)).unwrap();

    block_on(session.call("replacement.stay", (2,))).unwrap();
    let Err(Error::Stuck { workers, .. }) = block_on(session.shutdown()) else { panic!("worker 2 has left") };
    assert!(workers.starts_with("worker 2 (") && workers.contains("inside `replacement.stay`"), "{workers}");
    IS_OPEN.store(true, Ordering::Relaxed);
}
