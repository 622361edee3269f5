//! `disco bench`: options and measurements. `operation.rs`: the measured operations; `job.rs`: the worker functions

mod job;
mod operation;

use std::io::Write;
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use disco::{DRef, DType, Reduction, Session, SessionKind, Shape, World, backend, block_on, placement};
use indicatif::{ProgressBar, ProgressStyle};

use self::job::{PREPARE, RUN, VERIFY};
use self::operation::Operation;
use crate::output::json;
use crate::report::{Figures, Report, Row};
use crate::session::{self, Layout};
use crate::values;

/// Target duration of one measurement without `--iters`, in seconds.
const TARGET_SECONDS: f64 = 0.02;
/// Minimum number of iterations without `--iters`.
const MIN_ITERS: u64 = 5;
/// Duration of the warm-up before the first size. Meanwhile the system moves the threads to separate cores.
const WARM_UP: Duration = Duration::from_millis(200);
const PROGRESS_TEMPLATE: &str = "[{elapsed_precise}] {bar:30} {pos}/{len} sizes, {msg}";

/// Measure latency and bandwidth of an operation, with the columns and the short options of nccl-tests
///
/// Times are those of the slowest rank. The result of each size is checked once before it is timed: the column `wrong`
/// counts wrong elements, and the exit status is 1 if there are any. `Avg bus bandwidth` is the mean of all rows.
#[derive(Args)]
pub(crate) struct Bench {
    /// Operation to measure
    operation: Operation,
    /// Backend of the data plane
    #[arg(long, default_value = "local", value_parser = values::backends())]
    backend: String,
    /// Number of workers [default: 2; in a program of `disco run` on several machines, its workers]
    #[arg(short = 'g', long, value_parser = values::workers)]
    workers: Option<usize>,
    /// Kind of session: where the workers run [default: processes for backend mpi and with --apart, two
    /// nodes of this machine for backend tcp, else threads]
    #[arg(long, value_parser = values::sessions())]
    session: Option<SessionKind>,
    /// Make worker 0 a process, too, so that this process outlives any worker
    #[arg(long)]
    apart: bool,
    /// Device of each worker, separated by commas [default: worker i uses device i]
    #[arg(long, value_delimiter = ',', value_name = "ORDINALS")]
    devices: Vec<i32>,
    /// Smallest size in bytes, such as 8, 64K or 1M: of the larger of a rank's source and destination
    #[arg(short = 'b', long, default_value = "8", value_parser = values::size)]
    min_bytes: usize,
    /// Largest size in bytes
    #[arg(short = 'e', long, default_value = "64M", value_parser = values::size)]
    max_bytes: usize,
    /// Factor from one size to the next
    #[arg(short = 'f', long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    factor: u32,
    /// Timed iterations per size [default: as many as fit in about 20 ms, at least 5]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..))]
    iters: Option<u32>,
    /// Warm-up iterations per size, before the clock starts. Unless it is 0, the smallest size also runs for about 200
    /// ms before the first measurement
    #[arg(short = 'w', long, default_value_t = 3)]
    warmup_iters: u32,
    /// Whether to check results: 1 checks each size once, 0 checks none
    #[arg(short = 'c', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    check: u8,
    /// Element type
    #[arg(long, default_value = "f32", value_parser = values::dtypes())]
    dtype: DType,
    /// Reduction [default: sum]
    #[arg(long = "op", value_parser = values::reductions())]
    reduction: Option<Reduction>,
    /// Root of rooted operations [default: 0]
    #[arg(long)]
    root: Option<u32>,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub(crate) fn run(mut self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let probe = backend::find(&self.backend)?.probe()?;
        let (kind, builder) = if let Some(settings) = session::of_run()? {
            let is_told = self.workers.is_some() || self.session.is_some() || self.apart;
            ensure!(!is_told, "--workers, --session and --apart have no effect: `disco run` has them for its program");
            self.workers = Some(settings.workers);
            self.check_options()?;
            (settings.session, settings.builder())
        } else {
            self.check_options()?;
            let layout = Layout::new(self.session, Layout::usual(&self.backend), self.apart)?;
            layout.check_reach(&self.backend, World::new(self.workers(), 1)?)?;
            layout.start_ranks(&self.backend, self.workers(), false)?;
            (layout.kind, layout.builder(self.workers()))
        };
        let hop = || placement::cache_line_latency().map(|hop| hop.as_nanos());
        let mut report = Report {
            version: env!("CARGO_PKG_VERSION").into(),
            operation: self.operation.name().into(),
            backend: self.backend.clone(),
            library: format!("{} {}", probe.library, probe.version),
            workers: self.workers(),
            session: kind.name().into(),
            cpus: available_parallelism().map_or(1, usize::from),
            hop_ns: [hop(), None],
            initial_warmup_iters: 0,
            rows: Vec::new(),
            avg_busbw: None,
        };
        let session = builder.start()?;
        block_on(session.init_ccl(&self.backend, &self.devices))?;
        if !self.json {
            report.print_header(out)?;
        }
        // The bar is hidden unless standard error is a terminal.
        let bar =
            ProgressBar::new(self.sizes().count() as u64).with_style(ProgressStyle::with_template(PROGRESS_TEMPLATE)?);
        if self.warmup_iters > 0 {
            bar.set_message("warm-up");
            report.initial_warmup_iters = block_on(self.warm_up(&session))?;
        }
        for bytes in self.sizes() {
            bar.set_message(format!("{bytes} bytes"));
            let row = block_on(self.row(&session, bytes))?;
            if !self.json {
                bar.suspend(|| row.print(out).and_then(|()| out.flush()))?;
            }
            bar.inc(1);
            report.rows.push(row);
        }
        bar.finish_and_clear();
        block_on(session.shutdown())?;
        report.hop_ns[1] = hop();
        report.avg_busbw = Some(report.mean_busbw());
        let written = if self.json { json(out, &report) } else { report.print_footer(out).map_err(Into::into) };
        // Wrong elements fail the command even if its reader has closed the pipe.
        match report.wrong().unwrap_or(0) {
            0 => written.map(|()| ExitCode::SUCCESS),
            _ => Ok(ExitCode::FAILURE),
        }
    }

