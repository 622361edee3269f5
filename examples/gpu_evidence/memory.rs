//! Copies, allocations, and frees beside a peer's kernel.

use std::thread;
use std::time::{Duration, Instant};

use disco::{DType, Tensor};

use crate::driver::{self, Pinned};
use crate::seat::{self, LIMIT, PATIENCE, Result, Row, Seat, launch, median, row, sizes, sum, times};

/// Host to device and back: by the queue from ordinary memory, and by the driver from pinned memory, in turn.
pub(crate) fn copies(size: usize) -> Result<Vec<Row>> {
    seat::ranks(size, |seat| {
        let mut rows = Vec::new();
        for bytes in sizes([4 << 10, 1 << 20, 8 << 20, 64 << 20, 1 << 30]) {
            let tensor = seat.tensor(bytes, 1.0)?;
            let host = Tensor::zeros(DType::F32, [(bytes / 4) as i64])?;
            let mut pinned = Pinned::new(bytes)?;
            let stream = driver::stream_of(&mut *seat.queue);
            let mut seconds = ["copy_in", "raw_in", "copy_out", "raw_out"].map(|name| (name, Vec::new()));
            for _ in 0..times(9) {
                for (name, seconds) in &mut seconds {
                    let start = Instant::now();
                    match *name {
                        "copy_in" => seat.queue.copy_in(&tensor, &host)?,
                        "raw_in" => pinned.copy_to(&tensor, stream)?,
                        "copy_out" => seat.queue.copy_out(&host, &tensor)?,
                        _ => pinned.copy_from(&tensor, stream)?,
                    }
                    seat.queue.synchronize(LIMIT)?;
                    seconds.push(start.elapsed().as_secs_f64());
                }
            }
            rows.extend(seconds.map(|(name, seconds)| row(name, bytes, median(seconds))));
        }
        Ok(rows)
    })
}

/// What an allocation costs: of a size that was dropped before, of one that was not, and by the driver's pools.
pub(crate) fn alloc(size: usize) -> Result<Vec<Row>> {
    seat::ranks(size, |seat| {
        let calls = times(200);
        let mut rows = Vec::new();
        let mut timed = |name: &str, seat: &mut Seat, size: &dyn Fn(usize) -> usize| {
            let start = Instant::now();
            for at in 0..calls {
                drop(seat.queue.alloc(size(at))?);
            }
            rows.push(row(format!("alloc {name}"), size(0), start.elapsed().as_secs_f64() / calls as f64));
            let start = Instant::now();
            seat.finish()?;
            rows.push(row(format!("alloc {name}, then synchronize"), size(0), start.elapsed().as_secs_f64()));
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        };
        timed("of one size", seat, &|_| 1 << 20)?;
        timed("of new sizes", seat, &|at| (1 << 20) + 512 * (at + 1))?;
        timed("of new sizes", seat, &|at| (8 << 20) + 512 * (at + 1))?;
        let stream = driver::stream_of(&mut *seat.queue);
        let start = Instant::now();
        (0..calls).try_for_each(|at| driver::alloc_in_pool((8 << 20) + 512 * (at + 1), stream))?;
        rows.push(row("cuMemAllocAsync of new sizes", 8 << 20, start.elapsed().as_secs_f64() / calls as f64));
        Ok(rows)
    })
}

/// Memory that was dropped may be freed at a synchronization while a peer's kernel waits for this rank: whether that waits for the peer.
pub(crate) fn trim(size: usize) -> Result<Vec<Row>> {
    seat::ranks(size, |seat| {
        let (shared, kernels) = seat.start(if seat::is_quick() { Duration::from_secs(2) } else { PATIENCE })?;
        let (src, dst) = seat.operands(1024)?;
        seat.finish_all(&shared)?;
        let start = Instant::now();
        if seat.rank == 0 {
            // More than a runtime keeps.
            for at in 0..5 {
                drop(seat.queue.alloc((64 << 20) + 512 * at)?);
            }
            // The peers are in their kernel.
            thread::sleep(Duration::from_millis(500));
            seat.finish()?;
        }
        let freed = start.elapsed().as_secs_f64();
        launch(&*kernels, &sum(&src, &dst))?;
        seat.finish()?;
        kernels.check()?;
        Ok(vec![row("synchronize of rank 0, 0.5 s where it waits for no peer".to_owned(), 5 * (64 << 20), freed)])
    })
}
