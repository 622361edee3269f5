//! Ranks that share device 0, each on a thread of its own.

use std::error::Error;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use std::{env, process, thread};

use disco::nccl::cuda::Cuda;
use disco::nccl::disco_ccl::p2p::{Consensus, Kernels, Rendezvous, Workspace};
use disco::nccl::disco_ccl::{self, Runtime};
use disco::nccl::p2p::VENDOR;
use disco::{Builder, DType, Device, DeviceApi as _, DeviceKind, Op, Queue, Reduction, Store, Tensor, block_on};
use disco_core::store::View;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
/// A measurement, given the number of ranks.
pub(crate) type Work = fn(usize) -> Result<Vec<Row>>;

/// Limit of waits; only a hang reaches it.
pub(crate) const HANG_LIMIT: Duration = Duration::from_secs(60);
/// Limit of a kernel's wait for a peer.
pub(crate) const KERNEL_WAIT_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of each rank's shared buffer.
const BUFFER: usize = 10 << 20;

/// A result: its name and size, separated by a tab, and the seconds.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) seconds: f64,
}

/// One rank.
pub(crate) struct GpuRank {
    pub(crate) queue: Box<dyn Queue>,
    pub(crate) index: usize,
    /// Number of ranks.
    pub(crate) size: usize,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<Runtime>,
    barrier: Arc<Barrier>,
}

/// Runs `work` on `size` ranks of device 0, and returns the rows of the slowest rank. A rank that fails ends the
/// process, because its peers may wait for it.
pub(crate) fn run(size: usize, work: fn(&mut GpuRank) -> Result<Vec<Row>>) -> Result<Vec<Row>> {
    let store: Arc<dyn Store> = Arc::new(View::default());
    let barrier = Arc::new(Barrier::new(size));
    let spawn = |index| {
        let (store, barrier) = (store.clone(), barrier.clone());
        thread::spawn(move || {
            GpuRank::bind((index, size), store, barrier).and_then(|mut rank| work(&mut rank)).unwrap_or_else(|error| {
                eprintln!("rank {index} of {size}: {error}");
                process::exit(1);
            })
        })
    };
    let threads: Vec<_> = (0..size).map(spawn).collect();
    let mut slowest: Vec<Row> = Vec::new();
    for thread in threads {
        keep_slowest(&mut slowest, thread.join().map_err(|_| "a rank panicked")?);
    }
    Ok(slowest)
}

/// Adds the rows of another rank to those of the slowest rank so far.
pub(crate) fn keep_slowest(slowest: &mut Vec<Row>, rows: Vec<Row>) {
    for (at, row) in rows.into_iter().enumerate() {
        match slowest.get_mut(at) {
            Some(slower) => slower.seconds = slower.seconds.max(row.seconds),
            None => slowest.push(row),
        }
    }
}

/// Calls a function with each size on `size` workers of device 0, with each backend. The function takes a number of
/// elements, and returns seconds; a row has those of the slowest worker.
pub(crate) fn on_workers(size: usize, function: &str, what: &str, bytes: &[usize]) -> Result<Vec<Row>> {
    let session = Builder::threads(size).start()?;
    block_on(async {
        let mut rows = Vec::new();
        for backend in ["nccl", "cuda_p2p"] {
            session.init_ccl(backend, &vec![0; size]).await?;
            for &bytes in bytes {
                let times = session.call(function, ((bytes / 4) as i64,)).await?;
                let slowest = session.get_all(&times).await?.into_iter().fold(0.0, f64::max);
                rows.push(row(format!("ours {backend}, {what}"), bytes, slowest));
            }
        }
        session.shutdown().await?;
        Ok(rows)
    })
}

impl GpuRank {
    fn bind((index, size): (usize, usize), store: Arc<dyn Store>, barrier: Arc<Barrier>) -> Result<Self> {
        let mut queue = Cuda.bind(Device::new(DeviceKind::Cuda, 0))?;
        let runtime = disco_ccl::Queue::of(&mut *queue, DeviceKind::Cuda)?.runtime().clone();
        Ok(Self { queue, index, size, store, runtime, barrier })
    }

