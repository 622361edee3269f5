//! Worker functions of these tests.

use std::hint::black_box;
use std::io::{Seek, SeekFrom, Write};
use std::time::Duration;
use std::{fs, process, thread};

use disco::{Builder, CommunicatorExt, DType, Reduction, Tensor, WorkerContext};
use disco_conformance::waiting;

use crate::workers::{hang, is_me};

disco::register_function!("tests.exit", exit);
disco::register_function!("tests.overflow", overflow);
disco::register_function!("tests.sleep", sleep);
disco::register_function!("tests.print", print);
disco::register_function!("tests.log", log);
disco::register_function!("tests.session", session);
disco::register_function!("tests.scribble", scribble);
disco::register_function!("tests.take_4", take_4);
disco::register_function!("tests.peak", peak);
disco::register_function!("tests.opaque", opaque);
disco::register_function!("tests.reduce", reduce);
disco::register_function!("tests.resident", resident_here);
disco::register_function!("tests.noise", noise);
disco::register_function!("tests.unequal", unequal);
disco::register_function!("tests.split_on", split_on);
disco::register_function!("tests.sum_of", sum_of);
disco::register_function!("tests.reduce_as", reduce_as);
disco::register_reduction!("tests.first", f64, first);
disco::register_reduction!("tests.last", f64, last);

fn exit(ctx: &mut WorkerContext, worker: u32, code: i32) -> disco::Result<()> {
    if is_me(ctx, worker) {
        process::exit(code);
    }
    Ok(())
}

fn overflow(ctx: &mut WorkerContext, worker: u32) -> disco::Result<i64> {
    fn deeper(depth: i64) -> i64 {
        let frame = black_box([depth; 1024]);
        if black_box(depth) == i64::MAX { 0 } else { deeper(depth + 1) + frame[depth as usize % 1024] }
    }
    Ok(if is_me(ctx, worker) { deeper(0) } else { 0 })
}

fn sleep(ctx: &mut WorkerContext, worker: u32, seconds: f64) -> disco::Result<()> {
    if is_me(ctx, worker) {
        thread::sleep(Duration::from_secs_f64(seconds));
    }
    Ok(())
}

fn print(ctx: &mut WorkerContext, text: String) -> disco::Result<()> {
    // Worker 0 is a thread of the program, so its output has no prefix.
    if !is_me(ctx, 0) {
        print!("{text} of {}\nlast", ctx.worker());
        eprintln!("error of {}", ctx.worker());
    }
    Ok(())
}

fn log(_: &mut WorkerContext) -> disco::Result<()> {
    tracing::info!("an event");
    Ok(())
}

/// Starts a session of processes on each worker but worker 0; returns the error.
fn session(ctx: &mut WorkerContext) -> disco::Result<String> {
    if is_me(ctx, 0) {
        return Ok(String::new());
    }
    Ok(match Builder::processes(2).start() {
        Ok(session) => format!("{:?}", session.world()),
        Err(error) => error.to_string(),
    })
}

/// Overwrites the worker's own cursor in the ring, as a stray pointer might.
/// Worker `worker` writes a wrong value to the ring's memory, at its pair of cache lines number `line`.
fn scribble(ctx: &mut WorkerContext, worker: u32, line: u64, hangs: bool) -> disco::Result<()> {
    if is_me(ctx, worker) {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        // The ring is the smaller of two segments.
        let segments = maps.lines().filter(|line| line.contains("/memfd:disco"));
        let ranges = segments.map(|line| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap())
        });
        let (start, _) = ranges.min_by_key(|(start, end)| end - start).unwrap();
        let mut memory = fs::File::options().read(true).write(true).open("/proc/self/mem").unwrap();
        memory.seek(SeekFrom::Start(start + 128 * line)).unwrap();
        memory.write_all(&u64::MAX.to_ne_bytes()).unwrap();
        if hangs {
            waiting::hang();
        }
    }
    Ok(())
}

