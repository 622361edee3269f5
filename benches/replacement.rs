//! How long does it take from the death of a worker process, or of a node, to the next finished `all_reduce`?

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common;
use criterion::{Criterion, criterion_group};
use disco::{
    Announce, Builder, CommunicatorExt as _, DType, LaneSession, Reduction, Result, WorkerContext, WorkerId, block_on,
};
use disco::{SessionKind, Token};

disco::register_function!("benches.sum", sum);
disco::register_function!("benches.sum_by_store", sum_by_store);
disco::register_function!("benches.die", die);

fn sum(ctx: &mut WorkerContext) -> Result<f64> {
    let tensor = ctx.empty(DType::F64, [1])?;
    tensor.write(&[ctx.worker().index() as f64])?;
    ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Sum)?;
    Ok(tensor.to_vec::<f64>()?[0])
}

/// Ends the process of the last worker, as if it was killed.
fn die(ctx: &mut WorkerContext) -> Result<()> {
    if ctx.worker().index() + 1 == ctx.world().size() { std::process::abort() } else { Ok(()) }
}

/// The sum of the numbers of all workers, through the session's store, once in each epoch.
fn sum_by_store(ctx: &mut WorkerContext) -> Result<f64> {
    let (store, me) = (ctx.store(), ctx.worker().index());
    store.set(&me.to_string(), &(me as f64).to_le_bytes())?;
    let mut sum = 0.0;
    for worker in 0..ctx.world().size() {
        let number = store.wait(&worker.to_string(), Duration::from_secs(10))?;
        sum += number.try_into().map_or(f64::NAN, f64::from_le_bytes);
    }
    Ok(sum)
}

async fn check_sum(session: &LaneSession, workers: usize) -> Result<()> {
    let sum = session.call("benches.sum", ()).await?;
    let sum: f64 = session.get(&sum, WorkerId::new(0)).await?;
    assert_eq!(sum, (workers * (workers - 1) / 2) as f64, "the sum is right");
    Ok(())
}

/// The time from the loss of the last worker, as the session reports it, to the sum of all workers; and from its death to
/// the report.
fn survive(session: &LaneSession, workers: usize) -> (Duration, Duration) {
    let survived = block_on(async {
        session.call("benches.die", ()).await?;
        let died = Instant::now();
        session.sync_all().await.expect_err("a worker is lost");
        let lost = Instant::now();
        session.replace_lost().await?;
        session.init_ccl("local", &[]).await?;
        check_sum(session, workers).await?;
        Ok::<_, disco::Error>((lost.elapsed(), lost - died))
    });
    survived.expect("the worker can be replaced")
}

/// [`survive`], from the loss to the sum, once a spare waits.
fn survive_with_spare(session: &LaneSession, workers: usize) -> Duration {
    while !session.status().spares.iter().any(|spare| spare.is_ready) {
        std::thread::sleep(Duration::from_millis(1));
    }
    survive(session, workers).0
}

/// The time of a new session of this size until its first sum.
fn start(workers: usize) -> Duration {
    let started = block_on(async {
        let begun = Instant::now();
        let session = Builder::processes(workers).start()?;
        session.init_ccl("local", &[]).await?;
        check_sum(&session, workers).await?;
        let took = begun.elapsed();
        session.shutdown().await.map(|()| took)
    });
    started.expect("workers can be started")
}

fn replacement(criterion: &mut Criterion) {
    let workers = common::settings(4).workers.max(2);
    let begin = |spares: usize| {
        let session = Builder::processes(workers)
            .process_options(|processes| processes.spares = spares)
            .start()
            .expect("workers can be started");
        block_on(session.init_ccl("local", &[])).expect("`local` is always there");
        session
    };
    let (session, with_spare) = (begin(0), begin(1));
    let mut group = criterion.benchmark_group(format!("replacement/{workers} processes"));
    group.sample_size(10);
    group.bench_function("from the report of the loss to the next sum", |bencher| {
        bencher.iter_custom(|iters| (0..iters).map(|_| survive(&session, workers).0).sum());
    });
    group.bench_function("from the report of the loss to the next sum, with a spare", |bencher| {
        bencher.iter_custom(|iters| (0..iters).map(|_| survive_with_spare(&with_spare, workers)).sum());
    });
    group.bench_function("from the death to the report", |bencher| {
        bencher.iter_custom(|iters| (0..iters).map(|_| survive(&session, workers).1).sum());
    });
    group.finish();
    common::compare(
        &format!("replacement/{workers} processes"),
        || survive(&session, workers).0,
        &mut [
            ("with a spare", &mut || survive_with_spare(&with_spare, workers)),
            ("a new session", &mut || start(workers)),
            ("a new session of one process", &mut || start(2)),
        ],
    );
    [session, with_spare].iter().for_each(|session| block_on(session.shutdown()).expect("live"));
}

