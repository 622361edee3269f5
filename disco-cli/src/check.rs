//! `disco check`

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use disco::{Session, SessionKind, World, backend};
use disco_conformance::communicator::Suite;
use disco_conformance::{Check as Case, Harness, Outcome, SessionSpec};
use serde::Serialize;

use crate::output::json;
use crate::session::Layout;
use crate::values;

/// Check a backend on this machine: all its operations on all element types, and its behavior on failures
#[derive(Args)]
pub(crate) struct Check {
    /// Backend of the data plane
    #[arg(long, default_value = "local", value_parser = values::backends())]
    backend: String,
    /// Number of workers
    #[arg(long, default_value_t = 4, value_parser = values::workers)]
    workers: usize,
    /// Number of equal groups that the workers are split into
    #[arg(long, default_value_t = 1, value_parser = values::groups)]
    groups: usize,
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
    /// Run only checks whose name contains this text; a name looks like all_reduce::bf16::avg
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

/// The harness of the backend, world and session that the options select.
#[derive(Debug)]
struct CliHarness {
    backend: String,
    world: World,
    layout: Layout,
    devices: Vec<i32>,
}

/// One check, as JSON.
#[derive(Serialize)]
struct Row {
    name: String,
    outcome: &'static str,
    /// Number of sub-cases executed, summed over all workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    executed: Option<usize>,
    /// Why it failed or was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The results of all checks, as JSON.
#[derive(Default, Serialize)]
struct Report {
    checks: Vec<Row>,
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Harness for CliHarness {
    fn name(&self) -> &str {
        &self.backend
    }

    fn backend(&self) -> &str {
        &self.backend
    }

    fn worlds(&self) -> Vec<World> {
        vec![self.world]
    }

    fn start(&self, spec: &SessionSpec) -> disco::Result<Box<dyn Session>> {
        let builder = self.layout.builder(spec.world.size()).groups(spec.world.groups());
        Ok(Box::new(builder.check(spec.check).collective_deadline(spec.collective_deadline).start()?))
    }

    fn devices(&self) -> Vec<i32> {
        self.devices.clone()
    }

    fn is_exact(&self) -> bool {
        ["local", "tcp"].contains(&&*self.backend)
    }

    fn detects_mismatches(&self) -> bool {
        self.backend == "local"
    }

    fn detects_dropped_peers(&self) -> bool {
        self.is_exact()
    }
}

impl Check {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let world = World::new(self.workers, self.groups)?;
        backend::find(&self.backend)?.probe()?;
        values::check_devices(&self.backend, &self.devices)?;
        let cases: Vec<Case> = Suite::checks().into_iter().filter(|case| case.name().contains(&self.filter)).collect();
        if cases.is_empty() {
            anyhow::bail!("--filter matches no check: no name contains `{}`", self.filter);
        }
        let layout = Layout::new(self.session, Layout::usual(&self.backend), self.apart)?;
        layout.check_reach(&self.backend, world)?;
        layout.start_ranks(&self.backend, self.workers, true)?;
        let suite = Suite::new(Arc::new(CliHarness { layout, backend: self.backend, world, devices: self.devices }));
        let mut report = Report::default();
        for case in &cases {
            let row = Row::new(case.name(), suite.run(case));
            if !self.json {
                row.print(out)?;
                out.flush()?;
            }
            report.count(row);
        }
        let closed = suite.close();
        let written = if self.json {
            json(out, &report)
        } else {
            let Report { passed, failed, skipped, .. } = report;
            writeln!(out, "{passed} passed, {failed} failed, {skipped} skipped").map_err(Into::into)
        };
        closed?;
        // Failures fail the command even if its reader has closed the pipe.
        if report.failed > 0 {
            return Ok(report.status());
        }
        written.map(|()| report.status())
    }
}

impl Report {
    fn status(&self) -> ExitCode {
        if self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn count(&mut self, row: Row) {
        match row.outcome {
            "ok" => self.passed += 1,
            "failed" => self.failed += 1,
            _ => self.skipped += 1,
        }
        self.checks.push(row);
    }
}

impl Row {
    fn new(name: &str, outcome: Outcome) -> Self {
        let (outcome, executed, reason) = match outcome {
            Outcome::Passed { executed } => ("ok", Some(executed), None),
            Outcome::Skipped { reason } => ("skipped", None, Some(reason)),
            Outcome::Failed { why } => ("failed", None, Some(why)),
        };
        Self { name: name.to_owned(), outcome, executed, reason }
    }

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let Self { name, outcome, reason, .. } = self;
        let outcome = if *outcome == "failed" { "FAILED" } else { outcome };
        match reason {
            None => writeln!(out, "{name} {outcome}"),
            Some(reason) => writeln!(out, "{name} {outcome}: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_prints_its_reason_and_fails_the_command() {
        let why = "3 workers: element 0: expected 3, got 4".to_owned();
        let row = Row::new("broadcast::i8", Outcome::Failed { why });
        let mut line = Vec::new();
        row.print(&mut line).unwrap();
        assert_eq!(line, b"broadcast::i8 FAILED: 3 workers: element 0: expected 3, got 4\n");
        let mut report = Report::default();
        report.count(row);
        assert_eq!((report.failed, report.status()), (1, ExitCode::FAILURE));
    }
}
