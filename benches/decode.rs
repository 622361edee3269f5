//! How much time does a decode loop spend in collectives? Each layer computes for about 100 µs and reduces a small
//! tensor in place.
//!
//! Prints the time of a layer beyond its compute, for ranks that are threads, ranks that are processes, the hand-written
//! floor and, with the feature `mpi`, MPI's own blocking calls. Runs once for each MPI library that the tests have
//! fetched. `DISCO_WORKERS` sets the number of ranks.

#![cfg_attr(feature = "mpi", allow(unsafe_code, reason = "MPI's own calls"))]

use std::hint::black_box;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use crate::common::{self, floor::Floor};
use disco::{Builder, CommunicatorExt as _, DType, Error, OpKind, Reduction, Result, Tensor, WorkerContext, block_on};

/// Sizes of the reduced tensor, in bytes.
const SIZES: [usize; 4] = [2304, 4 << 10, 16 << 10, 32 << 10];
/// Layers of a round.
const LAYERS: usize = 60;
/// Rounds of a comparison, in which the variants take turns.
const ROUNDS: usize = 11;
/// Compute of a layer.
const COMPUTE: Duration = Duration::from_micros(100);

disco::register_function!("benches.decode", decode);

/// Writes the tensor of a layer and works for a fixed number of steps.
fn compute(tensor: &Tensor, steps: usize) -> Result<()> {
    tensor.view_mut::<f32>()?.fill(1.0);
    let mut value = 1.0f32;
    for _ in 0..steps {
        value = black_box(value * 1.0001);
    }
    Ok(())
}

/// Steps of [`compute`] that take [`COMPUTE`].
fn calibrate(tensor: &Tensor) -> Result<usize> {
    const STEPS: usize = 100_000;
    let time = || -> Result<Duration> {
        let start = Instant::now();
        compute(tensor, STEPS)?;
        Ok(start.elapsed())
    };
    let mut best = time()?;
    for _ in 0..10 {
        best = best.min(time()?);
    }
    Ok((COMPUTE.as_secs_f64() / best.as_secs_f64() * STEPS as f64) as usize)
}

/// Runs layers on this rank. Returns the seconds of a layer.
fn decode(ctx: &mut WorkerContext, raw: bool, bytes: usize, steps: usize, layers: usize) -> Result<f64> {
    let tensor = ctx.empty(DType::F32, [(bytes / 4) as i64])?;
    let result = ctx.empty(DType::F32, [(bytes / 4) as i64])?;
    result.view_mut::<f32>()?.fill(0.0);
    let comm = ctx.comm()?;
    let size = comm.size();
    let mut layer = || -> Result<()> {
        compute(&tensor, steps)?;
        if raw { mpi_all_reduce(&tensor, &result, bytes) } else { comm.all_reduce_in_place(&tensor, Reduction::Sum) }
    };
    (0..3).try_for_each(|_| layer())?;
    let start = Instant::now();
    (0..layers).try_for_each(|_| layer())?;
    let seconds = start.elapsed().as_secs_f64() / layers as f64;
    let reduced = if raw { &result } else { &tensor };
    let is_right = reduced.view::<f32>()?.iter().all(|element| *element == size as f32);
    if is_right { Ok(seconds) } else { Err(Error::invalid("all_reduce: the result is wrong")) }
}

#[cfg(feature = "mpi")]
fn mpi_all_reduce(src: &Tensor, dst: &Tensor, bytes: usize) -> Result<()> {
    use disco::mpi::raw;
    // SAFETY: the session has initialised MPI, and both tensors have `bytes` bytes.
    unsafe { raw::call(raw::Call::AllReduce, true, src.data(), dst.data(), bytes) }
}

#[cfg(not(feature = "mpi"))]
fn mpi_all_reduce(_: &Tensor, _: &Tensor, _: usize) -> Result<()> {
    Err(Error::invalid("this benchmark was built without the feature mpi"))
}

