//! Runs many simulated sessions, each with its own seed.

use std::thread;
use std::time::Instant;

use super::plan::Plan;
use super::random::Random;
use super::world::World;
use crate::fault::{self, Fault};

/// Number of seeds.
const RUNS: u64 = 10_000;

/// Violations after which a thread stops.
const SHOWN: usize = 10;
/// Number of threads that share the seeds.
const THREADS: usize = 2;

/// Runs a seed.
fn run(seed: u64, shows: bool) -> Result<u64, String> {
    let mut random = Random::new(seed);
    let plan = Plan::new(&mut random);
    if shows {
        eprintln!("seed {seed}: {plan:?}");
    }
    let mut world = World::new(plan, random.next(), shows);
    world.run().map(|()| world.handled).map_err(|rule| format!("DISCO_SEED={seed}: {rule}"))
}

#[test]
fn sessions_keep_their_rules_whatever_the_network_and_the_machines_do() {
    if let Some(seed) = std::env::var("DISCO_SEED").ok().and_then(|seed| seed.parse().ok()) {
        run(seed, true).unwrap();
        return;
    }
    let start = Instant::now();
    let share = |first| {
        let (mut events, mut broken) = (0, Vec::new());
        for seed in (first..RUNS).step_by(THREADS) {
            match run(seed, false) {
                Ok(count) => events += count,
                Err(rule) => broken.push(rule),
            }
            if broken.len() == SHOWN {
                break;
            }
        }
        (events, broken)
    };
    let shares: Vec<(u64, Vec<String>)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS as u64).map(|first| scope.spawn(move || share(first))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let events: u64 = shares.iter().map(|(events, _)| events).sum();
    let broken: Vec<String> = shares.into_iter().flat_map(|(_, broken)| broken).collect();
    println!("{RUNS} sessions, {events} events in {:.1?}", start.elapsed());
    assert!(broken.is_empty(), "sessions broke a rule:\n{}", broken.join("\n"));
}

/// Violations of other rules after which the search for a fault ends.
const MAX_OTHERS: usize = 200;

/// Runs seeds with a planted fault until one breaks the rule whose text contains `expected`, and keeps it without the
/// fault. Returns that seed.
///
/// The search skips seeds that break a rule also without the fault, or that break another rule. So a defect of the
/// engine makes the test of the sessions fail, and not the tests of other faults.
fn runs_until_found(fault: Fault, expected: &str) -> Result<u64, String> {
    let mut others = Vec::new();
    for seed in 0..RUNS {
        fault::plant(Some(fault));
        let ran = run(seed, false);
        fault::plant(None);
        let Err(rule) = ran else { continue };
        match run(seed, false) {
            Ok(_) if rule.contains(expected) => return Ok(seed),
            Ok(_) => others.push(rule),
            Err(rule) => others.push(format!("{rule}; also without the fault: the engine has a defect")),
        }
        if others.len() == MAX_OTHERS {
            break;
        }
    }
    let shown: Vec<&str> = others.iter().take(SHOWN).map(String::as_str).collect();
    Err(format!(
        "no seed breaks the rule `{expected}` because of {fault:?}. {} seeds break other rules:\n{}",
        others.len(),
        shown.join("\n")
    ))
}

fn assert_found(fault: Fault, expected: &str) {
    match runs_until_found(fault, expected) {
        Ok(seed) => println!("{fault:?} is found by seed {seed}"),
        Err(why) => panic!("{why}"),
    }
}

#[test]
fn a_member_without_heartbeats_is_found() {
    assert_found(Fault::NoHeartbeat, "without a disruption");
}

#[test]
fn credit_that_is_returned_twice_is_found() {
    assert_found(Fault::DoubleCredit, "frames are in flight");
}

#[test]
fn an_abort_of_an_epoch_that_is_over_is_found() {
    assert_found(Fault::OldAbort, "was aborted by a failure of an earlier epoch");
}

#[test]
fn a_controller_without_heartbeats_is_found() {
    assert_found(Fault::SilentController, "without a disruption");
}

#[test]
fn a_wake_up_that_is_missed_is_found() {
    assert_found(Fault::MissedWake, "was not woken");
}

#[test]
fn a_reply_behind_its_worker_s_departure_is_found() {
    assert_found(Fault::EarlyDeparture, "after it has left");
}

#[test]
fn faults_of_the_controller_are_found() {
    for (fault, found) in [
        (Fault::NotRetired, "the ring still waits for"),
        (Fault::LossIgnored, "was not noticed"),
        (Fault::DoubleOutput, "twice or out of order"),
        (Fault::NoStatus, "does not state that its process ended"),
        (Fault::ChildrenLeft, "has ended while the process of host"),
        (Fault::DoubleDeparture, "after their end was reported"),
        (Fault::StrayReply, "which is not pending"),
        (Fault::NoExcuse, "without a disruption"),
        (Fault::SmallWaits, "has no room for a small command"),
    ] {
        assert_found(fault, found);
    }
}

/// Peak memory of this process in KiB.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().split(' ').next().unwrap().parse().unwrap()
}

/// 100 nodes, or 1000 with `DISCO_LONG_TESTS`, get ten commands each.
#[test]
fn many_nodes_start_run_lose_some_of_them_and_leave() {
    let nodes = if std::env::var_os("DISCO_LONG_TESTS").is_some() { 1000 } else { 100 };
    let (commands, losses) = (10 * nodes as u64, 1 + nodes / 100);
    let (before, start) = (peak_memory(), Instant::now());
    let mut world = World::new(Plan::large(nodes, commands, losses), 1, false);
    world.run().unwrap();
    // Linux adds up counters of threads, so a later peak can be a little smaller.
    let (time, used) = (start.elapsed(), peak_memory().saturating_sub(before));
    assert!(world.controller.posted.0 >= commands && world.controller.session.ends.len() == nodes);
    println!("{nodes} nodes of 8 workers, {} commands, {losses} nodes lost: {time:.1?}", world.controller.posted.0);
    println!("{:.1?} a command, {} KiB a node", time / world.controller.posted.0 as u32, used / nodes);
}
