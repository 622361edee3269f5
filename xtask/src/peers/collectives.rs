//! The data plane beside MPI libraries.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::data::Data;
use super::programs::{self, Mpi, Programs};

pub(crate) const OPERATIONS: [&str; 5] = ["all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"];
/// The largest size: 64 MiB, or 1 MiB for more than [`FEW_RANKS`] ranks or a quick run.
const LARGEST: [u64; 2] = [64 << 20, 1 << 20];
const FEW_RANKS: usize = 4;
/// Sizes that decide which settings of a library are the fastest.
const TRIED: [u64; 3] = [8, 64 << 10, 1 << 20];

/// Environment variables of a library.
type Setting = &'static [(&'static str, &'static str)];

/// Sizes in bytes with times in µs.
type Times = Vec<(u64, f64)>;

/// Limit of one trial of settings: some libraries take tens of milliseconds for each operation if there are more ranks
/// than CPUs.
const TRIAL_LIMIT: Duration = Duration::from_secs(8);
/// Limit of one operation at all sizes.
const LIMIT: Duration = Duration::from_secs(60);

/// The fields of the output of `disco bench --json` that the tables need.
#[derive(Deserialize)]
struct Report {
    hop_ns: [Option<u64>; 2],
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    size: u64,
    out_of_place: Figures,
}

#[derive(Deserialize)]
struct Figures {
    time_us: f64,
}

/// The name of Disco with ranks of a kind.
pub(crate) fn ours(kind: &str) -> String {
    format!("Disco, {kind}")
}

/// Sizes in bytes: 8, and from 64 to the largest with a factor of 4.
fn sizes(largest: u64) -> Vec<u64> {
    let rest = std::iter::successors(Some(64), |size| Some(size * 4)).take_while(|size| *size <= largest);
    std::iter::once(8).chain(rest).collect()
}

/// Measures collectives, `starts` times in turn.
///
/// # Errors
/// Disco fails. A failure of a peer is printed.
pub(crate) fn measure(
    data: &mut Data,
    programs: &Programs,
    operations: &[&str],
    ranks: &[usize],
    starts: usize,
    quick: bool,
) -> Result<()> {
    for &ranks in ranks {
        let sizes = sizes(LARGEST[usize::from(quick || ranks > FEW_RANKS)]);
        let settings: Vec<_> = programs.mpis.iter().map(|(mpi, program)| fastest(data, mpi, program, ranks)).collect();
        let part = format!("collectives, {ranks} ranks");
        for start in 0..starts {
            for operation in operations {
                eprintln!("== collectives: {operation}, {ranks} ranks, start {}", start + 1);
                for kind in ["processes", "threads"] {
                    let (times, placement) = disco(programs, operation, ranks, kind, &sizes)?;
                    for (index, ns) in placement.into_iter().enumerate() {
                        let is_first = start == 0 && operation == &operations[0] && kind == "processes" && index == 0;
                        data.placed(&part, ns, is_first);
                    }
                    let entry = data.collective(operation, ranks, &ours(kind));
                    times.into_iter().for_each(|(bytes, us)| entry.add(start, bytes, us));
                }
                for ((mpi, program), setting) in programs.mpis.iter().zip(&settings) {
                    let Some(setting) = setting else { continue };
                    match theirs(mpi, program, ranks, setting, operation, &sizes, LIMIT) {
                        Ok(times) => {
                            let entry = data.collective(operation, ranks, mpi.name);
                            times.into_iter().for_each(|(bytes, us)| entry.add(start, bytes, us));
                        }
                        Err(error) => eprintln!("== {}: {error:#}", mpi.name),
                    }
                }
            }
        }
    }
    Ok(())
}

/// Notes the latency of a cache line between two threads, as `disco bench` measures it.
pub(crate) fn probe(data: &mut Data, disco: &Path, part: &str, is_first: bool) -> Result<()> {
    let args = ["bench", "all_reduce", "--json", "--max-bytes", "8", "--iters", "1", "--warmup-iters", "0"];
    let report: Report = programs::json(Command::new(disco).args(args))?;
    for (index, ns) in report.hop_ns.into_iter().flatten().enumerate() {
        data.placed(part, ns, is_first && index == 0);
    }
    Ok(())
}

/// Times by size, and the placement before and after.
fn disco(programs: &Programs, operation: &str, ranks: usize, kind: &str, sizes: &[u64]) -> Result<(Times, Vec<u64>)> {
    let (mut times, mut placement) = (Vec::new(), Vec::new());
    let last = sizes.last().context("there are sizes")?;
    for (first, last) in [(8, 8), (64, *last)] {
        let mut bench = Command::new(&programs.disco);
        bench.args(["bench", operation, "--json", "--session", kind, "--factor", "4"]);
        bench.args(["--workers".to_owned(), ranks.to_string()]);
        bench.args(["--min-bytes".to_owned(), first.to_string(), "--max-bytes".to_owned(), last.to_string()]);
        let report: Report = programs::json(&mut bench)?;
        // A block has at least one element, so the smallest size of 4 blocks is 16 bytes.
        times.extend(report.rows.iter().zip(if first == 8 { &sizes[..1] } else { &sizes[1..] }).map(|(row, size)| {
            debug_assert!(row.size == *size || first == 8);
            (*size, row.out_of_place.time_us)
        }));
        placement.extend(report.hop_ns.into_iter().flatten());
    }
    Ok((times, placement))
}

/// Times by size of an MPI library.
fn theirs(
    mpi: &Mpi,
    program: &Path,
    ranks: usize,
    setting: &[(&str, &str)],
    operation: &str,
    sizes: &[u64],
    limit: Duration,
) -> Result<Times> {
    let mut command = mpi.command(program, ranks, setting);
    command.args(["bench", operation]).args(sizes.iter().map(u64::to_string));
    let text = programs::output_within(&mut command, limit)?;
    let line = |line: &str| {
        let (size, us) = line.split_once(' ').with_context(|| format!("not a size and a time: {line}"))?;
        Ok((size.parse()?, us.trim().parse()?))
    };
    text.lines().map(line).collect()
}

/// The settings with the smallest geometric mean of the times of `all_reduce`, or none if all trials fail or reach
/// their limit. Notes them.
fn fastest(data: &mut Data, mpi: &'static Mpi, program: &Path, ranks: usize) -> Option<Setting> {
    let logarithm = |setting: &Setting| {
        let times = theirs(mpi, program, ranks, setting, "all_reduce", &TRIED, TRIAL_LIMIT);
        let times = times.inspect_err(|error| eprintln!("== {} with {setting:?}: {error:#}", mpi.name)).ok()?;
        Some((times.iter().map(|(_, us)| us.ln()).sum::<f64>(), *setting))
    };
    let best = mpi.settings.iter().filter_map(logarithm).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, setting)| setting);
    let text = match best {
        None => format!("none finishes a trial within {} s", TRIAL_LIMIT.as_secs()),
        Some([]) => "defaults".to_owned(),
        Some(best) => best.iter().map(|(name, value)| format!("`{name}={value}`")).collect::<Vec<_>>().join(" "),
    };
    data.settings.insert(format!("{ranks} ranks, {}", mpi.name), text);
    best
}
