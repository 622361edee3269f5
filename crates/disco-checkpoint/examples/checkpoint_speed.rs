//! Measures checkpoints: their speed against `dd` with `conv=fsync` on the same file system, the wait of the workers for
//! their copies into new and into reused memory, the slow-down of a training while a checkpoint is written, and the speed
//! of loading.
//!
//! `cargo run --release -p disco-checkpoint --example checkpoint_speed -- FOLDER [MIB] [WORKERS] [TENSORS]`

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};

use disco::checkpoint::{self, Folder, Layout};
use disco::{
    Builder, CommunicatorExt, DRef, DType, LaneSession, Reduction, Result as SessionResult, Tensor, WorkerContext,
    block_on, register_function,
};
use futures_lite::future;

/// Rounds of each measurement; the medians are printed.
const ROUNDS: usize = 9;

/// Default of the number of tensors of each worker.
const TENSORS: usize = 8;

/// Side of the matrices that a step of the training multiplies.
const SIDE: usize = 192;

/// Steps without a save that a round compares with.
const STEPS: usize = 100;

register_function!("speed.state", state);
register_function!("speed.step", step);

/// A part of the state, with elements that no file system can compress.
fn state(ctx: &mut WorkerContext, elements: usize) -> SessionResult<Tensor> {
    let tensor = ctx.empty(DType::U32, elements)?;
    let mut random = 0x9e37_79b9u32 ^ ctx.worker().index() as u32;
    for element in tensor.view_mut::<u32>()?.iter_mut() {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        *element = random;
    }
    Ok(tensor)
}

/// A step of a training that keeps a core busy: a product of matrices, and an all-reduce.
fn step(ctx: &mut WorkerContext, product: Tensor) -> SessionResult<()> {
    {
        let mut product = product.view_mut::<f32>()?;
        let (a, b) = (vec![0.5f32; SIDE * SIDE], vec![0.25f32; SIDE * SIDE]);
        for (row, a) in product.chunks_mut(SIDE).zip(a.chunks(SIDE)) {
            row.fill(0.0);
            for (a, b) in a.iter().zip(b.chunks(SIDE)) {
                row.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
            }
        }
    }
    ctx.comm()?.all_reduce_in_place(&product, Reduction::Avg)
}

fn main() -> Result<(), Box<dyn Error>> {
    disco::init();
    let mut args = env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or("usage: checkpoint_speed FOLDER [MIB] [WORKERS] [TENSORS]")?);
    let mib: usize = args.next().map_or(Ok(1024), |text| text.parse())?;
    let workers: usize = args.next().map_or(Ok(2), |text| text.parse())?;
    let tensors: usize = args.next().map_or(Ok(TENSORS), |text| text.parse())?;
    fs::create_dir_all(&folder)?;
    let session = Builder::processes(workers).start()?;
    block_on(async {
        session.init_ccl("local", &[]).await?;
        let mut handles = Vec::new();
        for _ in 0..tensors {
            let elements = (mib << 20) / workers / tensors / 4;
            handles.push(session.call("speed.state", (elements,)).await?);
        }
        session.sync_all().await?;
        speed(&session, &folder, mib, &handles).await?;
        for reuse in [false, true] {
            slow_down(&session, &folder, &handles, reuse).await?;
        }
        session.shutdown().await?;
        Ok(())
    })
}

fn entries(handles: &[DRef]) -> Vec<checkpoint::Entry> {
    let entries = handles.iter().enumerate();
    entries.map(|(index, handle)| checkpoint::Entry::new(format!("t{index}"), handle, Layout::split(0))).collect()
}