/// The session of nodes, its address, and the nodes and spares that were started.
struct Nodes {
    session: LaneSession,
    address: SocketAddr,
    children: Vec<Child>,
}

impl Nodes {
    const TOKEN: &str = "a token of this benchmark only";

    /// A session of two nodes with one worker each. If nodes stand by, the session waits for nodes instead of starting them.
    fn start(stand_by: bool) -> Self {
        let builder = Builder::nodes(2, 1).node_options(|nodes| nodes.workers = SessionKind::Threads);
        if !stand_by {
            let session = builder.start().expect("nodes can be started");
            return Self { session, address: ([127, 0, 0, 1], 0).into(), children: Vec::new() };
        }
        let (tell, told) = mpsc::channel();
        let token = Token::new(Self::TOKEN).expect("it is long enough");
        let builder = builder.node_options(|nodes| nodes.token = Some(token)).node_options(|nodes| {
            nodes.announce = Some(Announce::new(move |announcement| {
                // No other place is announced, since a node stands by.
                _ = tell.send((announcement.address, Self::node(announcement.address, false)));
                Ok(())
            }))
        });
        let session = builder.start().expect("nodes can be started");
        let (address, node) = told.recv().expect("the session listens");
        Self { session, address, children: vec![node] }
    }

    /// Starts this program as a node.
    fn node(address: SocketAddr, is_spare: bool) -> Child {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.env("DISCO_CONNECT", address.to_string()).env("DISCO_TOKEN", Self::TOKEN);
        command.env("DISCO_SPARE", if is_spare { "1" } else { "0" }).stderr(Stdio::null());
        command.spawn().expect("this program can be started")
    }

    /// The time from the death of a node to the sum of all workers, through the session's store.
    fn survive(&mut self, stand_by: bool) -> Duration {
        if stand_by {
            self.children.push(Self::node(self.address, true));
            while self.session.status().spares.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let survived = block_on(async {
            self.session.call("benches.die", ()).await?;
            let died = Instant::now();
            self.session.sync_all().await.expect_err("a node is lost");
            self.session.replace_lost().await?;
            let sum = self.session.call("benches.sum_by_store", ()).await?;
            let sums: Vec<f64> = self.session.get_all(&sum).await?;
            assert_eq!(sums, [1.0, 1.0], "the sums are right");
            Ok::<_, disco::Error>(died.elapsed())
        });
        survived.expect("the node can be replaced")
    }

    fn end(self) {
        block_on(self.session.shutdown()).expect("live");
        self.children.into_iter().for_each(|mut child| _ = child.wait());
    }
}

fn replacement_of_nodes(criterion: &mut Criterion) {
    let (mut started, mut standing) = (Nodes::start(false), Nodes::start(true));
    let mut group = criterion.benchmark_group("replacement/2 nodes");
    group.sample_size(10);
    group.bench_function("from the death to the next sum, by a node that is started", |bencher| {
        bencher.iter_custom(|iters| (0..iters).map(|_| started.survive(false)).sum());
    });
    group.bench_function("from the death to the next sum, by a node that stands by", |bencher| {
        bencher.iter_custom(|iters| (0..iters).map(|_| standing.survive(true)).sum());
    });
    group.finish();
    started.end();
    standing.end();
}

criterion_group!(benches, replacement, replacement_of_nodes);

pub(crate) fn main() {
    common::run(benches);
}
