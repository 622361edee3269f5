//! The program that the tests ask: its workers hang, and its main thread waits for them.

use std::hint::black_box;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use disco::{Builder, LaneSession, SessionKind, WorkerContext, WorkerId};

/// Worker 1 hangs here.
#[inline(never)]
fn worker_1_hangs_here() {
    loop {
        thread::sleep(Duration::from_secs(black_box(60)));
    }
}

/// Worker 1 hangs, so the others wait in a barrier.
fn step(ctx: &mut WorkerContext) -> disco::Result<()> {
    if ctx.worker() == WorkerId::new(1) {
        worker_1_hangs_here();
    }
    use disco::CommunicatorExt as _;
    ctx.comm()?.barrier()
}

disco::register_function!("tests.step", step);

#[inline(never)]
fn main_waits_here(session: &LaneSession) -> disco::Result<()> {
    // Not in tail position, so that this function is on the stack while it waits.
    black_box(disco::block_on(session.sync_all()))
}

/// `main` of the program: starts sessions of these kinds, separated by commas, lets their workers hang, prints `started`,
/// and waits.
pub(crate) fn main(kinds: &str) -> ExitCode {
    disco::init();
    if std::env::var_os("DISCO_TEST_NOT_DUMPABLE").is_some() {
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).unwrap();
    }
    let start = |kind: &str| Builder::new(kind.parse::<SessionKind>().unwrap(), 4).groups(2).start().unwrap();
    let sessions: Vec<LaneSession> = kinds.split(',').map(start).collect();
    for (session, kind) in sessions.iter().zip(kinds.split(',')) {
        disco::block_on(async {
            // The backend `local` serves one machine. Without it, the other workers fail and return.
            if kind != "nodes" {
                session.init_ccl("local", &[]).await.unwrap();
            }
            session.sync_all().await.unwrap();
            session.call("tests.step", ()).await.unwrap();
        });
    }
    let notes = || [("requests".to_owned(), "3 running".to_owned())].into();
    let _noting = disco::programs::note(notes);
    println!("started");
    sessions.iter().for_each(|session| main_waits_here(session).unwrap());
    ExitCode::FAILURE
}
