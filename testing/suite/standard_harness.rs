//! Sessions of processes and of nodes in tests of the standard harness (`#[test]`), several at once.

use std::collections::BTreeSet;

use disco::{Builder, DType, LaneSession, Placement, Reduction, Scope, SessionKind, Tensor, WorkerContext, block_on};

disco::register_function!("tests.process", process);
disco::register_function!("tests.fill", fill);

fn process(_: &mut WorkerContext) -> disco::Result<i64> {
    Ok(std::process::id().into())
}

fn fill(ctx: &mut WorkerContext, x: Tensor) -> disco::Result<()> {
    x.view_mut::<f32>()?.fill(ctx.worker().index() as f32);
    Ok(())
}

/// The number of different processes that the workers run in.
async fn processes(session: &LaneSession) -> disco::Result<usize> {
    let processes = session.call("tests.process", ()).await?;
    let processes: BTreeSet<i64> = session.get_all(&processes).await?.into_iter().collect();
    Ok(processes.len())
}

#[test]
fn workers_of_a_test_are_processes() {
    disco::init_test!();
    let session = Builder::processes(3).start().unwrap();
    block_on(async {
        assert_eq!(processes(&session).await.unwrap(), 3);
        session.init_ccl("local", &[]).await.unwrap();
        let x = session.empty(DType::F32, [4], Placement::All).await.unwrap();
        session.call("tests.fill", (&x,)).await.unwrap();
        session.all_reduce(&x, &x, Reduction::Sum, Scope::World).await.unwrap();
        for sums in session.get_all::<Tensor>(&x).await.unwrap() {
            assert_eq!(sums.to_vec::<f32>().unwrap(), [3.0; 4]);
        }
        session.shutdown().await.unwrap();
    });
}

mod nested {
    use super::*;

    #[test]
    fn nodes_of_a_test_are_processes() {
        disco::init_test!();
        let session = Builder::nodes(2, 2).start().unwrap();
        block_on(async {
            assert_eq!(processes(&session).await.unwrap(), 4);
            session.shutdown().await.unwrap();
        });
    }

    #[test]
    fn init_test_works_in_a_closure_of_a_test() {
        let test = || {
            disco::init_test!();
            let session = Builder::nodes(2, 2).node_options(|nodes| nodes.workers = SessionKind::Threads).start()?;
            assert_eq!(block_on(processes(&session))?, 2);
            block_on(session.shutdown())
        };
        test().unwrap();
    }
}

#[test]
fn a_session_may_start_on_another_thread() {
    disco::init_test!();
    let session = std::thread::spawn(|| Builder::processes(2).start().unwrap()).join().unwrap();
    assert_eq!(block_on(processes(&session)).unwrap(), 2);
    block_on(session.shutdown()).unwrap();
}

#[test]
#[ignore = "run by name, to show that the workers of an ignored test start"]
fn an_ignored_test_can_have_workers() {
    disco::init_test!();
    let session = Builder::processes(2).start().unwrap();
    assert_eq!(block_on(processes(&session)).unwrap(), 2);
    block_on(session.shutdown()).unwrap();
}
