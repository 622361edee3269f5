//! The program that the tests record: calls, waits, a data plane, failures.

use std::process::{self, ExitCode};
use std::thread;
use std::time::Duration;

use disco::{
    CommunicatorExt as _, DType, DataPlane as _, LaneSession, Op, Placement, Rank, Reduction, Result, Scope,
    Session as _, SessionExt as _, Settings, Shape, Tensor, WorkerContext, WorkerId, block_on,
};

/// Number of calls of `replay.step`.
const STEPS: i64 = 5;

fn make(ctx: &mut WorkerContext, elements: usize) -> Result<Tensor> {
    ctx.empty(DType::F32, elements)
}

/// A sum over all workers, and then a concatenation in each group.
fn step(ctx: &mut WorkerContext, x: Tensor, number: i64) -> Result<i64> {
    ctx.comm()?.all_reduce(&x, &x, Reduction::Sum)?;
    let all = ctx.empty(DType::F32, x.elements() * ctx.world().group_size())?;
    ctx.group_comm()?.all_gather(&x, &all)?;
    Ok(number + 1)
}

/// A group of transfers around the ring of all workers, and a group of collectives.
fn exchange(ctx: &mut WorkerContext) -> Result<()> {
    let tensors = (0..4).map(|_| ctx.empty(DType::F32, 4)).collect::<Result<Vec<_>>>()?;
    let [a, b, c, d] = &tensors[..] else { return Ok(()) };
    let (worker, size) = (ctx.worker().index(), ctx.world().size());
    let rank = |worker: usize| Rank::new((worker % size) as u32);
    let send = |tensor: &Tensor, to| Op::Send { src: tensor.clone(), to };
    let recv = |tensor: &Tensor, from| Op::Recv { dst: tensor.clone(), from };
    let (next, previous) = (rank(worker + 1), rank(worker + size - 1));
    ctx.comm()?.enqueue(&[send(a, next), send(b, previous), recv(c, previous), recv(d, next)])?;
    let sum = Op::AllReduce { src: None, dst: a.clone(), reduction: Reduction::Sum };
    ctx.comm()?.enqueue(&[sum, Op::Broadcast { src: None, dst: b.clone(), root: Rank::new(1) }])
}

fn split(ctx: &mut WorkerContext) -> Result<()> {
    let color = ctx.worker().index() as u32 % 2;
    ctx.comm()?.split(Some(color), 0)?.map_or(Ok(()), |mut half| half.barrier())
}

fn fail(ctx: &mut WorkerContext, worker: u32) -> Result<()> {
    match ctx.worker() == WorkerId::new(worker) {
        true => Err(disco::Error::Invalid("on purpose".into())),
        false => ctx.comm()?.barrier(),
    }
}

/// The process of a worker ends while the other workers wait in a barrier.
fn leave(ctx: &mut WorkerContext, worker: u32) -> Result<()> {
    if ctx.worker() == WorkerId::new(worker) {
        process::exit(7);
    }
    ctx.comm()?.barrier()
}

disco::register_function!("replay.leave", leave);
disco::register_function!("replay.make", make);
disco::register_function!("replay.step", step);
disco::register_function!("replay.exchange", exchange);
disco::register_function!("replay.split", split);
disco::register_function!("replay.fail", fail);