fn take_4(_: &mut WorkerContext, _: i64, _: f64, _: String, _: bool) -> disco::Result<()> {
    Ok(())
}

/// Peak resident memory of this process, in bytes.
fn peak(_: &mut WorkerContext) -> disco::Result<i64> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    Ok(line.trim().strip_suffix(" kB").unwrap().parse::<i64>().unwrap() << 10)
}

fn opaque(_: &mut WorkerContext) -> disco::Result<disco::Opaque> {
    Ok(disco::Opaque::new(process::id()))
}

/// All-reduces ones, `times` times; worker `stuck` hangs instead.
fn reduce(ctx: &mut WorkerContext, elements: i64, times: i64, stuck: u32) -> disco::Result<f64> {
    hang(ctx, stuck)?;
    let (x, y) = (ctx.empty(DType::F32, [elements])?, ctx.empty(DType::F32, [elements])?);
    x.view_mut::<f32>()?.fill(1.0);
    for _ in 0..times {
        ctx.comm()?.all_reduce(&x, &y, Reduction::Sum)?;
    }
    Ok(y.view::<f32>()?.iter().map(|y| f64::from(*y)).sum())
}

/// Worker 1 sends 2 elements, worker 0 receives 4.
fn unequal(ctx: &mut WorkerContext) -> disco::Result<()> {
    let [two, four] = [2, 4].map(|elements| Tensor::zeros(DType::F32, [elements]));
    match ctx.worker().index() {
        0 => ctx.comm()?.recv(&four?, 1.into()),
        1 => ctx.comm()?.send(&two?, 0.into()),
        _ => Ok(()),
    }
}

/// Splits the communicator of all workers again and again.
fn split_on(ctx: &mut WorkerContext, times: u32) -> disco::Result<()> {
    let me = ctx.worker().index() as u32;
    (0..times).try_for_each(|round| ctx.comm()?.split(Some((me + round) % 2), 0).map(drop))
}

/// The sum of `number` over all workers.
fn sum_of(ctx: &mut WorkerContext, number: i64) -> disco::Result<i64> {
    let x = Tensor::from_slice(&[number], [1])?;
    ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)?;
    Ok(x.view::<i64>()?[0])
}

fn first(_: &mut [f64], _: &[f64], _: usize) {}

fn last(into: &mut [f64], from: &[f64], _: usize) {
    into.copy_from_slice(from);
}

/// Reduces two elements: one that is NaN on worker 1, and the worker's number. Or a reduction in which worker 0 passes
/// another name, rows of another size, or another number of rows.
fn reduce_as(ctx: &mut WorkerContext, how: String) -> disco::Result<String> {
    let me = ctx.worker().index();
    let is_odd = me == 0;
    let x = Tensor::from_slice(&[if me == 1 { f64::NAN } else { 1.0 }, me as f64, 0.0, 0.0], [2, 2])?;
    let (x, reduction) = match &*how {
        "max" => (x, Reduction::Max),
        "min" => (x, Reduction::Min),
        "names" => (x, Reduction::Custom(if is_odd { "tests.first" } else { "tests.last" })),
        "rows" => (x.window(0, if is_odd { [4, 1] } else { [2, 2] })?, Reduction::Custom("tests.first")),
        _ => (x.window(0, if is_odd { [1, 2] } else { [2, 2] })?, Reduction::Custom("tests.first")),
    };
    ctx.comm()?.all_reduce_in_place(&x, reduction)?;
    let x = x.to_vec::<f64>()?;
    Ok(format!("{} {}", x[0], x[1]))
}

/// Resident memory of this process, in bytes.
pub(crate) fn resident() -> i64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<i64>().unwrap() * 4096
}

fn resident_here(_: &mut WorkerContext) -> disco::Result<i64> {
    Ok(resident())
}

/// Prints more than the capacity of a pipe.
fn noise(ctx: &mut WorkerContext) -> disco::Result<()> {
    if is_me(ctx, 1) {
        (0..20_000).for_each(|line| println!("line {line} of something that nobody reads"));
    }
    Ok(())
}
