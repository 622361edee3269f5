//! `cargo xtask peers`: the same jobs by Disco, TVM's Disco and MPI libraries, in turn on this machine.
//!
//! The peers are fetched by hash and driven through their public interfaces: `tvm.cc` calls the C++ API of TVM's Disco,
//! `ranks.c` the blocking functions of MPI. Results go to `docs/performance/peers.json`, from which the tables of the
//! documents are rendered.

mod calls;
mod collectives;
mod commit;
mod data;
mod fairness;
mod programs;
mod render;

use std::fs;
use std::process::Command;

use anyhow::Result;
use clap::{Args, ValueEnum};

use self::data::{Data, Machine};
use self::programs::{MPIS, Programs};

pub(crate) use self::programs::ranks_of_open_mpi;
pub(crate) use self::render::stale;

/// Options of `cargo xtask peers`.
#[derive(Args, Debug)]
pub(crate) struct Peers {
    /// Parts to measure [default: all]; `render` only writes the tables from the file
    parts: Vec<Part>,
    /// Only compare calls and syncs with those of this commit: with as many workers as processors, and with four times as
    /// many. The first comparison builds the commit's `disco` in `target/peers`
    #[arg(long, value_name = "COMMIT", conflicts_with_all = ["parts", "operations", "ranks", "idle_seconds"])]
    commit: Option<String>,
    /// Measure once and shorter, in about two minutes
    #[arg(long)]
    quick: bool,
    /// Number of process starts of each program, in turn [default: 3, or 1 with --quick; with --commit 9, or 3]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    starts: Option<u16>,
    /// Collectives to measure [default: all]
    #[arg(long, value_delimiter = ',')]
    operations: Vec<String>,
    /// Numbers of ranks of collectives
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4])]
    ranks: Vec<usize>,
    /// Duration of the measurement of idle sessions, in seconds [default: 60, or 5 with --quick]
    #[arg(long)]
    idle_seconds: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Part {
    /// Control plane: calls, syncs, start-up, and memory behind a stuck worker
    Calls,
    /// Data plane: collectives of 8 B to 64 MiB
    Collectives,
    /// CPU time of idle sessions and of a rank that waits
    Idle,
    /// A computing program beside syncs and collectives
    Beside,
    /// Only the tables
    Render,
}

impl Peers {
    /// Measures, saves the results, and writes tables.
    ///
    /// # Errors
    /// Our programs can't be built or fail, or a file can't be written. A peer that fails is left out.
    pub(crate) fn run(self) -> Result<()> {
        if let Some(commit) = &self.commit {
            // Starts differ by half, because the system places threads in other ways.
            let starts = self.starts.map_or(if self.quick { 3 } else { 9 }, usize::from);
            return commit::compare(commit, starts, if self.quick { "500" } else { "2000" });
        }
        let mut data = Data::load()?;
        if self.parts != [Part::Render] {
            let programs = Programs::build()?;
            describe(&mut data, &programs)?;
            let has = |part| self.parts.is_empty() || self.parts.contains(&part);
            if has(Part::Calls) {
                calls::measure(&mut data, &programs, self.starts(), self.quick)?;
                data.save()?;
            }
            if has(Part::Collectives) {
                let operations: Vec<&str> = if self.operations.is_empty() {
                    collectives::OPERATIONS.to_vec()
                } else {
                    self.operations.iter().map(String::as_str).collect()
                };
                collectives::measure(&mut data, &programs, &operations, &self.ranks, self.starts(), self.quick)?;
                data.save()?;
            }
            if has(Part::Idle) {
                let seconds = self.idle_seconds.unwrap_or(if self.quick { 5 } else { 60 });
                fairness::idle(&mut data, &programs, seconds)?;
                data.save()?;
            }
            if has(Part::Beside) {
                fairness::beside(&mut data, &programs, if self.quick { 1 } else { 4 })?;
                data.save()?;
            }
        }
        render::write(&data)
    }

    fn starts(&self) -> usize {
        self.starts.map_or(if self.quick { 1 } else { 3 }, usize::from)
    }
}

/// Notes machine and versions.
fn describe(data: &mut Data, programs: &Programs) -> Result<()> {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    data.machine = Machine {
        cpu: cpu.map_or_else(|| "unknown".into(), |(_, name)| name.into()),
        cpus: std::thread::available_parallelism()?.get(),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into(),
    };
    let version = programs::output(Command::new(&programs.disco).arg("--version"))?;
    data.versions.insert(data::DISCO.into(), version.trim().trim_start_matches("disco ").into());
    data.versions.insert(data::TVM.into(), "0.27.0.post1".into());
    for mpi in &MPIS {
        data.versions.insert(mpi.name.into(), mpi.version().into());
    }
    Ok(())
}
