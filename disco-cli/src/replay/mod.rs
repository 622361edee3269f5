//! `disco replay`
//!
//! ```text
//! recorded    the log, read to its end: calls, the workers' records, the failure
//! placement   which recorded worker a worker stands in for
//! plan        pauses and operations of each worker in each call
//! schedule    operations that can't complete, found before the session starts
//! player      worker functions that carry a plan out
//! values      values in place of the recorded ones
//! conductor   submits the commands at their times
//! report      recorded and replayed numbers and times
//! ```

mod conductor;
mod placement;
mod plan;
mod player;
mod recorded;
mod report;
mod schedule;
mod values;

use std::env;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use clap::Args;
use disco::{LaneSession, Session as _, SessionKind, Settings, World, block_on};

use self::conductor::{Conductor, data_plane};
use self::placement::Placement;
use self::plan::{Pace, Plans};
use self::recorded::Recorded;
use self::report::Report;
use crate::output::json;
use crate::session::Layout;
use crate::values as options;

/// The name of a backend for a replay without a data plane.
const NO_BACKEND: &str = "none";

/// Run the commands that `disco run --record` has written, with stand-ins for the worker functions
///
/// A stand-in takes the recorded time, and makes the recorded operations with tensors of zeros. Workers that the recording
/// does not have repeat its groups and the positions in them; counts of elements stay as they were. Prints recorded and
/// replayed numbers and times of commands, functions, waits and operations.
///
/// As the program of `disco run`, and without --session, --workers and --nodes, the command uses the session that
/// `disco run` describes, so that other machines can join.
#[derive(Args)]
pub(crate) struct Replay {
    /// File that `disco run --record`, `Builder::record` or DISCO_RECORD has written
    file: PathBuf,
    /// Kind of session: where the workers run [default: the recorded one; processes instead of threads for backend mpi and
    /// with --apart]
    #[arg(long, value_parser = options::sessions())]
    session: Option<SessionKind>,
    /// Make worker 0 a process, too, so that this process outlives any worker
    #[arg(long)]
    apart: bool,
    /// Number of workers [default: as recorded]
    #[arg(long, value_parser = options::workers)]
    workers: Option<usize>,
    /// Number of equal groups that the workers are split in [default: as recorded]
    #[arg(long, value_parser = options::groups)]
    groups: Option<usize>,
    /// With `--session nodes`: number of nodes that share the workers, all started on this machine [default: as recorded,
    /// at least 2]
    #[arg(long, value_parser = options::nodes)]
    nodes: Option<usize>,
    /// With `--session nodes`: whether workers are threads or processes of their node [default: processes]
    #[arg(long, value_parser = options::node_workers())]
    node_workers: Option<SessionKind>,
    /// Backend of the data plane; `none` leaves all operations out [default: the recorded one]
    #[arg(long)]
    backend: Option<String>,
    /// Factor by which pauses of the workers and of the controller are shorter than recorded
    #[arg(long, default_value_t = 1.0, value_name = "TIMES", value_parser = speed)]
    speed: f64,
    /// Without any pauses: only commands, operations and copies take time
    #[arg(long, conflicts_with = "speed")]
    as_fast_as_possible: bool,
    /// Compute while a recorded function would, instead of sleeping
    #[arg(long)]
    busy: bool,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

impl Replay {
    pub(crate) fn run(mut self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let has_data_plane = self.backend.as_deref() != Some(NO_BACKEND);
        let recorded = Recorded::read(&self.file, has_data_plane)?;
        let is_own = self.session.is_none() && self.workers.is_none() && self.nodes.is_none();
        let mut settings = match is_own && env::var_os("DISCO_SESSION").is_some() {
            true => Some(Settings::from_env()?),
            false => None,
        };
        if let Some(settings) = &mut settings {
            settings.apart |= self.apart;
            (self.session, self.workers) = (Some(settings.session), Some(settings.workers));
            self.apart = settings.apart;
            self.groups.get_or_insert(settings.groups);
            self.backend.get_or_insert_with(|| settings.backend.clone());
        }
        let head = &recorded.head;
        let usual = match (head.session.parse()?, self.backend.as_deref().map(SessionKind::of)) {
            // The ranks of this backend are processes.
            (SessionKind::Threads, Some(SessionKind::Processes)) => SessionKind::Processes,
            (recorded, _) => recorded,
        };
        let layout = Layout::new(self.session, usual, self.apart)?;
        let kind = layout.kind;
        let of_log = World::new(head.workers, head.groups)?;
        let mut world = World::new(self.workers.unwrap_or(head.workers), self.groups.unwrap_or(head.groups))?;
        let nodes = match &settings {
            Some(settings) => settings.nodes,
            None => self.nodes.unwrap_or(head.nodes.max(2)),
        };
        match kind {
            SessionKind::Nodes => world = world.on_nodes(nodes)?,
            _ => {
                ensure!(self.nodes.is_none(), "--nodes has no effect without --session nodes");
                ensure!(self.node_workers.is_none(), "--node-workers has no effect without --session nodes");
            }
        }
        let placement = Placement { recorded: of_log, replayed: world };
        let data_plane = data_plane(&recorded, self.backend.as_deref(), placement)?;
        let speed = if self.as_fast_as_possible { f64::INFINITY } else { self.speed };
        let pace = Pace { speed, is_busy: self.busy, has_data_plane: data_plane.is_some() };
        if let Some(backend) = self.backend.as_deref().filter(|_| settings.is_none()) {
            layout.start_ranks(backend, world.size(), false)?;
        }
        let mut plans = Plans::new(&recorded, placement, pace);
        let session = match &settings {
            Some(settings) => settings.builder().groups(world.groups()).start()?,
            None => self.start(layout, world)?,
        };
        let of_workers = std::mem::take(&mut plans.workers);
        let mut conductor = Conductor::new(&session, &recorded, placement, pace, data_plane.clone(), of_workers)?;
        let measured = conductor.run(&self.file)?;
        let of_log = report::World::new(&head.session, of_log, recorded.data_plane.as_ref());
        let replayed = report::World::new(kind.name(), world, data_plane.as_ref());
        let report = Report::new(&recorded, (of_log, replayed), &plans, &conductor.counts, &measured);
        drop(conductor);
        block_on(session.shutdown())?;
        match self.json {
            true => json(out, &report)?,
            false => report.print(out)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn start(&self, layout: Layout, world: World) -> disco::Result<LaneSession> {
        let builder = layout.builder(world.size()).groups(world.groups());
        #[cfg(target_os = "linux")]
        let builder = {
            let workers = self.node_workers.unwrap_or(SessionKind::Processes);
            builder.node_count(world.nodes()).node_workers(workers)
        };
        builder.start()
    }
}

/// A positive factor.
fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed: &f64| speed.is_finite() && *speed > 0.0);
    speed.ok_or_else(|| format!("`{text}` is no number above 0"))
}
