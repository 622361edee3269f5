//! `disco ping`

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use disco::{DRef, Session, SessionKind, Value, WorkerContext, WorkerId, block_on};
use serde::Serialize;

use crate::output::json;
use crate::session::Layout;
use crate::values;

/// Measure the control plane: latency of syncs and rate of calls
#[derive(Args)]
pub(crate) struct Ping {
    /// Number of workers
    #[arg(long, default_value_t = 4, value_parser = values::workers)]
    workers: usize,
    /// Kind of session: where the workers run [default: processes with --apart, else threads]
    #[arg(long, value_parser = values::sessions())]
    session: Option<SessionKind>,
    /// Make worker 0 a process, too, so that this process outlives any worker
    #[arg(long)]
    apart: bool,
    /// With `--session nodes`: number of nodes that share the workers, all started on this machine [default: 2]
    #[arg(long, value_parser = values::nodes)]
    nodes: Option<usize>,
    /// Number of syncs to time, and of calls in hundreds
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

/// Time of syncs before the first one that is timed. At first, the controller's thread and a worker's may share a
/// processor, and yield to each other.
const WARM_UP: Duration = Duration::from_millis(100);

/// The results, as JSON.
#[derive(Serialize)]
struct Report {
    workers: usize,
    session: &'static str,
    /// Number of CPUs in this process's affinity mask.
    cpus: usize,
    /// Time until all workers have started and answered a sync, in ms.
    ready_ms: f64,
    sync_one: Latency,
    sync_all: Latency,
    calls_0_args: Rate,
    calls_4_args: Rate,
}

/// Time from the command to the reply, in µs.
#[derive(Serialize)]
struct Latency {
    median_us: f64,
    p99_us: f64,
}

/// Rate of calls, timed until all workers have executed all of them. Each returned handle is dropped at once.
#[derive(Serialize)]
struct Rate {
    per_call_us: f64,
    per_second: f64,
}

fn nop(_: &mut WorkerContext) -> disco::Result<()> {
    Ok(())
}

fn nop_4(_: &mut WorkerContext, _: i64, _: f64, _: Arc<str>, _: Value) -> disco::Result<()> {
    Ok(())
}

disco::register_function!("disco-cli.nop", nop);
disco::register_function!("disco-cli.nop_4", nop_4);

impl Ping {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let layout = Layout::new(self.session, SessionKind::default(), self.apart)?;
        ensure!(
            layout.kind == SessionKind::Nodes || self.nodes.is_none(),
            "--nodes has no effect without --session nodes"
        );
        let start = Instant::now();
        let builder = layout.builder(self.workers);
        let session = builder.node_options(|nodes| nodes.count = self.nodes.unwrap_or(2)).start()?;
        block_on(session.sync_all())?;
        let report = block_on(self.measure(&session, layout.kind, start.elapsed()))?;
        block_on(session.shutdown())?;
        if self.json {
            json(out, &report)?;
        } else {
            report.print(out)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn measure(&self, session: &dyn Session, kind: SessionKind, ready: Duration) -> disco::Result<Report> {
        let (nop, nop_4) = (session.function("disco-cli.nop").await?, session.function("disco-cli.nop_4").await?);
        let object = session.call(&nop, ()).await?;
        // Warms up threads, caches and registers.
        self.calls(session, &nop_4, Some(&object)).await?;
        let last = WorkerId::new(self.workers as u32 - 1);
        Ok(Report {
            workers: self.workers,
            session: kind.name(),
            cpus: available_parallelism().map_or(1, |cpus| cpus.get()),
            ready_ms: ready.as_secs_f64() * 1e3,
            sync_one: self.latency(async || session.sync_worker(last).await).await?,
            sync_all: self.latency(async || session.sync_all().await).await?,
            calls_0_args: self.calls(session, &nop, None).await?,
            calls_4_args: self.calls(session, &nop_4, Some(&object)).await?,
        })
    }

    async fn latency(&self, sync: impl AsyncFn() -> disco::Result<()>) -> disco::Result<Latency> {
        let warm_up = Instant::now();
        while warm_up.elapsed() < WARM_UP {
            sync().await?;
        }
        let mut times = Vec::with_capacity(self.rounds as usize);
        for _ in 0..self.rounds {
            let start = Instant::now();
            sync().await?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        let at = |part: f64| micros(times[((times.len() - 1) as f64 * part) as usize]);
        Ok(Latency { median_us: at(0.5), p99_us: at(0.99) })
    }

    /// Times calls without arguments, or, with `object`, calls with an int, a float, a string and `object`.
    async fn calls(&self, session: &dyn Session, function: &DRef, object: Option<&DRef>) -> disco::Result<Rate> {
        let calls = u64::from(self.rounds) * 100;
        session.sync_all().await?;
        let start = Instant::now();
        for _ in 0..calls {
            match object {
                Some(object) => session.call(function, (1, 2.0, "three", object)).await?,
                None => session.call(function, ()).await?,
            };
        }
        session.sync_all().await?;
        let elapsed = start.elapsed();
        Ok(Rate { per_call_us: micros(elapsed) / calls as f64, per_second: calls as f64 / elapsed.as_secs_f64() })
    }
}

impl Report {
    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let Self { workers, session, cpus, .. } = self;
        writeln!(out, "{workers} workers ({session}), {cpus} CPUs, ready in {:.1} ms", self.ready_ms)?;
        for (name, latency) in [("sync of one worker", &self.sync_one), ("sync of all", &self.sync_all)] {
            writeln!(out, "{name:<20} median {:>8.1} µs   p99 {:>8.1} µs", latency.median_us, latency.p99_us)?;
        }
        for (name, rate) in [("calls, 0 arguments", &self.calls_0_args), ("calls, 4 arguments", &self.calls_4_args)] {
            writeln!(out, "{name:<20} {:>8.3} µs per call   {:>10.0} per second", rate.per_call_us, rate.per_second)?;
        }
        Ok(())
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
