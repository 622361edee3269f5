//! `disco status`

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use disco::status::{ConnectionStatus, NodeState, NodeStatus, WorkerStatus};
use disco::{JoinOptions, Token};

use crate::{output, token, values};

/// Show the nodes and workers of a running session of nodes: state, lag, what each worker is inside, and bytes
///
/// Asks the controller, which must have been started with `disco run --nodes`, a launcher's tasks, or `Builder::listen`
/// or `announce`. The status of workers on other nodes is at most one heartbeat old (1 s). `for` is the time since a
/// worker got further; it is not known for threads of the controller.
#[derive(Args)]
pub(crate) struct Status {
    /// Address where the controller listens, as for `disco worker`
    #[arg(long, value_name = "HOST:PORT", value_parser = values::addresses)]
    connect: String,
    /// File with the session's token [default: the file in DISCO_TOKEN_FILE, or the token in DISCO_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        token::check(self.token_file.as_deref(), false)?;
        let token = self.token_file.as_deref().map_or_else(Token::required, Token::read)?;
        let status = disco::ask_status(&JoinOptions::new(self.connect, token))?;
        if self.json {
            output::json(out, &status)?;
            return Ok(ExitCode::SUCCESS);
        }
        let disco::status::Status { process, uptime, groups, commands, failure, nodes, workers, .. } = &status;
        let count = workers.len();
        writeln!(
            out,
            "session of nodes, controller process {process}, up {}: {count} workers, groups: {groups}, commands: {commands}",
            seconds(*uptime)
        )?;
        if let Some(failure) = failure {
            writeln!(out, "failed: {failure}")?;
        }
        writeln!(out)?;
        output::table(out, &NODE_HEAD, nodes.iter().map(node_row))?;
        writeln!(out)?;
        output::table(out, &WORKER_HEAD, workers.iter().map(|worker| worker_row(worker, nodes)))?;
        Ok(ExitCode::SUCCESS)
    }
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

const WORKER_HEAD: [&str; 7] = ["worker", "where", "received", "finished", "lag", "inside", "for"];

fn worker_row(worker: &WorkerStatus, nodes: &[NodeStatus]) -> [String; 7] {
    let has_it = |node: &&NodeStatus| (node.first_worker..node.first_worker + node.workers).contains(&worker.worker);
    let place = nodes.iter().find(has_it).map_or_else(|| worker.kind.clone(), |node| format!("node {}", node.node));
    let inside: Vec<&str> = [&worker.function, &worker.operation].into_iter().flatten().map(String::as_str).collect();
    [
        worker.worker.to_string(),
        place,
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
