//! Runs many simulated sessions, each with its own seed.

use std::thread;
use std::time::Instant;

use super::plan::Plan;
use super::random::Random;
use super::world::World;
use crate::engine::fault::{self, Fault};

/// Seeds of the default tier.
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
    world.run().map(|()| world.events).map_err(|rule| format!("DISCO_SEED={seed}: {rule}"))
}

#[test]
fn sessions_keep_their_rules_whatever_the_network_and_the_machines_do() {
    if let Some(seed) = std::env::var("DISCO_SEED").ok().and_then(|seed| seed.parse().ok()) {
        run(seed, true).unwrap();
        return;
    }
    let runs = std::env::var("DISCO_SIM_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    let start = Instant::now();
    let share = |first| {
        let (mut events, mut broken) = (0, Vec::new());
        for seed in (first..runs).step_by(THREADS) {
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
    println!("{runs} sessions, {events} events in {:.1?}", start.elapsed());
    assert!(broken.is_empty(), "sessions broke a rule:\n{}", broken.join("\n"));
}

/// Number of seeds within which a planted fault must be found.
fn runs_until_found(fault: Fault) -> Option<(u64, String)> {
    fault::plant(Some(fault));
    let found = (0..RUNS).find_map(|seed| run(seed, false).err().map(|rule| (seed, rule)));
    fault::plant(None);
    found
}

#[test]
fn a_member_without_heartbeats_is_found() {
    let (_, rule) = runs_until_found(Fault::NoHeartbeat).unwrap();
    assert!(rule.contains("without a disruption"), "{rule}");
}

#[test]
fn credit_that_is_returned_twice_is_found() {
    let (_, rule) = runs_until_found(Fault::DoubleCredit).unwrap();
    assert!(rule.contains("frames are in flight"), "{rule}");
}

#[test]
fn an_abort_of_an_epoch_that_is_over_is_found() {
    let (_, rule) = runs_until_found(Fault::OldAbort).unwrap();
    assert!(rule.contains("was aborted by a failure of an earlier epoch"), "{rule}");
}

#[test]
fn a_controller_without_heartbeats_is_found() {
    let (_, rule) = runs_until_found(Fault::SilentController).unwrap();
    assert!(rule.contains("without a disruption"), "{rule}");
}

#[test]
fn a_wake_up_that_is_missed_is_found() {
    let (_, rule) = runs_until_found(Fault::MissedWake).unwrap();
    assert!(rule.contains("was not woken"), "{rule}");
}

#[test]
fn a_reply_behind_its_worker_s_departure_is_found() {
    let (_, rule) = runs_until_found(Fault::EarlyDeparture).unwrap();
    assert!(rule.contains("after it has left"), "{rule}");
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
        let (seed, rule) = runs_until_found(fault).unwrap_or_else(|| panic!("{fault:?} is not found"));
        println!("{fault:?} is found by seed {seed}");
        assert!(rule.contains(found), "{fault:?}: {rule}");
    }
}

/// Peak memory of this process in KiB.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().split(' ').next().unwrap().parse().unwrap()
}

/// `DISCO_SIM_NODES=1000` sets the number of nodes, which get ten commands each.
#[test]
fn many_nodes_start_run_lose_some_of_them_and_leave() {
    let nodes = std::env::var("DISCO_SIM_NODES").ok().and_then(|nodes| nodes.parse().ok()).unwrap_or(100);
    let (commands, losses) = (10 * nodes as u64, 1 + nodes / 100);
    let (before, start) = (peak_memory(), Instant::now());
    let mut world = World::new(Plan::large(nodes, commands, losses), 1, false);
    world.run().unwrap();
    let (time, used) = (start.elapsed(), peak_memory() - before);
    assert!(world.controller.posted.0 >= commands && world.controller.session.ends.len() == nodes);
    println!("{nodes} nodes of 8 workers, {} commands, {losses} nodes lost: {time:.1?}", world.controller.posted.0);
    println!("{:.1?} a command, {} KiB a node", time / world.controller.posted.0 as u32, used / nodes);
}
