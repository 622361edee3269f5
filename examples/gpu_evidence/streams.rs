//! Which calls of the driver wait for a kernel that spins, and which streams share a hardware queue.

use std::time::{Duration, Instant};
use std::{env, thread};

use disco::nccl::cuda::Cuda;
use disco::nccl::p2p::kernels::{Architecture, cubin};
use disco::{Device, DeviceApi as _, DeviceKind};

use crate::driver::{self, Pinned};
use crate::seat::{self, Result, Row, launch, row, sum};

/// How long a kernel waits for the peer whose call is measured.
const PATIENCE: Duration = Duration::from_secs(3);
const MIB: usize = 1 << 20;

/// Names the driver's call that is measured.
fn asked() -> String {
    env::var("GPU_WAIT").unwrap_or_else(|_| "nothing".into())
}

/// The functions that the call needs.
pub(crate) fn needed() -> &'static [&'static str] {
    match asked().as_str() {
        "cuMemAllocAsync" | "cuMemFreeAsync" => &["cuMemAllocAsync", "cuMemFreeAsync"],
        _ => &[],
    }
}

/// Whether a call of the driver's (`GPU_WAIT`) waits for a peer's kernel that waits for this rank: it takes 3 s if so.
pub(crate) fn waits(size: usize) -> Result<Vec<Row>> {
    seat::ranks(size, |seat| {
        let name = asked();
        let (shared, kernels) = seat.start(PATIENCE)?;
        let (src, dst) = seat.operands(1024)?;
        let (device, pinned, spare) = (driver::take(8 * MIB)?, Pinned::new(8 * MIB)?, driver::stream()?);
        seat.finish_all(&shared)?;
        let mut seconds = 0.0;
        if seat.rank == 0 {
            thread::sleep(Duration::from_millis(300));
            let start = Instant::now();
            match name.as_str() {
                "nothing" => {}
                "cuMemAlloc 8 MiB" => drop(driver::take(8 * MIB)?),
                "cuMemAlloc 1 GiB" => drop(driver::take(if seat::is_quick() { 8 * MIB } else { 1 << 30 })?),
                "cuMemFree" => driver::free(device)?,
                "cuMemHostAlloc" => std::mem::forget(Pinned::new(8 * MIB)?),
                "cuMemFreeHost" => pinned.free()?,
                "cuMemAllocAsync" => drop(driver::take_from_pool(8 * MIB, spare)?),
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
        seat.finish()?;
        let verdict = if kernels.check().is_ok() { "the sum is done" } else { "the sum FAILED" };
        Ok(vec![row(format!("{name} beside a kernel that waits for this rank; {verdict}"), 0, seconds)])
    })
}

/// Which new streams are held up by one that waits for a word; streams of ordinary and of high priority.
pub(crate) fn alias(size: usize) -> Result<Vec<Row>> {
    const STREAMS: u64 = 48;
    seat::ranks(size, |seat| {
        let mut rows = Vec::new();
        for priority in [0, -5] {
            let words = seat.tensor(4096, 0.0)?;
            driver::wait_for(driver::stream_of(&mut *seat.queue), &words, 0, 1)?;
            let (mut free, mut stuck) = (None, Vec::new());
            for index in 1..=STREAMS {
                let stream = driver::stream_with(priority)?;
                driver::write(stream, &words, index, 1)?;
                let start = Instant::now();
                while !driver::is_idle(stream) && start.elapsed() < Duration::from_millis(50) {
                    std::hint::spin_loop();
                }
                if driver::is_idle(stream) { free = Some(stream) } else { stuck.push(index) }
            }
            driver::write(free.ok_or("no stream goes on beside one that waits")?, &words, 0, 1)?;
            seat.finish()?;
            let held = format!("{} of {STREAMS} streams of priority {priority} held up: {stuck:?}", stuck.len());
            rows.push(row(held, 0, 0.0));
        }
        Ok(rows)
    })
}
