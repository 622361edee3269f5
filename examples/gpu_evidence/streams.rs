//! Which functions of the driver block while a kernel spins, and which streams share a hardware queue.

use std::time::{Duration, Instant};
use std::{env, thread};

use disco::nccl::cuda::Cuda;
use disco::nccl::p2p::kernels::{Architecture, cubin};
use disco::{Device, DeviceApi as _, DeviceKind};

use crate::driver::{self, Pinned};
use crate::ranks::{self, Result, Row, launch, row, sum};

/// Limit of a kernel's wait for the peer whose call is measured.
const KERNEL_WAIT_LIMIT: Duration = Duration::from_secs(3);
const MIB: usize = 1 << 20;

/// The name of the driver's function to measure.
fn measured_function() -> String {
    env::var("GPU_WAIT").unwrap_or_else(|_| "nothing".into())
}

/// The functions of the driver that the measurement needs.
pub(crate) fn needed() -> &'static [&'static str] {
    match measured_function().as_str() {
        "cuMemAllocAsync" | "cuMemFreeAsync" => &["cuMemAllocAsync", "cuMemFreeAsync"],
        _ => &[],
    }
}

/// Whether a function of the driver (`GPU_WAIT`) waits for a peer's kernel that waits for this rank: then it takes 3 s.
pub(crate) fn waits(size: usize) -> Result<Vec<Row>> {
    ranks::run(size, |rank| {
        let name = measured_function();
        let (shared, kernels) = rank.start(KERNEL_WAIT_LIMIT)?;
        let (src, dst) = rank.operands(1024)?;
        let (device, pinned, spare) = (driver::alloc(8 * MIB)?, Pinned::new(8 * MIB)?, driver::stream()?);
        rank.finish_all(&shared)?;
        let mut seconds = 0.0;
        if rank.index == 0 {
            thread::sleep(Duration::from_millis(300));
            let start = Instant::now();
            match name.as_str() {
                "nothing" => {}
                "cuMemAlloc 8 MiB" => drop(driver::alloc(8 * MIB)?),
                "cuMemAlloc 1 GiB" => drop(driver::alloc(if ranks::is_quick() { 8 * MIB } else { 1 << 30 })?),
                "cuMemFree" => driver::free(device)?,
                "cuMemHostAlloc" => std::mem::forget(Pinned::new(8 * MIB)?),
                "cuMemFreeHost" => pinned.free()?,
                "cuMemAllocAsync" => drop(driver::alloc_unfreed_in_pool(8 * MIB, spare)?),
                "cuMemFreeAsync" => driver::alloc_in_pool(8 * MIB, spare)?,
                "cuStreamCreate" => drop(driver::stream()?),
                "cuStreamDestroy" => driver::destroy(spare)?,
                "cuEventCreate" => driver::event()?,
                "cuModuleLoadData" => driver::load(&cubin(Architecture::new(9, 0))?)?,
                "cuMemcpyHtoD pageable" => driver::copy_pageable(device, &vec![1; 8 * MIB], spare)?,
                "cuIpcGetMemHandle" => driver::export(device)?,
                "a new context of another thread" => {
                    let bind = || Cuda.bind(Device::new(DeviceKind::Cuda, 0)).map(drop);
                    thread::scope(|scope| scope.spawn(bind).join()).map_err(|_| "the thread panicked")??;
                }
                other => return Err(format!("GPU_WAIT={other}: there is no such measurement").into()),
            }
            seconds = start.elapsed().as_secs_f64();
        }
        launch(&*kernels, &sum(&src, &dst))?;
        rank.finish()?;
        let verdict = if kernels.check().is_ok() { "the sum is done" } else { "the sum FAILED" };
        Ok(vec![row(format!("{name} beside a kernel that waits for this rank; {verdict}"), 0, seconds)])
    })
}

/// Which new streams are blocked by a stream that waits for a word, for streams of ordinary and of high priority.
pub(crate) fn alias(size: usize) -> Result<Vec<Row>> {
    const STREAMS: usize = 48;
    ranks::run(size, |rank| {
        let mut rows = Vec::new();
        for priority in [0, -5] {
            // All streams are made first: to make one may take a synchronisation.
            let streams = (0..STREAMS).map(|_| driver::stream_with(priority)).collect::<Result<Vec<_>>>()?;
            let words = driver::alloc(4096)?;
            let waiting = driver::stream_of(&mut *rank.queue);
            driver::write(waiting, words, 0, 0)?;
            // The 0 must not follow the 1 that a free stream writes.
            rank.finish()?;
            driver::wait_for(waiting, words, 0, 1)?;
            let (mut free, mut stuck) = (None, Vec::new());
            for (index, stream) in (1..).zip(streams) {
                driver::write(stream, words, index, 1)?;
                let start = Instant::now();
                while !driver::is_idle(stream) && start.elapsed() < Duration::from_millis(50) {
                    std::hint::spin_loop();
                }
                if driver::is_idle(stream) { free = Some(stream) } else { stuck.push(index) }
            }
            driver::write(free.ok_or("no stream goes on beside one that waits")?, words, 0, 1)?;
            rank.finish()?;
            driver::free(words)?;
            let held = format!("{} of {STREAMS} streams of priority {priority} held up: {stuck:?}", stuck.len());
            rows.push(row(held, 0, 0.0));
        }
        Ok(rows)
    })
}
