//! Nodes: joining another program's session.

use std::io;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use disco_channel::environment;
use disco_channel::nodes::{self, JoinOptions, StopHandle, Token};
use disco_channel::processes::{self, Invitation, ProcessLane};
use disco_channel::threads::ThreadLane;
use disco_core::env::Variable;
use disco_core::link::Shared;
use disco_core::wire::Assignment;
use disco_core::{Channel, Error, Result, worker};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{log_files, signals};

/// Exit status of a node that SIGTERM ends while it serves no session: that of a shell for this signal.
const STOPPED: i32 = 128 + SIGTERM;
/// Environment variable with the controller's address; makes [`init`](crate::init) join as a node.
pub(crate) const CONNECT: &str = "DISCO_CONNECT";
/// Environment variable with the id of the node.
pub(super) const NODE_ID: &str = "DISCO_NODE_ID";
/// Environment variable with the rack of the node's machine.
const RACK: &str = "DISCO_RACK";
/// Environment variable with the largest number of workers that the node accepts.
const MAX_WORKERS: &str = "DISCO_MAX_WORKERS";
/// Environment variable with the process that has started the node.
pub(super) const STARTER: &str = "DISCO_STARTER";
/// Environment variable that makes the node stand by.
pub(super) const SPARE: &str = "DISCO_SPARE";
/// Environment variable with the number of seconds to wait for the controller.
pub(super) const JOIN_SECONDS: &str = "DISCO_JOIN_SECONDS";

/// Joins a session as a node, and serves until the session ends. [`init`](crate::init) does the same if `DISCO_CONNECT`
/// is set. Without a [rack](JoinOptions::rack), `DISCO_RACK` is read.
///
/// If the session's workers are processes, this program is executed again for each, so it has to call
/// [`init`](crate::init). `examples/node.rs` is one program for all machines of a session.
///
/// ```no_run
/// use std::path::Path;
///
/// use disco::{JoinOptions, Result, Token};
///
/// fn main() -> Result<()> {
///     disco::init();
///     let mut options = JoinOptions::new("10.0.0.1:4567", Token::read(Path::new("session.token"))?);
///     options.max_workers = Some(8);
///     disco::join(&options)
/// }
/// ```
///
/// # Errors
/// This program is built without the feature `nodes`. The controller does not answer in time, rejects this node, or is lost; a worker can't be started, or does not end.
pub fn join(options: &JoinOptions) -> Result<()> {
    if Invitation::is_there() {
        return Err(Error::invalid(
            "this process was started as a worker, so it can't join as a node: call `disco::init()` first in `main`, which serves as \
             the worker",
        ));
    }
    crate::remote::role::set_worker();
    let mut options = options.clone();
    if options.rack.is_none() {
        options.rack = Variable::read(RACK).text()?.map(str::to_owned);
    }
    nodes::serve(&options, |assignment, shared, output| lane(options.log_dir.as_deref(), assignment, shared, output))
}

/// Turns this process into a node, as [`join`] does, and lets SIGTERM stop it: the node tells its controller so, and ends
/// its workers.
///
/// # Errors
/// Errors of [`join`]; or the system refuses a thread or a signal handler.
#[doc(hidden)]
pub fn be_node(mut options: JoinOptions) -> Result<()> {
    let refused = |error: io::Error| Error::system("a node can't handle SIGTERM", error);
    let stop = StopHandle::new();
    options.stop = Some(stop.clone());
    let mut signals = signals::handle(&[SIGTERM]).map_err(refused)?;
    signals::end_process_1(&[SIGINT]).map_err(refused)?;
    let on_signal = move || {
        let mut is_told = false;
        for _ in &mut signals {
            // A second signal does not wait for the workers.
            if std::mem::replace(&mut is_told, true) || !stop.request("the node was told to stop by SIGTERM") {
                process::exit(STOPPED);
            }
        }
    };
    thread::Builder::new().name("disco-signals".into()).spawn(on_signal).map_err(refused)?;
    join(&options)
}

/// The options for joining that the environment describes, or `None` without `DISCO_CONNECT`. Removes the variables, so
/// that child processes do not join, too.
///
/// # Errors
/// This program is built without the feature `nodes`; a variable is not a number; the token is missing or can't be read.
pub(crate) fn options() -> Option<Result<JoinOptions>> {
    let address = environment::take(CONNECT)?;
    Some(read(&address.to_string_lossy()))
}

fn read(address: &str) -> Result<JoinOptions> {
    nodes::check("DISCO_CONNECT, which makes this program a node of a session,")?;
    let number = |name: &str| Variable::new(name, environment::take(name)).number::<u32>();
    let mut options = JoinOptions::new(address, Token::required()?);
    (options.node, options.starter) = (number(NODE_ID)?, number(STARTER)?);
    options.max_workers = number(MAX_WORKERS)?;
    options.is_spare = Variable::new(SPARE, environment::take(SPARE)).flag()?.unwrap_or(false);
    options.start = take_join_limit()?.unwrap_or(options.start);
    options.log_dir = Variable::read(log_files::VARIABLE).path();
    options.report = |text| disco_core::tell(format_args!("disco: {text}"));
    Ok(options)
}

/// As [`join_limit`], and removes the variable, so that child processes do not get it.
pub(crate) fn take_join_limit() -> Result<Option<Duration>> {
    let limit = join_limit();
    environment::take(JOIN_SECONDS);
    limit
}

/// The time limit for reaching the controller that the environment sets.
///
/// # Errors
/// The variable is not a number.
pub(crate) fn join_limit() -> Result<Option<Duration>> {
    Ok(Variable::read(JOIN_SECONDS).number::<u32>()?.map(|seconds| Duration::from_secs(seconds.into())))
}

/// The lane to a node's own workers.
fn lane(
    log_dir: Option<&Path>,
    assignment: &Assignment,
    shared: Arc<Shared>,
    output: processes::Sink,
) -> Result<Arc<dyn Channel>> {
    let (workers, config) = (assignment.workers, assignment.config);
    if !assignment.processes {
        if let Some(folder) = log_dir {
            tracing::warn!(folder = %folder.display(), "no log files are written: the workers of this session are threads of their nodes");
        }
        let run = move |worker, endpoint| worker::run(worker, config, endpoint);
        return Ok(Arc::new(ThreadLane::new(workers, shared, run).recording(config.recorder)));
    }
    let mut options = processes::Options::new(config);
    (options.heartbeat, options.silence) = (assignment.heartbeat, assignment.silence);
    options.start = assignment.start;
    options.output = match log_dir {
        Some(folder) => log_files::tee(output, folder, workers)?,
        None => output,
    };
    Ok(Arc::new(ProcessLane::new(workers, shared, options)))
}