/// `main` of the program.
pub(crate) fn main(how: &str) -> ExitCode {
    disco::init();
    let settings = Settings::from_env().unwrap();
    let session = settings.builder().start().unwrap();
    match block_on(run(&session, &settings, how)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(session: &LaneSession, settings: &Settings, how: &str) -> Result<()> {
    session.init_ccl(&settings.backend, &settings.devices).await?;
    let x = session.call_named("replay.make", (16,)).await?;
    let mut number = session.call_named("replay.step", (&x, 0)).await?;
    for _ in 1..STEPS {
        number = session.call_named("replay.step", (&x, &number)).await?;
    }
    assert_eq!(session.get_all_as::<i64>(&number).await?, vec![STEPS; settings.workers]);
    if how == "fail" || how == "recover" {
        session.call_named("replay.fail", (1,)).await?;
        session.call_named("replay.make", (3,)).await?;
        let failed = session.sync_all().await;
        if how == "fail" {
            return failed;
        }
        session.init_ccl(&settings.backend, &settings.devices).await?;
        session.call_named("replay.step", (&x, 7)).await?;
        return session.shutdown().await;
    }
    if how == "groups" {
        session.call_named("replay.exchange", ()).await?;
        return session.shutdown().await;
    }
    if how == "lose" {
        session.call_named("replay.leave", (1,)).await?;
        return session.sync_all().await;
    }
    if how == "replace" {
        // Long enough for the calls of the lost worker to be written.
        thread::sleep(Duration::from_millis(600));
        session.call_named("replay.leave", (1,)).await?;
        assert!(session.sync_all().await.is_err());
        session.replace_lost().await?;
        session.init_ccl(&settings.backend, &settings.devices).await?;
        let x = session.call_named("replay.make", (16,)).await?;
        for number in 0..2 * STEPS {
            session.call_named("replay.step", (&x, number)).await?;
        }
        return session.shutdown().await;
    }
    if how == "kill" {
        // Long enough for the log to be written.
        thread::sleep(Duration::from_millis(2500));
        process::abort();
    }
    call_data_plane(session, settings.workers).await?;
    session.call_named("replay.split", ()).await?;
    session.sync_worker(WorkerId::new(1)).await?;
    wait_on_two_threads(session)?;
    session.shutdown().await
}

/// Each operation of the data plane that a log may contain.
async fn call_data_plane(session: &LaneSession, n: usize) -> Result<()> {
    let host = Tensor::from_slice(&vec![1f32; 8 * n], [8 * n])?;
    let (whole, block) = (
        session.empty(DType::F32, [8 * n], Placement::All).await?,
        session.empty(DType::F32, [8], Placement::All).await?,
    );
    session.broadcast(&host, &whole).await?;
    session.scatter(&host, &block).await?;
    session.all_reduce(&whole, &whole, Reduction::Max, Scope::World).await?;
    session.reduce_scatter(&whole, &block, Reduction::Sum, Scope::World).await?;
    session.gather_to(&block, &whole, Rank::new(1), Scope::World).await?;
    session.barrier(Scope::Group).await?;
    let counts: Vec<usize> = (1..=n).collect();
    let part = session.empty(DType::I32, [0], Placement::All).await?;
    for worker in session.world().workers() {
        // A tensor replaces another one only after a value.
        session.set(&part, worker, disco::Value::None).await?;
        session.set(&part, worker, Tensor::zeros(DType::I32, counts[worker.index()])?.into()).await?;
    }
    let parts = session.empty(DType::I32, [counts.iter().sum::<usize>()], Placement::All).await?;
    session.all_gather_v(&part, &parts, &counts, Scope::World).await?;
    let to_all = session.empty(DType::U8, [2 * n], Placement::All).await?;
    let from_all = session.empty(DType::U8, [2 * n], Placement::All).await?;
    let row = vec![2; n];
    session.all_to_all_v(&to_all, &from_all, &vec![&row[..]; n], Scope::World).await?;
    session.send_to_next_group(&block).await?;
    session.recv_from_prev_group(&block).await?;
    let (from, to) = (WorkerId::new(0), WorkerId::new(1));
    session.send_to_worker(&block, from, to).await?;
    session.recv_from_worker(&block, from, to).await?;
    let copy = Tensor::zeros(DType::F32, [8])?;
    session.copy_from_worker_0(&copy, &block).await?;
    session.sync_worker_0().await?;
    assert_eq!(session.get_as::<Tensor>(&block, to).await?.shape(), &Shape::from([8]));
    Ok(())
}

/// Calls and waits on two threads, in any order.
fn wait_on_two_threads(session: &LaneSession) -> Result<()> {
    let waits = |_: usize| {
        for _ in 0..10 {
            let x = block_on(session.call_named("replay.make", (4,)))?;
            block_on(session.get_as::<Tensor>(&x, WorkerId::new(0)))?;
            block_on(session.sync_all())?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| waits(1));
        waits(0)?;
        other.join().unwrap()
    })
}
