//! Sessions whose workers die at random moments and are replaced, or dropped by a resize to a random number of workers, against
//! a model of the registers.
//!
//! Workers are threads that end as if they were killed ([`lane`]): thousands of deaths a second, at every step of a
//! replacement, also of new workers before they have joined. Real processes and nodes are replaced in the modules
//! `processes`, `nodes` and `soak` of the program `sessions`.

mod lane;
mod model;
mod numbers;
mod puppets;
mod steps;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Time limit of one seed: each wait has to end.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn sessions_go_on_with_the_same_values_whenever_workers_die() {
    let seeds = if std::env::var_os("DISCO_LONG_TESTS").is_some() { 20_000 } else { 600 };
    let mut replaced = 0;
    for seed in 0..seeds {
        let (tell, told) = mpsc::channel();
        let run = thread::spawn(move || _ = tell.send(model::run(seed)));
        match told.recv_timeout(LIMIT) {
            Ok(count) => replaced += count,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("seed {seed}: no end after {LIMIT:?}"),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                panic!("seed {seed}: {:?}", run.join().unwrap_err().downcast_ref::<String>())
            }
        }
    }
    assert!(replaced as u64 > seeds, "{replaced} workers were replaced");
}
