//! Launches of sums: NCCL's functions, blocking and non-blocking, and Disco's.

#![allow(unsafe_code, reason = "NCCL's own calls")]

use std::ffi::c_int;
use std::ptr;
use std::time::Instant;

use disco::nccl::disco_ccl::abi::{Code, Comm, DataType, RedOp, UniqueId};
use disco::nccl::disco_ccl::{Config, Library};
use disco::{CommunicatorExt as _, DType, Reduction, Tensor, WorkerContext};

use crate::ranks::{self, GpuRank, HANG_LIMIT, Result, Row, median, row, sum, times};

const SIZES: [usize; 3] = [16, 64 << 10, 1 << 20];
const CALLS: usize = 100;
const ROUNDS: usize = 16;

disco::register_function!("gpu.ours", ours_on_a_worker);

/// NCCL's functions: seconds for each sum, of the launch on the host and in all.
pub(crate) fn raw(size: usize) -> Result<Vec<Row>> {
    ranks::run(size, |rank| {
        let mut rows = Vec::new();
        for kind in ["raw blocking", "raw non-blocking"] {
            let raw = Raw::connect(rank, kind == "raw blocking", kind)?;
            for bytes in ranks::sizes(SIZES) {
                let (src, dst) = rank.operands(bytes)?;
                let (launched, all) = raw.time(rank, &src, &dst)?;
                rank.check_sum(&dst)?;
                rows.push(row(format!("{kind}, launch"), bytes, launched));
                rows.push(row(format!("{kind}, in all"), bytes, all));
            }
            rank.wait_for_all();
            // SAFETY: the communicator is live, the work of all ranks is done, and this is the last call with it.
            let code = unsafe { (raw.library.table.comm_abort)(raw.comm) };
            raw.library.check("ncclCommAbort", code)?;
            rank.wait_for_all();
        }
        Ok(rows)
    })
}

/// A communicator of NCCL, without Disco.
struct Raw {
    library: &'static Library,
    comm: Comm,
}

impl Raw {
    fn connect(rank: &GpuRank, is_blocking: bool, key: &str) -> Result<Self> {
        let library = disco::nccl::BACKEND.library()?;
        if rank.index == 0 {
            rank.store.set(key, &library.unique_id()?.0)?;
        }
        let id = rank.store.wait(key, HANG_LIMIT)?.try_into().map_err(|_| "the store has no valid unique id")?;
        let (mut comm, mut config): (Comm, _) = (ptr::null_mut(), Config::non_blocking());
        let (size, rank) = (rank.size as c_int, rank.index as c_int);
        let code = match library.table.comm_init_rank_config.filter(|_| !is_blocking) {
            // SAFETY: `comm` is valid for writes, and `config` has the layout that the library reads.
            Some(init) => unsafe { init(&mut comm, size, UniqueId(id), rank, &mut config) },
            // SAFETY: `comm` is valid for writes.
            None => unsafe { (library.table.comm_init_rank)(&mut comm, size, UniqueId(id), rank) },
        };
        let raw = Self { library, comm };
        raw.settle("ncclCommInitRank", code)?;
        Ok(raw)
    }

    /// Polls until the library no longer reports `ncclInProgress`.
    fn settle(&self, function: &'static str, mut code: Code) -> Result<()> {
        while code == Code::IN_PROGRESS {
            // SAFETY: the communicator is live, and `code` is valid for writes.
            let asked = unsafe { (self.library.table.comm_get_async_error)(self.comm, &mut code) };
            self.library.check("ncclCommGetAsyncError", asked)?;
        }
        Ok(self.library.check(function, code)?)
    }

    /// Seconds for each sum: until it is launched, and until it is done.
    fn time(&self, rank: &mut GpuRank, src: &Tensor, dst: &Tensor) -> Result<(f64, f64)> {
        let float = DataType::of(DType::F32).ok_or("NCCL has no 32-bit floats")?;
        let add = RedOp::of(Reduction::Sum, DType::F32).ok_or("NCCL has no sums")?;
        let (from, to, len) = (src.data().cast_const().cast(), dst.data().cast(), src.elements());
        let (stream, calls) = (rank.queue.raw(), times(CALLS));
        let (mut launches, mut all) = (Vec::new(), Vec::new());
        for _ in 0..times(ROUNDS) {
            let mut launched = 0.0;
            let seconds = rank.time(|| {
                let start = Instant::now();
                for _ in 0..calls {
                    // SAFETY: the communicator is live; both tensors have `len` elements and outlive the work.
                    let code = unsafe { (self.library.table.all_reduce)(from, to, len, float, add, self.comm, stream) };
                    self.settle("ncclAllReduce", code)?;
                }
                launched = start.elapsed().as_secs_f64();
                Ok(())
            })?;
            launches.push(launched / calls as f64);
            all.push(seconds / calls as f64);
        }
        // The first round warms up.
        Ok((median(launches.split_off(1)), median(all.split_off(1))))
    }
}

/// Disco's launches, with both backends: seconds for each launch on the host.
pub(crate) fn ours(size: usize) -> Result<Vec<Row>> {
    ranks::on_workers(size, "gpu.ours", "launch", &ranks::sizes(SIZES))
}

fn ours_on_a_worker(ctx: &mut WorkerContext, elements: usize) -> disco::Result<f64> {
    let (src, dst) = (ctx.empty(DType::F32, [elements as i64])?, ctx.empty(DType::F32, [elements as i64])?);
    let (group, calls) = ([sum(&src, &dst)], times(CALLS));
    let comm = ctx.comm()?;
    let mut rounds = Vec::new();
    for _ in 0..times(ROUNDS) {
        comm.barrier()?;
        let start = Instant::now();
        (0..calls).try_for_each(|_| comm.enqueue(&group))?;
        rounds.push(start.elapsed().as_secs_f64() / calls as f64);
        comm.synchronize()?;
    }
    // The first round warms up.
    Ok(median(rounds.split_off(1)))
}
