//! Load for a long time, with `DISCO_LONG_TESTS`: `DISCO_SOAK_SECONDS`, or half an hour. In the last quarter of the time,
//! worker 1 is killed again and again. The memory of the server and of the workers must not grow.

use std::env;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::load::Load;
use super::mix::Seed;
use super::random::Random;
use super::server::{Server, model};

const SECONDS: u64 = 1800;
const CLIENTS: usize = 6;
/// How much more memory a process may have in the last third of a phase than in the second one, in KiB. The first third is
/// for warming up: the allocator keeps what a process has needed at one time.
const GROWTH_LIMIT: u64 = 2 << 10;
/// The same for each replacement of the other worker, after which all requests that run are computed again at once.
const GROWTH_PER_LOSS: u64 = 64;
/// Time between two looks at the memory, and between two kills.
const PERIOD: Duration = Duration::from_secs(2);

/// Resident memory in KiB, without files and shared memory: the rings of the lanes have a fixed size, whose pages count once
/// they were used.
fn resident(process: Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn open_files(process: Pid) -> usize {
    fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

/// Load for a while, with a look at the memory of `processes` and `disturb` after each period, which may cost `growth` KiB.
fn phase(
    name: &str,
    load: &Load,
    random: &mut Random,
    time: Duration,
    processes: &[Pid],
    disturb: impl Fn(),
    growth: u64,
) {
    let mut samples: Vec<Vec<u64>> = Vec::new();
    let is_over = AtomicBool::new(false);
    let answers = load.answers.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (mut random, is_over) = (random.fork(), &is_over);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        load.request(&mut random);
                    }
                })
            })
            .collect();
        let start = Instant::now();
        while start.elapsed() < time && !clients.iter().any(|client| client.is_finished()) {
            // The time of the soak is what the test is about.
            thread::sleep(PERIOD);
            samples.push(processes.iter().map(|process| resident(*process)).collect());
            disturb();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    load.wait_until_nothing_is_left();
    let answers = load.answers.load(Ordering::Relaxed) - answers;
    eprintln!("{name}: {answers} answers in {time:?}");
    let third = samples.len() / 3;
    let limit = GROWTH_LIMIT + growth * third as u64;
    let peak = |range: std::ops::Range<usize>, process: usize| samples[range].iter().map(|row| row[process]).max();
    for (index, process) in processes.iter().enumerate() {
        let ends = [0..third, third..2 * third, 2 * third..samples.len()].map(|range| peak(range, index).unwrap());
        eprintln!("{name}: process {index}, KiB at first and most in each third: {}, {ends:?}", samples[0][index]);
        assert!(ends[2] <= ends[1] + limit, "{name}: process {process} has grown: {ends:?} KiB");
    }
}

#[test]
fn memory_does_not_grow_under_load() {
    if env::var_os("DISCO_LONG_TESTS").is_none() {
        return eprintln!("skipped: the soak of the server runs with DISCO_LONG_TESTS=1 only");
    }
    let seconds = env::var("DISCO_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(SECONDS);
    let seed = Seed(Seed::first());
    let mut random = Random::new(seed.0);
    let mut command = Command::new(env!("CARGO_BIN_EXE_disco-serve"));
    // With an arena for each thread, memory grows by up to two MiB whenever another thread meets the largest request.
    command.env("MALLOC_ARENA_MAX", "1");
    let server = Server::start_as(command, &model("llama-3"), &["--max-num-seqs", "4", "--kv-cache-bytes", "64K"]);
    let load = Load::new(*server, &mut random);
    let (process, workers) = (server.process(), server.workers());

    let quarter = Duration::from_secs(seconds) / 4;
    phase("undisturbed", &load, &mut random, 3 * quarter, &[process, workers[0], workers[1]], || (), 0);
    assert_eq!(server.workers(), workers, "a worker was lost");
    let kill_the_new_one = || {
        if let Some(worker) = server.workers().into_iter().find(|worker| *worker != workers[0]) {
            // It may have gone meanwhile.
            _ = kill(worker, Signal::SIGKILL);
        }
    };
    // Replacements need a few files of their own, which stay open.
    kill_the_new_one();
    server.wait_until("the worker is replaced", || load.is_served() && server.workers().len() == 2);
    let files = open_files(process);
    phase("with kills", &load, &mut random, quarter, &[process, workers[0]], kill_the_new_one, GROWTH_PER_LOSS);
    server.wait_until("the worker is replaced", || load.is_served() && server.workers().len() == 2);
    server.wait_until("the files of lost workers and connections are closed", || open_files(process) <= files);
}
