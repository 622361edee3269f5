//! Dumps with the keys of PyTorch's flight recorder, for its analyser (`torch.distributed.flight_recorder`) and other
//! tools that read them.
//!
//! Each worker has a file `rank_N`, a pickle of version 2.4 of the format (torch/csrc/distributed/c10d/FlightRecorder.hpp):
//!
//! ```text
//! version      "2.4"
//! pg_config    for each communicator of the worker its name, and its workers as ranks
//! pg_status    for each communicator the numbers of the last collective enqueued and completed
//! entries      for each collective, oldest first: record_id, process_group, collective_seq_id, profiling_name, sizes,
//!              dtypes, state (started, completed), times in nanoseconds
//! ```
//!
//! Sends and receives are left out: the analyser compares them only inside of groups that PyTorch calls coalesced.
//! Operations are named `nccl:all_reduce` with any backend, because the analyser refuses unknown names.

mod entry;
mod pickle;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use disco_core::WorkerId;
use disco_core::activity::{CommKind, OpDetails, OpState};

use self::entry::entry;
use self::pickle::Value;
use crate::calls::{Calls, Entry};
use crate::error::TraceError;
use crate::trace::Trace;

/// The version of the format.
const VERSION: &str = "2.4";

/// Writes a file `rank_N` for each worker into a folder, which is made if it is not there.
///
/// # Errors
/// A file or the folder can't be written; the error names it.
pub fn write(trace: &Trace, folder: &Path) -> Result<(), TraceError> {
    fs::create_dir_all(folder).map_err(TraceError::write(folder))?;
    let calls = Calls::of(trace);
    let first = first_common(trace, &calls);
    let mut entries: Vec<Vec<&Entry<'_>>> = trace.workers.iter().map(|_| Vec::new()).collect();
    for call in calls.all.iter().filter(|call| first.get(call.comm).is_none_or(|first| call.number >= *first)) {
        call.entries.iter().for_each(|entry| entries[entry.index].push(entry));
    }
    for (it, mut entries) in trace.workers.iter().zip(entries).filter(|(it, _)| it.known().is_some()) {
        entries.sort_by_key(|entry| entry.position);
        let path = folder.join(format!("rank_{}", it.worker.index()));
        let dump = dump(&calls, &entries, it.worker);
        fs::write(&path, dump.pickle()).map_err(TraceError::write(&path))?;
    }
    Ok(())
}

/// For each communicator the first collective that all of its workers may still have: later records have replaced older
/// ones on some of them.
fn first_common<'a>(trace: &Trace, calls: &Calls<'a>) -> BTreeMap<&'a str, u64> {
    let mut oldest: BTreeMap<(&str, usize), u64> = BTreeMap::new();
    for call in &calls.all {
        for entry in &call.entries {
            oldest.entry((call.comm, entry.index)).or_insert(call.number);
        }
    }
    let has_replaced = |index: usize| trace.workers[index].known().is_some_and(|recording| recording.replaced > 0);
    let mut first = BTreeMap::new();
    for ((comm, _), number) in oldest.into_iter().filter(|((_, index), _)| has_replaced(*index)) {
        let first = first.entry(comm).or_insert(number);
        *first = number.max(*first);
    }
    first
}

/// The dump of a worker.
fn dump(calls: &Calls<'_>, own: &[&Entry<'_>], worker: WorkerId) -> Value {
    let mut comms: BTreeMap<&str, (&OpDetails, [u64; 2])> = BTreeMap::new();
    for it in own {
        let (_, [enqueued, completed]) = comms.entry(&it.op.comm).or_insert((it.op, [0; 2]));
        *enqueued = it.op.number.max(*enqueued);
        if it.record.state == OpState::Done {
            *completed = it.op.number.max(*completed);
        }
    }
    let config = comms.iter().map(|(comm, (op, _))| {
        let ranks: Vec<String> = calls.members(comm).iter().map(|worker| worker.index().to_string()).collect();
        let ranks = format!("[{}]", ranks.join(", "));
        let config = [("name", Value::text(comm)), ("desc", description(op)), ("ranks", Value::Text(ranks))];
        (Value::text(comm), Value::dict(config))
    });
    let status = comms.iter().map(|(comm, (_, [enqueued, completed]))| {
        let numbers = [
            ("last_enqueued_collective", Value::number(*enqueued)),
            ("last_started_collective", Value::number(*enqueued)),
            ("last_completed_collective", Value::number(*completed)),
        ];
        (Value::text(comm), Value::dict(numbers))
    });
    // The analyser drops entries with lower numbers than the first one of another rank: all count from 0.
    let entries = (0..).zip(own).map(|(number, it)| entry(calls, it, number, description(it.op)));
    Value::dict([
        ("version", Value::text(VERSION)),
        ("rank", Value::number(worker.index() as u64)),
        ("pg_config", Value::Dict(config.collect())),
        ("pg_status", Value::Dict(status.collect())),
        ("entries", Value::List(entries.collect())),
    ])
}

fn description(op: &OpDetails) -> Value {
    Value::text(match op.kind {
        CommKind::World => "world",
        CommKind::Split(_) => "split",
        _ => "group",
    })
}