/// Saves, `dd` and loads in turn.
async fn speed(session: &LaneSession, folder: &Path, mib: usize, handles: &[DRef]) -> Result<(), Box<dyn Error>> {
    let (mut saves, mut copies, mut loads) = (Vec::new(), Vec::new(), Vec::new());
    let (mut new, mut reused) = (Vec::new(), Vec::new());
    let path = folder.join("checkpoints");
    for round in 0..ROUNDS as u64 {
        // Memory: new; new, and then kept; reused, and then released.
        for (index, (reuse, stalls)) in
            [(false, &mut new), (true, &mut Vec::new()), (false, &mut reused)].into_iter().enumerate()
        {
            let start = Instant::now();
            let step = 3 * round + index as u64;
            let saving =
                checkpoint::save(session, Folder::new(&path).reuse_memory(reuse), step, entries(handles)).await?;
            session.sync_all().await?;
            stalls.push(start.elapsed());
            saving.await?;
            saves.push(start.elapsed());
        }
        let start = Instant::now();
        drop(checkpoint::load(session, &path).await?);
        loads.push(start.elapsed());
        fs::remove_dir_all(&path)?;

        let file = folder.join("dd");
        let start = Instant::now();
        // The source is memory: a tensor's file would have to be read first.
        let mut dd = Command::new("dd");
        dd.args(["if=/dev/zero", "bs=1M", "conv=fsync", "status=none"]);
        let copied = dd.arg(format!("count={mib}")).arg(format!("of={}", file.display())).status()?;
        copies.push(start.elapsed());
        assert!(copied.success(), "{copied}");
        fs::remove_file(file)?;
    }
    let rate = |time: Duration| mib as f64 / time.as_secs_f64();
    let (save, copy) = (median(saves), median(copies));
    println!("save:    {:.0} MiB/s", rate(save));
    for (memory, stalls) in [("new", new), ("reused", reused)] {
        let [least, most] =
            [stalls.iter().min(), stalls.iter().max()].map(|time| time.map_or(0.0, Duration::as_secs_f64));
        let median = median(stalls).as_secs_f64();
        println!("the workers wait {median:.3} s ({least:.3} to {most:.3} s) for their copies into {memory} memory");
    }
    println!("dd:      {:.0} MiB/s", rate(copy));
    println!("save/dd: {:.2}", rate(save) / rate(copy));
    println!("load:    {:.0} MiB/s", rate(median(loads)));
    Ok(())
}

/// Steps of a training with and without a save, in turn.
async fn slow_down(session: &LaneSession, folder: &Path, handles: &[DRef], reuse: bool) -> Result<(), Box<dyn Error>> {
    let product = session.empty(DType::F32, SIDE * SIDE, disco::Placement::All).await?;
    let function = session.function("speed.step").await?;
    let step = async || -> SessionResult<()> {
        session.call(&function, (&product,)).await?;
        session.sync_all().await
    };
    let (mut steps_alone, mut steps_beside, mut lost, mut times) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let alone = Instant::now();
        for _ in 0..STEPS {
            step().await?;
        }
        let alone = alone.elapsed() / STEPS as u32;

        let path = folder.join("checkpoints");
        let start = Instant::now();
        let folder = Folder::new(&path).reuse_memory(reuse);
        let mut saving = checkpoint::save(session, folder, round as u64, entries(handles)).await?;
        // The first step waits for the copies.
        step().await?;
        let (beside, mut steps) = (Instant::now(), 0);
        loop {
            step().await?;
            steps += 1;
            if let Some(saved) = future::poll_once(&mut saving).await {
                saved?;
                break;
            }
        }
        steps_beside.push(beside.elapsed() / steps);
        lost.push(start.elapsed().saturating_sub(alone * (steps + 1)));
        times.push(start.elapsed());
        steps_alone.push(alone);
        fs::remove_dir_all(&path)?;
    }
    let [alone, beside, lost, time] = [steps_alone, steps_beside, lost, times].map(|times| median(times).as_secs_f64());
    println!("memory of copies is {}:", if reuse { "reused" } else { "new" });
    println!("a step takes {:.2} ms, and {:.2} ms while the shards are written", alone * 1e3, beside * 1e3);
    println!(
        "a checkpoint takes {time:.2} s beside the training, which loses {lost:.3} s: the copies and slower steps"
    );
    println!("loss in the time of the writing: {:.0} %", 100.0 * lost / time);
    println!("loss with a checkpoint per minute: {:.1} %", 100.0 * lost / 60.0);
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
