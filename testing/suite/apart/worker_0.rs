//! Worker 0 is a worker like any other.

use disco::{
    Builder, DType, Error, LaneSession, Placement, ReplacementPolicy, SessionKind, Tensor, WorkerId, block_on,
};
use rustix::process::{Pid, Signal, kill_process};

use super::{call, numbers};

const WORKER_0: WorkerId = WorkerId::new(0);

fn kill_0(session: &LaneSession) {
    let pid = numbers(session, "apart.pid")[0];
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

/// Waits for the loss, and returns the first line of its text.
fn lost(session: &LaneSession) -> String {
    loop {
        match block_on(session.sync_all()) {
            Err(error @ Error::Lost(_)) => return error.to_string().lines().next().unwrap().to_owned(),
            other => other.unwrap(),
        }
    }
}

/// Checks that the controller's tensors reach worker 0, and from there the others, and come back.
fn check_copies(session: &LaneSession) {
    block_on(async {
        session.init_ccl("local", &[]).await?;
        for elements in [3, 100_000, 4, 1_000_000, 100_000] {
            let sent = Tensor::from_vec((0..elements).collect::<Vec<i64>>(), [elements])?;
            let all = session.empty(DType::I64, [elements], Placement::All).await?;
            session.broadcast(&sent, &all).await?;
            for back in session.get_all::<Tensor>(&all).await? {
                assert!(back.to_vec::<i64>()? == sent.to_vec::<i64>()?);
            }
            let back = Tensor::zeros(DType::I64, [elements])?;
            session.copy_from_worker_0(&back, &all).await?;
            assert!(back.to_vec::<i64>()? == sent.to_vec::<i64>()?);
        }
        Ok::<_, Error>(())
    })
    .unwrap();
}

pub(crate) fn is_lost_and_replaced() {
    let session = Builder::processes(3).apart(true).start().unwrap();
    assert!(numbers(&session, "apart.pid").iter().all(|pid| *pid != i64::from(std::process::id())));
    check_copies(&session);
    let kept = call(&session, "apart.number", ());
    kill_0(&session);
    assert_eq!(lost(&session), "worker 0 lost: its process ended: signal: 9 (SIGKILL)");
    let refused = block_on(session.copy_to_worker_0(&Tensor::zeros(DType::U8, [1]).unwrap(), &kept));
    assert!(matches!(refused, Err(Error::Lost(_))), "{refused:?}");
    assert_eq!(block_on(session.replace_lost()).unwrap().workers, [WORKER_0]);
    assert_eq!(block_on(session.get::<i64>(&kept, WorkerId::new(2))).unwrap(), 2);
    block_on(session.value(&kept, WORKER_0)).unwrap_err();
    check_copies(&session);
    block_on(session.shutdown()).unwrap();
}

pub(crate) fn is_resized_away() {
    let session = Builder::processes(3).apart(true).start().unwrap();
    let kept = call(&session, "apart.number", ());
    kill_0(&session);
    lost(&session);
    let resized = block_on(session.resize(2)).unwrap();
    assert_eq!(resized.numbers, [None, Some(WORKER_0), Some(WorkerId::new(1))]);
    assert_eq!(block_on(session.get_all::<i64>(&kept)).unwrap(), [1, 2]);
    assert_eq!(numbers(&session, "apart.number"), [0, 1]);
    check_copies(&session);
    // The one that has its number now.
    kill_0(&session);
    assert_eq!(lost(&session), "worker 0 lost: its process ended: signal: 9 (SIGKILL)");
    block_on(session.resize(3)).unwrap();
    assert_eq!(numbers(&session, "apart.number"), [0, 1, 2]);
    check_copies(&session);
    block_on(session.shutdown()).unwrap();
}

pub(crate) fn of_nodes_is_replaced() {
    let session = Builder::nodes(2, 2).apart(true).start().unwrap();
    let processes = numbers(&session, "apart.pid");
    assert!(processes.iter().all(|pid| *pid != i64::from(std::process::id())), "{processes:?}");
    check_copies(&session);
    kill_0(&session);
    assert_eq!(lost(&session), "worker 0 lost: its process ended: signal: 9 (SIGKILL)");
    assert_eq!(block_on(session.replace_lost()).unwrap().workers, [WORKER_0]);
    check_copies(&session);
    block_on(session.shutdown()).unwrap();
}

pub(crate) fn is_replaced_at_once() {
    let session = Builder::processes(2)
        .apart(true)
        .process_options(|processes| processes.spares = 1)
        .replacement(ReplacementPolicy::at_once())
        .start()
        .unwrap();
    let before = numbers(&session, "apart.pid");
    kill_0(&session);
    // The loss is told once.
    while let Ok(()) = block_on(session.sync_all()) {}
    check_copies(&session);
    let after = numbers(&session, "apart.pid");
    assert!(after[0] != before[0] && after[1] == before[1], "{before:?} {after:?}");
    block_on(session.shutdown()).unwrap();
}

pub(crate) fn of_threads_is_refused() {
    let refused = |builder: Builder| builder.apart(true).start().unwrap_err().to_string();
    assert_eq!(
        refused(Builder::threads(2)),
        "`apart` makes worker 0 a process, but the workers of this session are threads"
    );
    assert_eq!(
        refused(Builder::nodes(2, 1).node_options(|nodes| nodes.workers = SessionKind::Threads)),
        "`apart` makes worker 0 a process, but the workers of its nodes are threads"
    );
}
