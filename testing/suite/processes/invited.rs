//! Workers that are started by another launcher, as `mpiexec` does, with an invitation.

use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use disco::{Builder, LaneSession, Launch, Value, WorkerId, block_on};
use rustix::process::{Pid, Signal, kill_process};

use super::programs;

super::tests!(
    a_process_with_an_invitation_serves_as_its_worker,
    an_invited_worker_that_dies_is_lost,
    an_invited_worker_that_is_stopped_is_lost_and_killed,
    invited_workers_that_do_not_connect_are_named_at_the_start_deadline,
);

/// Starts a session of three workers, two of which are processes that this function starts.
fn start() -> (LaneSession, Vec<Child>) {
    let children = Arc::new(Mutex::new(Vec::new()));
    let builder = Builder::processes(3).silence(Duration::from_millis(700)).process_options(|processes| {
        processes.launch = Some(Launch::elsewhere({
            let children = children.clone();
            move |invitation| {
                children.lock().unwrap().push(programs::command("invited").arg(invitation.text()).spawn().unwrap());
                Ok(())
            }
        }))
    });
    let session = builder.start().unwrap();
    let children = std::mem::take(&mut *children.lock().unwrap());
    (session, children)
}

fn a_process_with_an_invitation_serves_as_its_worker() {
    let (session, mut children) = start();
    block_on(async {
        let pids = session.call("tests.pid", ()).await.unwrap();
        for (child, worker) in children.iter().zip([1, 2].map(WorkerId::new)) {
            assert_eq!(session.value(&pids, worker).await.unwrap(), Value::Int(child.id().into()));
        }
        session.shutdown().await.unwrap();
    });
    assert!(children.iter_mut().all(|child| child.wait().unwrap().success()));
}

fn an_invited_worker_that_dies_is_lost() {
    let (session, mut children) = start();
    children[1].kill().unwrap();
    let error = block_on(session.sync_all()).unwrap_err().to_string();
    assert_eq!(error, "worker 2 lost: its process ended");
    block_on(session.shutdown()).unwrap();
    assert!(children[0].wait().unwrap().success());
    children[1].wait().unwrap();
}

fn an_invited_worker_that_is_stopped_is_lost_and_killed() {
    let (session, mut children) = start();
    kill_process(Pid::from_child(&children[0]), Signal::STOP).unwrap();
    let error = block_on(session.sync_all()).unwrap_err().to_string();
    assert_eq!(error, "worker 1 lost: no message came from it for 700ms");
    block_on(session.shutdown()).unwrap();
    assert_eq!(children[0].wait().unwrap().to_string(), "signal: 9 (SIGKILL)");
    children[1].wait().unwrap();
}

fn invited_workers_that_do_not_connect_are_named_at_the_start_deadline() {
    let builder = Builder::processes(3)
        .process_options(|processes| processes.launch = Some(Launch::elsewhere(|_| Ok(()))))
        .start_deadline(Duration::from_millis(300));
    let error = builder.start().unwrap_err().to_string();
    assert_eq!(error, "start: no end after 300ms: worker 1, worker 2 did not connect");
}
