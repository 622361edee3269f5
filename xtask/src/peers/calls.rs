//! The control plane beside that of TVM.

use std::process::Command;

use anyhow::{Context as _, Result};

use super::collectives::probe;
use super::data::{self, Data, Ping, Queued, Stuck};
use super::programs::{self, Programs};

/// Kinds of sessions with numbers of workers. Nodes are two.
const SESSIONS: [(&str, [usize; 3]); 3] = [("threads", [1, 4, 8]), ("processes", [1, 4, 8]), ("nodes", [2, 4, 8])];
/// Workers of the measurement of memory.
const STUCK_WORKERS: usize = 4;
/// Largest number of calls behind a stuck worker.
const STUCK_CALLS: &str = "200000";
/// Number of timed syncs, and of calls in hundreds.
const ROUNDS: &str = "200";

/// Measures calls, syncs and start-up, `starts` times in turn, and memory behind a stuck worker once.
///
/// # Errors
/// Disco fails. A failure of a peer is printed.
pub(crate) fn measure(data: &mut Data, programs: &Programs, starts: usize, quick: bool) -> Result<()> {
    let rounds = if quick { "50" } else { ROUNDS };
    for start in 0..starts {
        probe(data, &programs.disco, "calls", start == 0)?;
        for (kind, workers) in SESSIONS.iter().flat_map(|(kind, all)| all.iter().map(move |workers| (*kind, *workers)))
        {
            let number = workers.to_string();
            eprintln!("== calls: {kind} {workers}, start {}", start + 1);
            let mut ping = Command::new(&programs.disco);
            ping.args(["ping", "--json", "--session", kind, "--workers", &number, "--rounds", rounds]);
            let ours: Ping = programs::json(&mut ping)?;
            data.calls(kind, workers, data::DISCO, start).starts.push(ours);
            for system in systems(kind) {
                let Some(mut command) = tvm(programs, system) else { continue };
                match programs::json::<Ping>(command.args(["ping", kind, &number, rounds])) {
                    Ok(theirs) => data.calls(kind, workers, system, start).starts.push(theirs),
                    Err(error) => eprintln!("== {system}: {error:#}"),
                }
            }
        }
    }
    probe(data, &programs.disco, "calls", false)?;
    stuck(data, programs)
}

fn systems(kind: &str) -> &'static [&'static str] {
    if kind == "nodes" { &[data::TVM, data::TVM_NODELAY] } else { &[data::TVM] }
}

fn tvm(programs: &Programs, system: &str) -> Option<Command> {
    let mut command = Command::new(programs.tvm.as_ref()?);
    command.env("PEERS_NODELAY", if system == data::TVM_NODELAY { "1" } else { "0" });
    Some(command)
}

fn stuck(data: &mut Data, programs: &Programs) -> Result<()> {
    for (kind, _) in SESSIONS {
        eprintln!("== memory behind a stuck worker: {kind} {STUCK_WORKERS}");
        let number = STUCK_WORKERS.to_string();
        let args = ["stuck", kind, &number, STUCK_CALLS];
        let mut systems = vec![(data::DISCO, Command::new(&programs.ours))];
        systems.extend(tvm(programs, data::TVM_NODELAY).map(|command| (data::TVM, command)));
        for (system, mut command) in systems {
            let queued: Queued = match programs::json(command.args(args)) {
                Ok(queued) => queued,
                Err(error) if system == data::DISCO => return Err(error).context("memory behind a stuck worker"),
                Err(error) => {
                    eprintln!("== {system}: {error:#}");
                    continue;
                }
            };
            data.stuck.retain(|it| it.kind != kind || it.system != system);
            data.stuck.push(Stuck { kind: kind.into(), workers: STUCK_WORKERS, system: system.into(), queued });
        }
    }
    Ok(())
}