    /// Makes the shared memory of the ranks and the kernels over it. A kernel waits for a peer for at most
    /// `wait_limit`.
    pub(crate) fn start(&self, wait_limit: Duration) -> Result<(Workspace, Box<dyn Kernels>)> {
        let place = (self.index, self.size);
        let rendezvous = Rendezvous::new(self.store.clone(), "p2p".into(), place, HANG_LIMIT).sharing_devices();
        let met = match Workspace::meet(&self.runtime, &rendezvous, BUFFER, disco::nccl::p2p::mesh, |_| Vec::new())? {
            Consensus::Accepted(met) => met,
            Consensus::Declined(why) => return Err(format!("the ranks share no memory: {why}").into()),
        };
        let prepared = (VENDOR.kernels)(&self.runtime)?;
        let room = (prepared.resident(), met.max_ranks_per_device);
        let kernels = prepared.start(&met.workspace, met.decision.topology, room, wait_limit)?;
        Ok((met.workspace, kernels))
    }

    /// A tensor of 32-bit floats that all have the same value.
    pub(crate) fn tensor(&mut self, bytes: usize, number: f32) -> Result<Tensor> {
        let len = bytes / 4;
        let tensor = Tensor::from_storage(self.queue.alloc(bytes)?, DType::F32, [len as i64])?;
        self.queue.copy_in(&tensor, &Tensor::from_slice(&vec![number; len], [len as i64])?)?;
        self.finish()?;
        Ok(tensor)
    }

    /// This rank's input of a sum, and a tensor for the result.
    pub(crate) fn operands(&mut self, bytes: usize) -> Result<(Tensor, Tensor)> {
        Ok((self.tensor(bytes, 1.0 + self.index as f32)?, self.tensor(bytes, 0.0)?))
    }

    /// Checks that a tensor is the sum of all ranks' inputs ([`GpuRank::operands`]).
    pub(crate) fn check_sum(&mut self, tensor: &Tensor) -> Result<()> {
        let host = Tensor::zeros(DType::F32, tensor.shape().clone())?;
        self.queue.copy_out(&host, tensor)?;
        self.finish()?;
        let expected = (1..=self.size).sum::<usize>() as f32;
        let wrong = host.to_vec::<f32>()?.into_iter().enumerate().find(|&(_, number)| number != expected);
        wrong.map_or(Ok(()), |(at, number)| {
            let bytes = tensor.elements() * 4;
            Err(format!("the sum of {bytes} bytes has {number} at element {at} instead of {expected}").into())
        })
    }

    /// Waits until this rank's stream is done.
    pub(crate) fn finish(&mut self) -> Result<()> {
        Ok(self.queue.synchronize(HANG_LIMIT)?)
    }

    /// Waits until all ranks' streams are done.
    pub(crate) fn finish_all(&mut self, shared: &Workspace) -> Result<()> {
        shared.main().barrier()?;
        self.finish()?;
        self.wait_for_all();
        Ok(())
    }

    /// Waits until all ranks have made this call.
    pub(crate) fn wait_for_all(&self) {
        self.barrier.wait();
    }

    /// Seconds from the moment when all ranks have made this call until this rank's stream is done.
    pub(crate) fn time(&mut self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.wait_for_all();
        let start = Instant::now();
        work()?;
        self.finish()?;
        let seconds = start.elapsed().as_secs_f64();
        self.wait_for_all();
        Ok(seconds)
    }
}

/// A sum over all ranks.
pub(crate) fn sum(src: &Tensor, dst: &Tensor) -> Op {
    Op::AllReduce { src: Some(src.clone()), dst: dst.clone(), reduction: Reduction::Sum }
}

/// Launches a sum's kernel.
pub(crate) fn launch(kernels: &dyn Kernels, op: &Op) -> Result<()> {
    kernels.launch(op)?.map_err(|why| format!("there is no kernel for this sum: {why}").into())
}

pub(crate) fn row(name: impl Into<String>, bytes: usize, seconds: f64) -> Row {
    Row { name: format!("{}\t{bytes}", name.into()), seconds }
}

pub(crate) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Whether this is a rehearsal: small sizes and counts, and meaningless figures.
pub(crate) fn is_quick() -> bool {
    env::var_os("GPU_EVIDENCE_QUICK").is_some_and(|value| value == "1")
}

/// `count` repetitions; two in a rehearsal.
pub(crate) fn times(count: usize) -> usize {
    if is_quick() { count.min(2) } else { count }
}

/// The sizes to measure: all, or only the small ones in a rehearsal.
pub(crate) fn sizes<const N: usize>(all: [usize; N]) -> Vec<usize> {
    all.into_iter().filter(|&bytes| !is_quick() || bytes <= 64 << 10).collect()
}
