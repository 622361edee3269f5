//! Copies, allocations, and frees during a peer's kernel.

use std::thread;
use std::time::{Duration, Instant};

use disco::{DType, Tensor};

use crate::driver::{self, Pinned};
use crate::ranks::{self, GpuRank, HANG_LIMIT, KERNEL_WAIT_LIMIT, Result, Row, launch, median, row, sizes, sum, times};

/// Host to device and back, in turn: by the queue from ordinary memory and from its pinned memory, and by the driver from
/// pinned memory.
pub(crate) fn copies(size: usize) -> Result<Vec<Row>> {
    ranks::run(size, |rank| {
        let mut rows = Vec::new();
        for bytes in sizes([4 << 10, 1 << 20, 8 << 20, 64 << 20, 1 << 30]) {
            let tensor = rank.tensor(bytes, 1.0)?;
            let shape = [(bytes / 4) as i64];
            let host = Tensor::zeros(DType::F32, shape)?;
            let ours = Tensor::in_new_storage(DType::F32, shape, |bytes| rank.queue.alloc_pinned(bytes))?;
            let mut pinned = Pinned::new(bytes)?;
            let stream = driver::stream_of(&mut *rank.queue);
            let mut seconds =
                ["copy_in", "pinned_in", "raw_in", "copy_out", "pinned_out", "raw_out"].map(|name| (name, Vec::new()));
            for _ in 0..times(9) {
                for (name, seconds) in &mut seconds {
                    let start = Instant::now();
                    match *name {
                        "copy_in" => rank.queue.copy_in(&tensor, &host)?,
                        "pinned_in" => rank.queue.copy_in(&tensor, &ours)?,
                        "raw_in" => pinned.copy_to(&tensor, stream)?,
                        "copy_out" => rank.queue.copy_out(&host, &tensor)?,
                        "pinned_out" => rank.queue.copy_out(&ours, &tensor)?,
                        _ => pinned.copy_from(&tensor, stream)?,
                    }
                    rank.queue.synchronize(HANG_LIMIT)?;
                    seconds.push(start.elapsed().as_secs_f64());
                }
            }
            rows.extend(seconds.map(|(name, seconds)| row(name, bytes, median(seconds))));
        }
        Ok(rows)
    })
}

/// The cost of an allocation: of a size that was freed before, of a new size, and from the driver's pools.
pub(crate) fn alloc(size: usize) -> Result<Vec<Row>> {
    ranks::run(size, |rank| {
        let calls = times(200);
        let mut rows = Vec::new();
        let mut timed = |name: &str, rank: &mut GpuRank, size: &dyn Fn(usize) -> usize| {
            let start = Instant::now();
            for at in 0..calls {
                drop(rank.queue.alloc(size(at))?);
            }
            rows.push(row(format!("alloc {name}"), size(0), start.elapsed().as_secs_f64() / calls as f64));
            let start = Instant::now();
            rank.finish()?;
            rows.push(row(format!("alloc {name}, then synchronize"), size(0), start.elapsed().as_secs_f64()));
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        };
        timed("of one size", rank, &|_| 1 << 20)?;
        timed("of new sizes", rank, &|at| (1 << 20) + 512 * (at + 1))?;
        timed("of new sizes", rank, &|at| (8 << 20) + 512 * (at + 1))?;
        let stream = driver::stream_of(&mut *rank.queue);
        let start = Instant::now();
        (0..calls).try_for_each(|at| driver::alloc_in_pool((8 << 20) + 512 * (at + 1), stream))?;
        rows.push(row("cuMemAllocAsync of new sizes", 8 << 20, start.elapsed().as_secs_f64() / calls as f64));
        Ok(rows)
    })
}

/// Whether a synchronisation that may free dropped memory waits for a peer's kernel, which waits for this rank.
pub(crate) fn trim(size: usize) -> Result<Vec<Row>> {
    ranks::run(size, |rank| {
        let (shared, kernels) =
            rank.start(if ranks::is_quick() { Duration::from_secs(2) } else { KERNEL_WAIT_LIMIT })?;
        let (src, dst) = rank.operands(1024)?;
        rank.finish_all(&shared)?;
        let start = Instant::now();
        if rank.index == 0 {
            // More than a runtime keeps for reuse.
            for at in 0..5 {
                drop(rank.queue.alloc((64 << 20) + 512 * at)?);
            }
            // By then the peers are inside their kernels.
            thread::sleep(Duration::from_millis(500));
            rank.finish()?;
        }
        let freed = start.elapsed().as_secs_f64();
        launch(&*kernels, &sum(&src, &dst))?;
        rank.finish()?;
        kernels.check()?;
        Ok(vec![row("synchronize of rank 0, 0.5 s where it waits for no peer".to_owned(), 5 * (64 << 20), freed)])
    })
}
