//! How fast is a tensor sent to a worker and back, and how long do small commands wait behind it?

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use crate::common;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use disco::{Builder, DRef, DType, LaneSession, SessionKind, Tensor, WorkerContext, WorkerId, block_on};

/// Sizes of a tensor, in bytes.
const SIZES: [usize; 4] = [64 << 10, 1 << 20, 16 << 20, 256 << 20];
/// Size in bytes of the transfer behind which small commands wait.
const LARGE: usize = 256 << 20;
/// The worker that tensors are sent to. (Worker 0 is a thread of this process in these sessions.)
const FAR: WorkerId = WorkerId::new(2);

disco::register_function!("values.nothing", nothing);

fn nothing(_: &mut WorkerContext) -> disco::Result<i64> {
    Ok(0)
}

/// A session of three workers. With nodes, each worker has its own node.
fn session(kind: SessionKind) -> LaneSession {
    let builder = match kind {
        SessionKind::Nodes => Builder::nodes(3, 1).node_options(|nodes| nodes.workers = SessionKind::Threads),
        kind => Builder::new(kind, 3),
    };
    builder.start().expect("workers can be started")
}

fn tensor(bytes: usize) -> Tensor {
    let tensor = Tensor::zeros(DType::U8, [bytes as i64]).expect("there is room");
    // Touches the pages before the clock starts.
    tensor.bytes_mut().expect("it is new").fill(1);
    tensor
}

fn handle(session: &LaneSession) -> DRef {
    let call = async { session.call("values.nothing", ()).await };
    block_on(call).expect("workers live")
}

fn set(session: &LaneSession, handle: &DRef, tensor: &Tensor) -> Duration {
    let start = Instant::now();
    block_on(session.set(handle, FAR, tensor.into())).expect("the worker lives");
    start.elapsed()
}

fn get(session: &LaneSession, handle: &DRef) -> Duration {
    let start = Instant::now();
    black_box(block_on(session.value(handle, FAR)).expect("the worker lives"));
    start.elapsed()
}

fn memcpy(from: &Tensor, to: &Tensor) -> Duration {
    let start = Instant::now();
    to.copy_from(black_box(from)).expect("they are alike");
    start.elapsed()
}

/// Sets a large tensor, and meanwhile runs small commands on another worker. Returns the time of the set, and the
/// longest call and sync.
fn behind(session: &LaneSession, handle: &DRef, large: &Tensor) -> [Duration; 3] {
    let function = block_on(session.function("values.nothing")).expect("workers live");
    let (mut call, mut sync) = (Duration::ZERO, Duration::ZERO);
    let whole = thread::scope(|scope| {
        let transfer = scope.spawn(|| set(session, handle, large));
        while !transfer.is_finished() {
            let start = Instant::now();
            drop(block_on(session.call(&function, ())).expect("workers live"));
            call = call.max(start.elapsed());
            let start = Instant::now();
            block_on(session.sync_worker(WorkerId::new(1))).expect("the worker lives");
            sync = sync.max(start.elapsed());
            thread::sleep(Duration::from_millis(1));
        }
        transfer.join().expect("the worker lives")
    });
    [whole, call, sync]
}

fn values(criterion: &mut Criterion) {
    let sizes = if common::measures() { &SIZES[..] } else { &SIZES[..1] };
    for kind in [SessionKind::Threads, SessionKind::Processes, SessionKind::Nodes] {
        let session = session(kind);
        let mut group = criterion.benchmark_group(format!("values/{kind}"));
        for &bytes in sizes {
            let (source, copy, handle) = (tensor(bytes), tensor(bytes), handle(&session));
            set(&session, &handle, &source);
            group.throughput(Throughput::Bytes(bytes as u64)).sample_size(10);
            let sum = |iters: u64, run: &dyn Fn() -> Duration| (0..iters).map(|_| run()).sum();
            group.bench_function(BenchmarkId::new("set", bytes), |bencher| {
                bencher.iter_custom(|iters| sum(iters, &|| set(&session, &handle, &source)));
            });
            group.bench_function(BenchmarkId::new("get", bytes), |bencher| {
                bencher.iter_custom(|iters| sum(iters, &|| get(&session, &handle)));
            });
            for (name, ours) in [
                ("set", &(|| set(&session, &handle, &source)) as &dyn Fn() -> Duration),
                ("get", &|| get(&session, &handle)),
            ] {
                let mut over_tcp = || common::tcp::copy(bytes);
                let mut copying = || memcpy(&source, &copy);
                let floor: (&str, &mut dyn FnMut() -> Duration) =
                    if kind == SessionKind::Nodes { ("TCP", &mut over_tcp) } else { ("memcpy", &mut copying) };
                common::compare(&format!("values/{kind}/{name}/{bytes}"), ours, &mut [floor]);
            }
        }
        group.finish();
        let name = format!("values/{kind}/behind");
        if common::is_selected(&name) {
            let (large, handle) = (tensor(LARGE), handle(&session));
            for _ in 0..3 {
                let [whole, call, sync] = behind(&session, &handle, &large);
                println!(
                    "{name}: a set of {LARGE} bytes took {whole:.1?}; the longest call {call:.1?}, sync of another worker {sync:.1?}"
                );
            }
        }
        block_on(session.shutdown()).expect("live");
    }
}

criterion_group!(benches, values);

pub(crate) fn main() {
    common::run(benches);
}