    /// Rejects contradictory options and options that have no effect.
    fn check_options(&self) -> anyhow::Result<()> {
        let (operation, workers) = (&self.operation, self.workers());
        let name = operation.name();
        let (min, max) = (self.min_bytes, self.max_bytes);
        ensure!(min <= max, "--min-bytes is larger than --max-bytes: {min} bytes and {max} bytes");
        if let Some(root) = self.root {
            ensure!((root as usize) < workers, "--root {root} is out of range: the session has {workers} workers");
            ensure!(operation.has_root(), "--root {root} has no effect: {name} has no root");
        }
        if let Some(reduction) = self.reduction {
            ensure!(operation.reduces(), "--op {} has no effect: {name} does not reduce", reduction.name());
        }
        values::check_devices(&self.backend, &self.devices)
    }

    fn workers(&self) -> usize {
        self.workers.unwrap_or(2)
    }

    fn root(&self) -> u32 {
        self.root.unwrap_or(0)
    }

    fn reduction(&self) -> Reduction {
        self.reduction.unwrap_or(Reduction::Sum)
    }

    fn sizes(&self) -> impl Iterator<Item = usize> {
        let factor = self.factor as usize;
        let sizes = std::iter::successors(Some(self.min_bytes), move |size| size.checked_mul(factor));
        sizes.take_while(|size| *size <= self.max_bytes)
    }

    /// Elements per block and number of blocks of a size: at least one element, so that there is a result to check.
    fn elements(&self, bytes: usize) -> (usize, usize) {
        let blocks = if self.operation.has_blocks() { self.workers() } else { 1 };
        ((bytes / self.dtype.size() / blocks).max(1), blocks)
    }

    /// Runs the smallest size for [`WARM_UP`], in calls of 1, 2, 4, ... iterations. Returns the number of iterations.
    async fn warm_up(&self, session: &dyn Session) -> disco::Result<u64> {
        let start = Instant::now();
        let run = session.function(RUN).await?;
        let job = self.job(session, self.elements(self.min_bytes).0, false).await?;
        let (mut total, mut iters) = (0, 1);
        while start.elapsed() < WARM_UP {
            let _: Vec<f64> = on_all(session, &session.call(&run, (&job, 0, iters as i64)).await?).await?;
            (total, iters) = (total + iters, iters * 2);
        }
        Ok(total)
    }

    async fn row(&self, session: &dyn Session, bytes: usize) -> disco::Result<Row> {
        let (count, blocks) = self.elements(bytes);
        let size = count * blocks * self.dtype.size();
        let in_place =
            if self.operation.has_in_place() { Some(self.measure(session, count, size, true).await?) } else { None };
        Ok(Row {
            size,
            count,
            dtype: self.dtype.name().into(),
            redop: self.operation.reduces().then(|| self.reduction().name().into()),
            root: self.operation.has_root().then_some(self.root()),
            out_of_place: self.measure(session, count, size, false).await?,
            in_place,
        })
    }

    /// Makes the operation and its tensors on all workers.
    async fn job(&self, session: &dyn Session, count: usize, in_place: bool) -> disco::Result<DRef> {
        let prepare = session.function(PREPARE).await?;
        let plan = Shape::from([count as i64, self.root().into(), in_place.into()]);
        session.call(&prepare, (self.operation.name(), plan, self.reduction().name(), self.dtype)).await
    }

    async fn measure(
        &self,
        session: &dyn Session,
        count: usize,
        size: usize,
        in_place: bool,
    ) -> disco::Result<Figures> {
        let verify = session.function(VERIFY).await?;
        let run = session.function(RUN).await?;
        let job = self.job(session, count, in_place).await?;
        let wrong = match self.check {
            0 => None,
            _ => {
                let wrong: Vec<i64> = on_all(session, &session.call(&verify, (&job,)).await?).await?;
                Some(wrong.into_iter().sum::<i64>() as u64)
            }
        };
        let warmup_iters = u64::from(self.warmup_iters);
        let time = async |iters: u64| -> disco::Result<f64> {
            let args = (&job, warmup_iters as i64, iters as i64);
            let seconds: Vec<f64> = on_all(session, &session.call(&run, args).await?).await?;
            Ok(seconds.into_iter().fold(0.0, f64::max) / iters as f64)
        };
        let iters = match self.iters {
            Some(iters) => iters.into(),
            None => (TARGET_SECONDS / time(MIN_ITERS).await?).clamp(MIN_ITERS as f64, 1e6) as u64,
        };
        let seconds = time(iters).await?;
        let algbw = size as f64 / seconds / 1e9;
        let busbw = algbw * self.operation.bus_factor(self.workers());
        Ok(Figures { time_us: seconds * 1e6, algbw, busbw, wrong, iters, warmup_iters })
    }
}

/// The value of a handle on each worker.
async fn on_all<T: disco::function::FromArg>(session: &dyn Session, handle: &DRef) -> disco::Result<Vec<T>> {
    let mut values = Vec::new();
    for worker in session.world().workers() {
        values.push(session.get(handle, worker).await?);
    }
    Ok(values)
}
