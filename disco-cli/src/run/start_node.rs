//! `disco start-node`: starts a node of `disco run --hosts` on its host, and ends with it.

use std::env;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::{ChildStdin, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use disco_core::env::Variable;
use signal_hook::consts::SIGTERM;

use super::host_list::Host;
use super::hosts::{HOSTS, LAUNCHER, OPTIONS, Start};
use super::script;
use super::ssh::{Phase, Remote, Step};
use crate::log;

/// Variables of this process, its program or its session that have no meaning on another machine.
const HERE: [&str; 8] =
    [HOSTS, OPTIONS, LAUNCHER, "DISCO_RUN_SOCKET", "DISCO_RESTARTS", "DISCO_SSH", "DISCO_STARTER", "DISCO_TOKEN_FILE"];
/// Time for the program to end once the session has ended.
const END: Duration = Duration::from_secs(10);

/// Start a node of `disco run --hosts` on its host
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct StartNode {}

impl StartNode {
    /// The format of the messages, as that of `disco run`.
    pub(crate) fn log_format() -> log::Format {
        if Start::from_env().is_ok_and(|start| start.is_json) { log::Format::Json } else { log::Format::Text }
    }

    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let number = |name| Variable::read(name).number::<u32>();
        let (Some(id), Some(seconds)) = (number("DISCO_NODE_ID")?, number("DISCO_JOIN_SECONDS")?) else {
            bail!("`disco start-node` is started by the program of `disco run --hosts`");
        };
        let start = Start::from_env()?;
        let hosts = Variable::read(HOSTS).list("hosts", "a,b", |name| Some(name.to_owned()))?;
        let name = hosts.into_iter().nth(id.saturating_sub(1) as usize);
        let name = name.with_context(|| format!("node {id} has no host in {HOSTS}"))?;
        let host = Host { name, workers: None };
        run(&start, &host, Duration::from_secs(seconds.into())).with_context(|| format!("node {id}"))
    }
}

/// Runs the node's program on its host until it ends. It has to start within `limit`. Once this process's standard input is
/// closed, the program has to end.
fn run(start: &Start, host: &Host, limit: Duration) -> anyhow::Result<ExitCode> {
    let variables = [variables(), start.env.clone()].concat();
    let script = script::run(&start.folder, &start.program(), &start.args, &variables);
    // Nothing is written to the socket, and it is closed when the session ends, or its program.
    let session = |_: &mut ChildStdin| io::stdin().read(&mut [0]).map(drop);
    let mut remote = Remote::start(&start.ssh, host, script, session)?;
    let (mut until, mut is_over) = (Some(Instant::now() + limit), false);
    let status = loop {
        match remote.next(until)? {
            Step::Reached(Phase::Program) => until = None,
            Step::Reached(_) => {}
            // The program has not started, and ssh ends with this process.
            Step::Closed if until.is_some() => return Ok(ExitCode::SUCCESS),
            Step::Closed => (until, is_over) = (Some(Instant::now() + END), true),
            Step::Late if is_over => return Ok(ExitCode::SUCCESS),
            // The node has lost its controller, or the script has ended it.
            Step::Ended(status) if is_over && !has_crashed(status) => return Ok(ExitCode::SUCCESS),
            Step::Ended(status) => break status,
            Step::Late => return Err(remote.late(limit)),
        }
    };
    if status.success() {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(why) = remote.cut_off(status) {
        tell_session(&why).unwrap_or_else(|error| tracing::debug!(%error, "the session gets no reason"));
    }
    Err(remote.failure(status, &start.folder, &start.name))
}

/// Tells the session's program why the node can't go on.
fn tell_session(why: &str) -> io::Result<()> {
    UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?).write_all(why.as_bytes())
}

/// Whether a signal other than SIGTERM has ended the program, or ssh has failed: perhaps that has ended the session.
fn has_crashed(status: ExitStatus) -> bool {
    status.code().is_none_or(|code| code > 128 && code != 128 + SIGTERM)
}

/// The variables of Disco that the program gets.
fn variables() -> Vec<(String, String)> {
    let is_passed = |name: &String| name.starts_with("DISCO_") && !HERE.contains(&name.as_str());
    let all = env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    all.filter(|(name, _)| is_passed(name)).collect()
}
