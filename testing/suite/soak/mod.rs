//! Soak test: runs random sessions of threads, processes and nodes for a while.
//!
//! Several threads call functions, also of a C library and of some workers only, take results of running calls, cancel
//! calls, exchange tensors, and `get` and `set` values of up to 32 MiB.
//! Calls with collectives, started operations, splits and sends are cancelled, with calls queued behind them (`local` and MPI).
//! Sessions meet errors, registered errors, panics, aborts, kills, stops, late workers and dropped futures. They go on by
//! recovery, replacement or with another number of workers, are used beside subsets of their workers, and end by shutdown or
//! drop. Every result is compared with plain loops, no step may take
//! longer than a minute, and no resource may be left behind.
//!
//! `DISCO_SOAK_SECONDS` sets the duration (default 15) and `DISCO_SEED` the seed of the first session; each later
//! session increments the seed. `DISCO_SOAK_FAULTS` lets sessions of nodes lose a node during collectives until there were that many
//! kills, stops and cuts. A failure prints the seed of its session, which repeats its setup and its steps.

mod bystanders;
mod calls;
mod cancellations;
mod changes;
mod checkpoints;
mod content;
mod exchange;
mod exchanging;
mod faults;
mod functions;
mod library;
mod model;
mod session;
mod subsets;
mod timelines;
mod user;
mod values;
mod watch;

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime};
use std::{env, panic};

use disco::SessionKind;
use disco_testing::random::{self, Random};
use faults::Faults;
use session::Setup;

use crate::leftovers::Resources;
use crate::modules::Module;

/// Number of sessions before resident memory is first measured.
const WARM_UP: u64 = 6;
/// Allowed growth of resident memory after the warm-up, in bytes: allocators keep small blocks.
const RESIDENT_GROWTH_LIMIT: usize = 32 << 20;
/// Variable that makes this program run the sessions.
const PROGRAM: &str = "DISCO_TEST_SOAK";
/// Variable and value that make glibc's allocator return freed blocks of at least this size to the system, so that
/// resident memory shows leaks.
const MMAP_THRESHOLD: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "131072");

pub(crate) fn module() -> Module {
    Module::new("soak", None).test("random_sessions_give_the_results_and_errors_of_plain_loops", || {
        let mut alone = Command::new(env::current_exe().unwrap());
        // The allocator reads its variable at program start.
        alone.env(PROGRAM, "1").env(MMAP_THRESHOLD.0, MMAP_THRESHOLD.1).envs(cancellations::mpi());
        assert!(alone.status().unwrap().success());
    })
}

/// Runs the sessions, if this program was started for them.
pub(crate) fn run() -> Option<ExitCode> {
    env::var_os(PROGRAM)?;
    // Worker functions panic on purpose.
    panic::set_hook(Box::new(|info| {
        if !info.to_string().contains("on purpose") {
            eprintln!("{info}\n{}", std::backtrace::Backtrace::force_capture());
        }
    }));
    disco::init();
    Some(soak().map_or_else(
        |why| {
            println!("{why}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    ))
}

fn soak() -> user::Wrong<()> {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (least_faults, seconds) = (number("DISCO_SOAK_FAULTS").unwrap_or(0), number("DISCO_SOAK_SECONDS"));
    let seconds = seconds.unwrap_or(if least_faults > 0 { 0 } else { 15 });
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let first = number("DISCO_SEED").unwrap_or_else(now);
    watch::start_watchdog();
    // Compiled now, because the compiler uses resources.
    library::path();
    let (start, before) = (Instant::now(), Resources::now());
    let (mut sessions, mut warm) = (0, watch::resident());
    // At least the warm-up and one more session; a replay (0 seconds) runs one.
    while sessions <= u64::from(seconds > 0) * WARM_UP
        || start.elapsed() < Duration::from_secs(seconds)
        || Faults::so_far().count() < least_faults
    {
        if sessions == WARM_UP {
            warm = watch::resident();
        }
        let seed = first.wrapping_add(sessions);
        let replay = if least_faults > 0 { "DISCO_SOAK_FAULTS=1" } else { "DISCO_SOAK_SECONDS=0" };
        run_one(seed, least_faults > 0)
            .map_err(|why| format!("{why}\n{}replay: DISCO_SEED={seed} {replay}", watch::report()))?;
        sessions += 1;
    }
    library::remove();
    let faults = Faults::so_far();
    println!("soak: {sessions} sessions with {faults} in {:.1} s, seed {first}", start.elapsed().as_secs_f64());
    if !before.are_restored() {
        return Err(format!("resources leaked: {before:?} at the start, {:?} at the end", Resources::now()));
    }
    let growth = watch::resident().saturating_sub(warm);
    if growth > RESIDENT_GROWTH_LIMIT {
        return Err(format!("resident memory grew by {growth} bytes after the warm-up"));
    }
    Ok(())
}

fn run_one(seed: u64, is_faulty: bool) -> user::Wrong<()> {
    let mut random = Random::new(seed);
    let setup = if is_faulty {
        Setup::faulty(&mut random)
    } else {
        let kinds = [SessionKind::Threads, SessionKind::Processes, SessionKind::Nodes];
        Setup::new(random.pick(&kinds), &mut random)
    };
    session::run(&setup, &mut random).map_err(|why| format!("seed {seed}: {setup:?}: {why}"))
}
