//! Ranks on device 0, each a thread.

use std::error::Error;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use std::{env, process, thread};

use disco::nccl::cuda::Cuda;
use disco::nccl::disco_ccl::p2p::{Found, Kernels, Rendezvous, Workspace};
use disco::nccl::disco_ccl::{self, Runtime};
use disco::nccl::p2p::VENDOR;
use disco::{DType, Device, DeviceApi as _, DeviceKind, Op, Queue, Reduction, Store, Tensor};
use disco_core::store::View;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
/// Measures something with so many ranks.
pub(crate) type Work = fn(usize) -> Result<Vec<Row>>;

/// A limit that only what hangs reaches.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// How long a kernel waits for a peer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of each rank's shared buffer.
const BUFFER: usize = 10 << 20;

/// A figure: its name and size, parted by a tab, and the seconds.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) seconds: f64,
}

/// One rank.
pub(crate) struct Seat {
    pub(crate) queue: Box<dyn Queue>,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<Runtime>,
    line: Arc<Barrier>,
}

/// Does something on so many ranks of device 0. The rows are those of the slowest rank. A rank that fails ends the process: its peers
/// may wait for it.
pub(crate) fn ranks(size: usize, work: fn(&mut Seat) -> Result<Vec<Row>>) -> Result<Vec<Row>> {
    let store: Arc<dyn Store> = Arc::new(View::default());
    let line = Arc::new(Barrier::new(size));
    let rank = |rank| {
        let (store, line) = (store.clone(), line.clone());
        thread::spawn(move || {
            Seat::take((rank, size), store, line).and_then(|mut seat| work(&mut seat)).unwrap_or_else(|error| {
                eprintln!("rank {rank} of {size}: {error}");
                process::exit(1);
            })
        })
    };
    let threads: Vec<_> = (0..size).map(rank).collect();
    let mut slowest: Vec<Row> = Vec::new();
    for thread in threads {
        for (at, row) in thread.join().map_err(|_| "a rank panicked")?.into_iter().enumerate() {
            match slowest.get_mut(at) {
                Some(slower) => slower.seconds = slower.seconds.max(row.seconds),
                None => slowest.push(row),
            }
        }
    }
    Ok(slowest)
}

impl Seat {
    fn take((rank, size): (usize, usize), store: Arc<dyn Store>, line: Arc<Barrier>) -> Result<Self> {
        let mut queue = Cuda.bind(Device::new(DeviceKind::Cuda, 0))?;
        let runtime = disco_ccl::Queue::of(&mut *queue, DeviceKind::Cuda)?.runtime().clone();
        Ok(Self { queue, rank, size, store, runtime, line })
    }

    /// The memory that the ranks share, and the kernels over it, each of which waits `patience` for a peer.
    pub(crate) fn start(&self, patience: Duration) -> Result<(Workspace, Box<dyn Kernels>)> {
        let place = (self.rank, self.size);
        let rendezvous = Rendezvous::new(self.store.clone(), "p2p".into(), place, LIMIT).sharing_devices();
        let met = match Workspace::meet(&self.runtime, &rendezvous, BUFFER, disco::nccl::p2p::mesh, |_| Vec::new())? {
            Found::Together(met) => met,
            Found::Apart(why) => return Err(format!("the ranks share no memory: {why}").into()),
        };
        let prepared = (VENDOR.kernels)(&self.runtime)?;
        let room = (prepared.resident(), met.sharing);
        let kernels = prepared.start(&met.workspace, met.decision.topology, room, patience)?;
        Ok((met.workspace, kernels))
    }

    /// A tensor of 32-bit floats, full of a number.
    pub(crate) fn tensor(&mut self, bytes: usize, number: f32) -> Result<Tensor> {
        let len = bytes / 4;
        let tensor = Tensor::from_storage(self.queue.alloc(bytes)?, DType::F32, [len as i64])?;
        self.queue.copy_in(&tensor, &Tensor::from_slice(&vec![number; len], [len as i64])?)?;
        self.finish()?;
        Ok(tensor)
    }

    /// The input of this rank's part in a sum, and the place of the result.
    pub(crate) fn operands(&mut self, bytes: usize) -> Result<(Tensor, Tensor)> {
        Ok((self.tensor(bytes, 1.0 + self.rank as f32)?, self.tensor(bytes, 0.0)?))
    }

    /// Checks that a tensor is the sum of all ranks' inputs ([`Seat::operands`]).
    pub(crate) fn check_sum(&mut self, tensor: &Tensor) -> Result<()> {
        let host = Tensor::zeros(DType::F32, tensor.shape().clone())?;
        self.queue.copy_out(&host, tensor)?;
        self.finish()?;
        let expected = (1..=self.size).sum::<usize>() as f32;
        let wrong = host.to_vec::<f32>()?.into_iter().enumerate().find(|&(_, number)| number != expected);
        wrong.map_or(Ok(()), |(at, number)| {
            let bytes = tensor.elements() * 4;
            Err(format!("the sum of {bytes} bytes has {number} at element {at}, and {expected} is right").into())
        })
    }

    /// Waits until this rank's stream is done.
    pub(crate) fn finish(&mut self) -> Result<()> {
        Ok(self.queue.synchronize(LIMIT)?)
    }

    /// Waits until all ranks' streams are done.
    pub(crate) fn finish_all(&mut self, shared: &Workspace) -> Result<()> {
        shared.main().barrier()?;
        self.finish()?;
        self.line();
        Ok(())
    }

    /// Waits until all ranks have come.
    pub(crate) fn line(&self) {
        self.line.wait();
    }

    /// Seconds from when all ranks are here until this rank's stream is done.
    pub(crate) fn time(&mut self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.line();
        let start = Instant::now();
        work()?;
        self.finish()?;
        let seconds = start.elapsed().as_secs_f64();
        self.line();
        Ok(seconds)
    }
}

/// A sum over all ranks.
pub(crate) fn sum(src: &Tensor, dst: &Tensor) -> Op {
    Op::AllReduce { src: Some(src.clone()), dst: dst.clone(), reduction: Reduction::Sum }
}

/// Launches a sum's kernel.
pub(crate) fn launch(kernels: &dyn Kernels, op: &Op) -> Result<()> {
    kernels.launch(op)?.map_err(|why| format!("no kernel is for this sum: {why}").into())
}

pub(crate) fn row(name: impl Into<String>, bytes: usize, seconds: f64) -> Row {
    Row { name: format!("{}\t{bytes}", name.into()), seconds }
}

pub(crate) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Whether this is a rehearsal, in which figures mean nothing.
pub(crate) fn is_quick() -> bool {
    env::var_os("GPU_EVIDENCE_QUICK").is_some_and(|value| value == "1")
}

/// So many repetitions; two in a rehearsal.
pub(crate) fn times(count: usize) -> usize {
    if is_quick() { count.min(2) } else { count }
}

/// Those of the sizes that are measured: in a rehearsal the small ones.
pub(crate) fn sizes<const N: usize>(all: [usize; N]) -> Vec<usize> {
    all.into_iter().filter(|&bytes| !is_quick() || bytes <= 64 << 10).collect()
}
