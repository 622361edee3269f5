//! Helpers of the benchmarks: sessions, and comparisons with a floor.

// Each program uses a part of this module.
#![allow(dead_code)]

pub(crate) mod floor;
pub(crate) mod spin;

use std::env;
use std::process::{Command, ExitCode};
use std::time::Duration;

use criterion::Criterion;
use disco::{Builder, Error, IntoArgs, LaneSession, Session, SessionKind, Settings, block_on, placement};

/// Number of rounds of a comparison.
const ROUNDS: usize = 15;

/// Environment variable of a process that runs one benchmark of its program: the benchmark's name.
const BENCHMARK: &str = "DISCO_BENCHMARK";

/// `main` of a program of several benchmarks. Each runs in a process of its own, so that it measures neither the threads
/// nor the memory nor the metrics of another one. Filters that are names of benchmarks select these; the other arguments go
/// to each benchmark.
pub(crate) fn main(benchmarks: &[(&str, fn())]) -> ExitCode {
    if let Ok(name) = env::var(BENCHMARK) {
        let (_, run) = benchmarks.iter().find(|(it, _)| *it == name).expect("the program has this benchmark");
        run();
        return ExitCode::SUCCESS;
    }
    let args: Vec<String> = env::args().collect();
    let is_name = |index: &usize| benchmarks.iter().any(|(name, _)| *name == args[*index]);
    let names: Vec<usize> = filters(&args).filter(is_name).collect();
    let others = (1..args.len()).filter(|index| !names.contains(index)).map(|index| &args[index]);
    let is_selected = |name: &str| names.is_empty() || names.iter().any(|index| args[*index] == name);
    for (name, _) in benchmarks.iter().filter(|(name, _)| is_selected(name)) {
        let mut this = Command::new(env::current_exe().expect("this program has a path"));
        let status = this.args(others.clone()).env(BENCHMARK, name).status().expect("this program starts itself");
        if !status.success() {
            eprintln!("the benchmark {name} failed: {status}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The settings of the environment, with a default of `workers` workers.
pub(crate) fn settings(workers: usize) -> Settings {
    let mut settings = Settings::from_env().expect("DISCO_* variables make sense");
    if env::var_os("DISCO_WORKERS").is_none() {
        settings.workers = workers;
    }
    settings
}

/// A session as the environment configures it, with 4 workers by default, and its number of workers and kind. Nodes are
/// started on this machine.
pub(crate) fn session() -> (LaneSession, usize, SessionKind) {
    let settings = settings(4);
    let builder = match settings.session {
        SessionKind::Nodes => {
            Builder::new(settings.session, settings.workers).node_options(|nodes| nodes.count = settings.nodes)
        }
        _ => settings.builder(),
    };
    let session = builder.start().expect("workers can be started");
    (session, settings.workers, settings.session)
}

/// Calls a worker function that verifies its results and returns seconds; returns the time of the slowest worker.
pub(crate) fn slowest(session: &dyn Session, function: &str, args: impl IntoArgs) -> Duration {
    let seconds = block_on(async {
        let times = session.call(function, args).await?;
        let mut slowest = 0.0f64;
        for worker in session.world().workers() {
            slowest = slowest.max(session.get(&times, worker).await?);
        }
        Ok::<_, Error>(slowest)
    });
    Duration::from_secs_f64(seconds.expect("workers live and results are right"))
}

/// Runs a group of benchmarks, or serves if this process was started as a worker.
pub(crate) fn run(benches: fn()) {
    disco::init();
    benches();
    Criterion::default().configure_from_args().final_summary();
}

/// Whether this run measures. Otherwise, it only checks that the benchmarks work.
pub(crate) fn measures() -> bool {
    env::args().any(|arg| arg == "--bench") && !env::args().any(|arg| arg == "--test" || arg == "--list")
}

/// Whether the command line selects a comparison: it has no filter, or one that is part of the name.
pub(crate) fn is_selected(name: &str) -> bool {
    let args: Vec<String> = env::args().collect();
    let mut filters = filters(&args).peekable();
    measures() && (filters.peek().is_none() || filters.any(|index| name.contains(&args[index])))
}

/// Positions of the filters among the arguments. An argument after an option is its value, except after cargo's `--bench`.
fn filters(args: &[String]) -> impl Iterator<Item = usize> {
    let is_filter = |index: &usize| {
        let (before, arg) = (&args[index - 1], &args[*index]);
        !arg.starts_with('-') && (!before.starts_with("--") || before == "--bench")
    };
    (1..args.len()).filter(is_filter)
}

/// Runs ours and the floors alternately, so that all run under the same conditions. Prints the medians, and the median
/// of the ratios to the fastest floor of each round. Each closure returns the time of one operation.
pub(crate) fn compare(
    name: &str,
    mut ours: impl FnMut() -> Duration,
    floors: &mut [(&str, &mut dyn FnMut() -> Duration)],
) {
    if !is_selected(name) {
        return;
    }
    let mut times = vec![Vec::new(); 1 + floors.len()];
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let mine = ours();
        times[0].push(mine);
        let mut best = Duration::MAX;
        for (index, (_, floor)) in floors.iter_mut().enumerate() {
            let time = floor();
            best = best.min(time);
            times[1 + index].push(time);
        }
        ratios.push(mine.as_secs_f64() / best.as_secs_f64());
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6
    };
    let ours = median(&mut times[0]);
    let floors = floors.iter().zip(&mut times[1..]);
    let floors: Vec<String> = floors.map(|((what, _), times)| format!("{what} {:.3} µs", median(times))).collect();
    let (floors, ratio) = (floors.join(", "), ratios[ROUNDS / 2]);
    println!("{name:<44} ours {ours:>10.3} µs   {floors}   ours / floor = {ratio:.2}");
}

/// Prints the latency of a cache line between the CPUs: tens of nanoseconds between near ones, hundreds between far
/// ones.
pub(crate) fn print_placement() {
    if !measures() {
        return;
    }
    match placement::cache_line_latency() {
        Some(hop) => println!("placement: a cache line takes {} ns from one thread to another", hop.as_nanos()),
        None => println!("placement: only one CPU, so no latency between two"),
    }
}
