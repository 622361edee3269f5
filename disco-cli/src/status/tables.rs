//! Tables of programs, sessions, nodes and workers.

use std::io::Write;
use std::time::Duration;

use disco::programs::Found;
use disco::status::{ConnectionStatus, NodeState, NodeStatus, SpareStatus, Status, WorkerStatus};

use crate::output;

const PROGRAM_HEAD: [&str; 8] = ["process", "program", "session of", "workers", "groups", "commands", "up", "state"];

/// A row for each session.
pub(super) fn programs(out: &mut impl Write, found: &[Found]) -> anyhow::Result<()> {
    let rows = found.iter().flat_map(|Found { process, name, answer, .. }| {
        let row = |rest: [String; 6]| {
            let [kind, workers, groups, commands, up, state] = rest;
            [process.to_string(), name.clone(), kind, workers, groups, commands, up, state]
        };
        match answer {
            Ok(program) => program.sessions.iter().map(session_cells).map(row).collect(),
            Err(error) => vec![row([none(), none(), none(), none(), none(), error.to_string()])],
        }
    });
    Ok(output::table(out, &PROGRAM_HEAD, rows)?)
}

fn session_cells(status: &Status) -> [String; 6] {
    let kind = match status.node {
        Some(node) => format!("nodes (node {node})"),
        None => status.kind().to_owned(),
    };
    [
        kind,
        status.workers.len().to_string(),
        status.groups.to_string(),
        status.commands.to_string(),
        seconds(status.uptime),
        status.failure.as_ref().map_or_else(|| "running".to_owned(), |failure| format!("failed: {failure}")),
    ]
}

/// A session: a line, the nodes if there are any, and the workers.
pub(super) fn session(out: &mut impl Write, status: &Status) -> anyhow::Result<()> {
    let Status { process, uptime, groups, commands, failure, nodes, workers, spares, .. } = status;
    let (count, up) = (workers.len(), seconds(*uptime));
    let head = match status.node {
        Some(node) => format!("node {node} of a session of nodes, process {process}"),
        None => format!("session of {}, controller process {process}", status.kind()),
    };
    writeln!(out, "{head}, up {up}: {count} workers, groups: {groups}, commands: {commands}")?;
    if let Some(failure) = failure {
        writeln!(out, "failed: {failure}")?;
    }
    writeln!(out)?;
    if !nodes.is_empty() {
        output::table(out, &NODE_HEAD, nodes.iter().map(node_row))?;
        writeln!(out, "the figures of a node's workers are at most as old as `silent` says, and one heartbeat\n")?;
    }
    output::table(out, &WORKER_HEAD, workers.iter().map(|worker| worker_row(worker, nodes)))?;
    if !spares.is_empty() {
        writeln!(out)?;
        output::table(out, &SPARE_HEAD, spares.iter().map(spare_row))?;
    }
    Ok(())
}

const SPARE_HEAD: [&str; 4] = ["spare", "state", "address", "silent"];

fn spare_row(spare: &SpareStatus) -> [String; 4] {
    let process = spare.process.map(|id| format!("process {id}"));
    let connection = spare.connection.as_ref();
    [
        process.or_else(|| spare.name.clone()).unwrap_or_else(none),
        if spare.is_ready { "ready" } else { "starting" }.to_owned(),
        connection.and_then(|it| it.address).map_or_else(none, |address| address.to_string()),
        connection.map_or_else(none, |it| seconds(it.silence)),
    ]
}

const NODE_HEAD: [&str; 10] =
    ["node", "state", "address", "encrypted", "silent", "round trip", "sent", "received", "repeated", "unread"];

fn node_row(node: &NodeStatus) -> [String; 10] {
    let state = match &node.state {
        NodeState::Ended(why) => format!("ended: {why}"),
        state => state.to_string(),
    };
    let Some(it) = &node.connection else {
        return [node.name.clone(), state, none(), none(), none(), none(), none(), none(), none(), none()];
    };
    let ConnectionStatus { sent_bytes, sent_packets, received_bytes, received_packets, .. } = it;
    [
        node.name.clone(),
        state,
        it.address.map_or_else(none, |address| address.to_string()),
        if it.is_encrypted { "yes" } else { "no" }.to_owned(),
        seconds(it.silence),
        it.round_trip.map_or_else(none, |time| format!("{:.3} ms", time.as_secs_f64() * 1e3)),
        format!("{sent_bytes} B in {sent_packets}"),
        format!("{received_bytes} B in {received_packets}"),
        it.repeated_packets.to_string(),
        format!("{} B", it.waiting_bytes + it.unacknowledged_bytes),
    ]
}

const WORKER_HEAD: [&str; 9] = ["worker", "where", "process", "thread", "received", "finished", "lag", "inside", "for"];

fn worker_row(worker: &WorkerStatus, nodes: &[NodeStatus]) -> [String; 9] {
    let has_it = |node: &&NodeStatus| (node.first_worker..node.first_worker + node.workers).contains(&worker.worker);
    let place = nodes.iter().find(has_it).map_or_else(|| worker.kind.clone(), |node| format!("node {}", node.node));
    let inside: Vec<&str> = [&worker.function, &worker.operation].into_iter().flatten().map(String::as_str).collect();
    [
        worker.worker.to_string(),
        place,
        worker.process.map_or_else(none, |id| id.to_string()),
        worker.thread.map_or_else(none, |id| id.to_string()),
        worker.received.to_string(),
        worker.finished.to_string(),
        worker.lag.to_string(),
        if inside.is_empty() { none() } else { inside.join(", in ") },
        worker.unchanged.filter(|_| !inside.is_empty()).map_or_else(none, seconds),
    ]
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Stands for a value that is not known.
fn none() -> String {
    "-".to_owned()
}
