//! The data plane beside MPI libraries.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::conditions;
use super::programs::{self, MPIS, Mpi, Programs};
use super::tables::{cell, spread, winner};

pub(super) const OPERATIONS: [&str; 5] = ["all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"];
/// The largest size: 64 MiB, or 1 MiB for more than [`FEW_RANKS`] ranks or a quick run.
const LARGEST: [u64; 2] = [64 << 20, 1 << 20];
const FEW_RANKS: usize = 4;
/// Sizes in bytes.
const SIZES: [u64; 7] = [8, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
/// Sizes that decide which settings of a library are the fastest.
const TRIED: [u64; 3] = [8, 64 << 10, 1 << 20];

/// Kinds of sessions, with the name of Disco with such ranks.
const OURS: [(&str, &str); 2] = [("processes", "Disco, processes"), ("threads", "Disco, threads")];

/// Environment variables of a library.
type Setting = &'static [(&'static str, &'static str)];

/// Sizes in bytes with times in µs.
type Times = Vec<(u64, f64)>;

/// Times in µs of each start of the programs, by operation, system and size.
type Figures<'a> = BTreeMap<(&'a str, &'static str, u64), Vec<f64>>;

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
    out_of_place: Time,
}

#[derive(Deserialize)]
struct Time {
    time_us: f64,
}

/// Measures collectives of one number of ranks, `starts` times in turn, and prints the tables.
///
/// # Errors
/// Disco fails. A failure of a peer is printed.
pub(super) fn measure(
    programs: &Programs,
    operations: &[&str],
    ranks: usize,
    starts: usize,
    quick: bool,
) -> Result<()> {
    let largest = LARGEST[usize::from(quick || ranks > FEW_RANKS)];
    let sizes: Vec<u64> = SIZES.into_iter().filter(|size| *size <= largest).collect();
    let settings: Vec<_> = programs.mpis.iter().map(|(mpi, program)| fastest(mpi, program, ranks)).collect();
    let (mut figures, mut placement) = (Figures::new(), Vec::new());
    for start in 0..starts {
        for &operation in operations {
            eprintln!("== collectives: {operation}, {ranks} ranks, start {}", start + 1);
            let mut add = |system: &'static str, times: Times| {
                times.into_iter().for_each(|(size, us)| figures.entry((operation, system, size)).or_default().push(us));
            };
            for (kind, name) in OURS {
                for size in &sizes {
                    let report = disco(&programs.disco, operation, ranks, kind, *size)?;
                    add(name, report.rows.iter().map(|row| (*size, row.out_of_place.time_us)).collect());
                    placement.extend(report.hop_ns.into_iter().flatten());
                }
            }
            for ((mpi, program), setting) in programs.mpis.iter().zip(&settings) {
                let Some(setting) = setting else { continue };
                match theirs(mpi, program, ranks, setting, operation, &sizes, LIMIT) {
                    Ok(times) => add(mpi.name, times),
                    Err(error) => eprintln!("== {}: {error:#}", mpi.name),
                }
            }
        }
    }
    let libraries = programs.mpis.iter().zip(&settings).map(|((mpi, _), setting)| described(mpi, *setting));
    let conditions = conditions(&libraries.collect::<Vec<_>>(), &placement)?;
    for &operation in operations {
        println!("{}\n{conditions}", table(&figures, operation, ranks));
    }
    Ok(())
}

/// The report of `disco bench` of one size.
fn disco(disco: &Path, operation: &str, ranks: usize, kind: &str, size: u64) -> Result<Report> {
    let [ranks, size] = [ranks.to_string(), size.to_string()];
    let mut bench = Command::new(disco);
    bench.args(["bench", operation, "--json", "--session", kind, "--workers", &ranks]);
    bench.args(["--min-bytes", &size, "--max-bytes", &size]);
    programs::json(&mut bench)
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
    command.arg(operation).args(sizes.iter().map(u64::to_string));
    let text = programs::output_within(&mut command, limit)?;
    let line = |line: &str| {
        let (size, us) = line.split_once(' ').with_context(|| format!("not a size and a time: {line}"))?;
        Ok((size.parse()?, us.trim().parse()?))
    };
    text.lines().map(line).collect()
}

/// The settings with the smallest geometric mean of the times of `all_reduce`, or none if all trials fail or reach
/// their limit.
fn fastest(mpi: &'static Mpi, program: &Path, ranks: usize) -> Option<Setting> {
    let logarithm = |setting: &Setting| {
        let times = theirs(mpi, program, ranks, setting, "all_reduce", &TRIED, TRIAL_LIMIT);
        let times = times.inspect_err(|error| eprintln!("== {} with {setting:?}: {error:#}", mpi.name)).ok()?;
        Some((times.iter().map(|(_, us)| us.ln()).sum::<f64>(), *setting))
    };
    mpi.settings.iter().filter_map(logarithm).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, setting)| setting)
}

/// Name, version and settings of a library.
fn described(mpi: &Mpi, setting: Option<Setting>) -> String {
    let setting = match setting {
        None => format!("none of its settings finishes a trial within {} s", TRIAL_LIMIT.as_secs()),
        Some([]) => "defaults".to_owned(),
        Some(best) => best.iter().map(|(name, value)| format!("`{name}={value}`")).collect::<Vec<_>>().join(" "),
    };
    format!("{} {} ({setting})", mpi.name, mpi.version())
}

/// The times of an operation.
fn table(figures: &Figures<'_>, operation: &str, ranks: usize) -> String {
    let [(_, processes), (_, threads)] = OURS;
    let [intel, mpich, open] = MPIS.each_ref().map(|mpi| mpi.name);
    let systems = [processes, intel, mpich, open, threads];
    let mut text = format!("| {operation}, {ranks} ranks, µs | {} |\n|---|---|---|---|---|---|\n", systems.join(" | "));
    for bytes in SIZES {
        let times = systems.map(|system| spread(figures.get(&(operation, system, bytes))?.iter().copied()));
        if times.iter().any(Option::is_some) {
            // Ranks of MPI are processes, so our threads do not compete.
            let [a, b, c, d] = winner([times[0], times[1], times[2], times[3]]);
            let _ = writeln!(text, "| {} | {a} | {b} | {c} | {d} | {} |", named(bytes), cell(times[4]));
        }
    }
    text
}

fn named(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Figures, table};

    #[test]
    fn the_fastest_system_of_a_row_is_bold() {
        let figures = Figures::from([
            (("all_reduce", "Disco, processes", 8), vec![2.0]),
            (("all_reduce", "MPICH", 8), vec![1.0]),
        ]);
        let text = table(&figures, "all_reduce", 2);
        assert!(text.contains("| 8 B | 2.0 | – | **1.0** | – | – |"), "{text}");
    }
}
