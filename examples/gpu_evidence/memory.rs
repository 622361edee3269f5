//! Copies.

use std::time::Instant;

use disco::{DType, Tensor};

use crate::driver::{self, Pinned};
use crate::ranks::{self, HANG_LIMIT, Result, Row, median, row, sizes, times};

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
