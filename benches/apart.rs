//! What does it cost that worker 0 is a process (`Builder::apart`), and not a thread of the controller?

use std::time::{Duration, Instant};

use crate::common;
use criterion::{Criterion, criterion_group};
use disco::{Builder, DRef, DType, LaneSession, Placement, Tensor, WorkerContext, WorkerId, block_on};

/// Number of workers.
const WORKERS: usize = 2;
/// Number of calls of one measurement.
const CALLS: u32 = 10_000;
/// Number of syncs of one measurement.
const TRIPS: u32 = 500;
/// Size in bytes of the tensor that is broadcast.
const BYTES: usize = 64 << 20;

disco::register_function!("apart.nothing", nothing);

fn nothing(_: &mut WorkerContext) -> disco::Result<()> {
    Ok(())
}

/// A session with a data plane, and a tensor on each worker.
struct Subject {
    session: LaneSession,
    nothing: DRef,
    copy: DRef,
}

impl Subject {
    fn start(apart: bool) -> Self {
        let session = Builder::processes(WORKERS).apart(apart).start().expect("workers can be started");
        let prepare = async {
            session.init_ccl("local", &[]).await?;
            let copy = session.empty(DType::U8, [BYTES as i64], Placement::All).await?;
            Ok::<_, disco::Error>((session.function("apart.nothing").await?, copy))
        };
        let (nothing, copy) = block_on(prepare).expect("workers live");
        Self { session, nothing, copy }
    }

    fn calls(&self) -> Duration {
        let start = Instant::now();
        let calls = async {
            for _ in 0..CALLS {
                self.session.call(&self.nothing, ()).await?;
            }
            self.session.sync_all().await
        };
        block_on(calls).expect("workers live");
        start.elapsed() / CALLS
    }

    fn syncs(&self, worker: u32) -> Duration {
        let start = Instant::now();
        (0..TRIPS).for_each(|_| block_on(self.session.sync_worker(WorkerId::new(worker))).expect("workers live"));
        start.elapsed() / TRIPS
    }

    /// Checks that a broadcast reaches the last worker.
    fn check(&self, tensor: &Tensor) {
        self.broadcast(tensor);
        let last = WorkerId::new(WORKERS as u32 - 1);
        let copy: Tensor = block_on(self.session.get(&self.copy, last)).expect("workers live");
        assert!(*copy.bytes().expect("it is here") == *tensor.bytes().expect("it is here"));
    }

    fn broadcast(&self, tensor: &Tensor) -> Duration {
        let start = Instant::now();
        let broadcast = async {
            self.session.broadcast(tensor, &self.copy).await?;
            self.session.sync_all().await
        };
        block_on(broadcast).expect("workers live");
        start.elapsed()
    }
}

fn apart(criterion: &mut Criterion) {
    let [ordinary, apart] = [false, true].map(Subject::start);
    let tensor = || {
        let tensor = Tensor::zeros(DType::U8, [BYTES as i64]).expect("there is room");
        // Touches the pages before the clock starts.
        tensor.bytes_mut().expect("it is new").fill(1);
        tensor
    };
    let (source, target) = (tensor(), tensor());
    [&ordinary, &apart].iter().for_each(|subject| subject.check(&source));
    let mut group = criterion.benchmark_group(format!("apart/{WORKERS}"));
    group.sample_size(10);
    group.bench_function("broadcast", |bencher| bencher.iter(|| apart.broadcast(&source)));
    group.finish();
    common::compare("apart/calls", || apart.calls(), &mut [("a thread", &mut || ordinary.calls())]);
    for worker in 0..WORKERS as u32 {
        let mut floor = || ordinary.syncs(worker);
        common::compare(&format!("apart/sync/{worker}"), || apart.syncs(worker), &mut [("a thread", &mut floor)]);
    }
    let mut and_a_memcpy = || {
        let broadcast = ordinary.broadcast(&source);
        let start = Instant::now();
        target.copy_from(&source).expect("they are alike");
        broadcast + start.elapsed()
    };
    common::compare(
        "apart/broadcast",
        || apart.broadcast(&source),
        &mut [("a thread, and a memcpy", &mut and_a_memcpy)],
    );
    for Subject { session, .. } in [ordinary, apart] {
        block_on(session.shutdown()).expect("workers live");
    }
}

criterion_group!(benches, apart);

pub(crate) fn main() {
    common::run(benches);
}