fn run() {
    let ranks = common::settings(2).workers;
    let start = |name: &'static str, builder: Builder, backend: &str, raw: bool| {
        let session = builder.start().expect("workers can be started");
        block_on(session.init_ccl(backend, &[])).expect("the backend is there");
        (name, session, raw)
    };
    let mut variants = vec![
        start("threads", Builder::threads(ranks), "local", false),
        start("processes", Builder::processes(ranks), "local", false),
    ];
    if cfg!(feature = "mpi") && std::env::var_os("DISCO_MPI_LIBRARY").is_some() {
        variants.push(start("raw MPI", Builder::processes(ranks), "mpi", true));
        #[cfg(feature = "mpi")]
        if let Ok(library) = disco::Backend::probe(&disco::mpi::BACKEND) {
            println!("\n{} from {}, {ranks} ranks", library.version, library.library);
        }
    }
    common::print_placement();
    let tensor = Tensor::zeros(DType::F32, [1]).expect("there is room");
    let steps = calibrate(&tensor).expect("it is a host tensor");
    let (rounds, layers) = if common::measures() { (ROUNDS, LAYERS) } else { (1, 2) };
    // Ranks that share a processor compute one after the other.
    let processors = available_parallelism().map_or(1, usize::from);
    let alone = (0..5).map(|_| {
        let start = Instant::now();
        (0..20).try_for_each(|_| compute(&tensor, steps)).expect("it is a host tensor");
        start.elapsed().as_secs_f64() / 20.0
    });
    let least = alone.fold(f64::MAX, f64::min) * ranks.div_ceil(processors) as f64;
    for bytes in SIZES {
        let floor = Floor::new(OpKind::AllReduce, true, ranks, bytes / 4);
        let mut times = vec![Vec::new(); 1 + variants.len()];
        for _ in 0..rounds {
            let time = floor.run_after(layers as u64, false, |tensor| _ = compute(tensor, steps));
            times[0].push((time.as_secs_f64() - least) * 1e6);
            for ((_, session, raw), times) in variants.iter().zip(&mut times[1..]) {
                let args = (*raw, bytes as i64, steps as i64, layers as i64);
                times.push((common::slowest(session, "benches.decode", args).as_secs_f64() - least) * 1e6);
            }
        }
        let names = std::iter::once("floor").chain(variants.iter().map(|variant| variant.0));
        let cells = names.zip(&mut times).map(|(name, times)| {
            times.sort_unstable_by(f64::total_cmp);
            format!("{name} {:.2} ({:.2} to {:.2})", times[times.len() / 2], times[0], times[times.len() - 1])
        });
        let cells = cells.collect::<Vec<_>>().join("   ");
        println!("decode {ranks} ranks, {bytes} B: µs beyond {:.0} µs of compute: {cells}", least * 1e6);
    }
    for (_, session, _) in variants {
        block_on(session.shutdown()).expect("live");
    }
}

pub(crate) fn main() {
    disco::init();
    if common::measures() && !common::is_selected("decode") {
        return;
    }
    let libraries = if cfg!(feature = "mpi") && std::env::var_os("DISCO_MPI_LIBRARY").is_none() {
        common::libraries::fetched()
    } else {
        Vec::new()
    };
    if libraries.is_empty() {
        return run();
    }
    for library in libraries {
        let mut this = std::process::Command::new(std::env::current_exe().expect("it runs"));
        this.args(std::env::args_os().skip(1)).env("DISCO_MPI_LIBRARY", library).env("DISCO_BACKEND", "mpi");
        this.env("DISCO_WORKERS", common::settings(2).workers.to_string());
        // The best setting of Open MPI with more ranks than processors. Other libraries ignore it.
        this.env("OMPI_MCA_mpi_yield_when_idle", "1");
        // Without binding, so that the threads of rank 0 may use all processors.
        this.env("PRTE_MCA_hwloc_default_binding_policy", "none").env("OMPI_MCA_hwloc_base_binding_policy", "none");
        if !this.status().expect("it runs").success() {
            std::process::exit(1);
        }
    }
}
