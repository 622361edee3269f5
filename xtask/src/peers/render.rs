//! Tables of the documents, between `<!-- peers: NAME -->` and `<!-- peers end -->`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};

use super::collectives::ours;
use super::data::{Calls, DISCO, Data, Ping, TVM, TVM_NODELAY, spread};
use crate::built::root;

/// Documents with tables.
const DOCUMENTS: [&str; 3] = ["README.md", "docs/performance.md", "docs/maintainers/performance.md"];
const BEGIN: &str = "<!-- peers: ";
const END: &str = "<!-- peers end -->";

/// Sizes with a row. The file has more.
const SHOWN: [u64; 7] = [8, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];

pub(super) type Metric = (&'static str, &'static str, fn(&Ping) -> f64);
/// Figures of the control plane: name, unit, and value.
pub(super) const METRICS: [Metric; 4] = [
    ("call with 4 arguments", "µs", |ping| ping.calls_4_args.per_call_us),
    ("sync of one worker", "µs", |ping| ping.sync_one.median_us),
    ("sync of all workers", "µs", |ping| ping.sync_all.median_us),
    ("start-up", "ms", |ping| ping.ready_ms),
];

/// Documents whose tables differ from the measurements.
///
/// # Errors
/// A document or the measurements can't be read, or a table has no rendering.
pub(crate) fn stale() -> Result<Vec<String>> {
    let data = Data::load()?;
    let mut wrong = Vec::new();
    for name in DOCUMENTS {
        let text = fs::read_to_string(root().join(name))?;
        if rendered(&text, &data).with_context(|| name.to_owned())? != text {
            wrong.push(format!("{name}: its tables differ from the measurements; run `cargo xtask peers render`"));
        }
    }
    Ok(wrong)
}

/// Writes the tables into the documents.
pub(crate) fn write(data: &Data) -> Result<()> {
    for name in DOCUMENTS {
        let path = root().join(name);
        let text = fs::read_to_string(&path)?;
        let new = rendered(&text, data).with_context(|| name.to_owned())?;
        if new != text {
            fs::write(&path, new)?;
        }
    }
    Ok(())
}

/// The text with all tables rendered.
fn rendered(text: &str, data: &Data) -> Result<String> {
    let mut parts = text.split(BEGIN);
    let mut new = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(" -->").context("a table has a name")?;
        let (_, after) = rest.split_once(END).with_context(|| format!("the table {name} has no end"))?;
        let table = match name {
            "conditions" => conditions(data),
            "calls" => METRICS.iter().map(|metric| calls(data, metric)).collect::<Vec<_>>().join("\n"),
            "summary" => summary(data),
            "memory" => memory(data),
            "settings" => settings(data),
            "idle" => idle(data),
            "beside" => beside(data),
            _ => {
                let (operation, ranks) = name.rsplit_once(' ').with_context(|| format!("there is no table {name}"))?;
                collective(data, operation, ranks.parse().with_context(|| format!("there is no table {name}"))?)
            }
        };
        write!(new, "{BEGIN}{name} -->\n{table}\n{END}{after}")?;
    }
    Ok(new)
}

fn conditions(data: &Data) -> String {
    let machine = &data.machine;
    let versions: Vec<String> = data.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let placement = data.placement.iter().map(|(part, [low, high])| format!("{low} to {high} ns ({part})"));
    format!(
        "Machine: {} CPUs of {}, Linux {}. Versions: {}. A cache line took from one thread to another: {}.\n",
        machine.cpus,
        machine.cpu,
        machine.kernel,
        versions.join(", "),
        placement.collect::<Vec<_>>().join(", ")
    )
}

fn settings(data: &Data) -> String {
    let rows = data.settings.iter().map(|(name, setting)| format!("| {name} | {setting} |\n"));
    format!("| ranks, library | fastest settings |\n|---|---|\n{}", rows.collect::<String>())
}

/// Values of one figure over the starts.
fn values(data: &Data, kind: &str, workers: usize, system: &str, value: fn(&Ping) -> f64) -> Option<[f64; 3]> {
    let is_it = |it: &&Calls| it.kind == kind && it.workers == workers && it.system == system;
    spread(data.calls.iter().find(is_it)?.starts.iter().map(value))
}

fn calls(data: &Data, (name, unit, value): &Metric) -> String {
    let mut text =
        format!("| {name}, {unit} | {DISCO} | {TVM} | {TVM_NODELAY} | TVM / Disco |\n|---|---|---|---|---|\n");
    for of in data.calls.iter().filter(|of| of.system == DISCO) {
        let all = [DISCO, TVM, TVM_NODELAY].map(|system| values(data, &of.kind, of.workers, system, *value));
        let kind = sessions(&of.kind);
        let best = all[1..].iter().flatten().map(|it| it[0]).reduce(f64::min);
        let ratio = best.zip(all[0]).map_or("–".into(), |(best, ours)| format!("{:.1}", best / ours[0]));
        let [disco, tvm, nodelay] = winner(all);
        let _ = writeln!(text, "| {kind}: {} | {disco} | {tvm} | {nodelay} | {ratio} |", of.workers);
    }
    text
}

/// The label of a kind of session, before the number of workers.
fn sessions(kind: &str) -> &str {
    if kind == "nodes" { "workers on 2 nodes" } else { kind }
}

/// The ranges at 8 workers, for the README.
fn summary(data: &Data) -> String {
    let mut text =
        format!("| 8 workers: threads / processes / 2 nodes × 4 | {DISCO} | {TVM}'s Disco |\n|---|---|---|\n");
    for (name, unit, value) in &METRICS[..3] {
        let cells = [[DISCO; 3], [TVM, TVM, TVM_NODELAY]].map(|systems| {
            let ranges = ["threads", "processes", "nodes"].into_iter().zip(systems).map(|(kind, system)| {
                let range = values(data, kind, 8, system, *value);
                range.map_or("–".into(), |[_, low, high]| between(low, high))
            });
            ranges.collect::<Vec<_>>().join(" / ")
        });
        let _ = writeln!(text, "| {name} | {} {unit} | {} {unit} |", cells[0], cells[1]);
    }
    text
}

fn memory(data: &Data) -> String {
    let mut text = "| workers | system | calls queued | growth of memory | bound |\n|---|---|---|---|---|\n".to_owned();
    for of in &data.stuck {
        let bound = if of.queued.bounded { "yes: the next call waits" } else { "none reached" };
        let mib = of.queued.bytes as f64 / f64::from(1 << 20);
        let (workers, kind, system) = (of.workers, sessions(&of.kind), &of.system);
        let _ = writeln!(text, "| {kind}: {workers} | {system} | {} | {mib:.1} MiB | {bound} |", of.queued.calls);
    }
    text
}

fn collective(data: &Data, operation: &str, ranks: usize) -> String {
    let [processes, threads] = ["processes", "threads"].map(ours);
    let all: Vec<_> = data.collectives.iter().filter(|of| of.operation == operation && of.ranks == ranks).collect();
    let time = |system: &str, bytes: u64| {
        let of = all.iter().find(|of| of.system == system)?;
        spread(of.sizes.iter().find(|size| size.bytes == bytes)?.us.iter().copied())
    };
    if all.is_empty() {
        return format!("No measurements of {operation} with {ranks} ranks.\n");
    }
    let systems = [&processes, "Intel MPI", "MPICH", "Open MPI", &threads];
    let mut text = format!("| {operation}, {ranks} ranks, µs | {} |\n|---|---|---|---|---|---|\n", systems.join(" | "));
    for bytes in SHOWN {
        let times = systems.map(|system| time(system, bytes));
        if times.iter().any(Option::is_some) {
            // Ranks of MPI are processes, so our threads do not compete.
            let [a, b, c, d] = winner([times[0], times[1], times[2], times[3]]);
            let _ = writeln!(text, "| {} | {a} | {b} | {c} | {d} | {} |", size(bytes), cell(times[4]));
        }
    }
    text
}

fn idle(data: &Data) -> String {
    let mut jobs: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for of in &data.idle {
        jobs.entry(&of.job).or_default().push(format!("{} {:.3} %", of.system, of.percent));
    }
    let rows: String = jobs.iter().map(|(job, all)| format!("| {job} | {} |\n", all.join(", "))).collect();
    format!("| job | CPU time, in percent of one CPU |\n|---|---|\n{rows}")
}

fn beside(data: &Data) -> String {
    let mut text =
        "| job | system | rate alone, 1/s | rate beside, 1/s | computing program keeps |\n|---|---|---|---|---|\n"
            .to_owned();
    for of in &data.beside {
        let (job, system, alone, beside) = (&of.job, &of.system, of.alone, of.beside);
        let _ = writeln!(text, "| {job} | {system} | {alone:.0} | {beside:.0} | {:.0} % |", of.compute_percent);
    }
    text
}

/// Cells of a row, with the smallest median in bold.
fn winner<const N: usize>(all: [Option<[f64; 3]>; N]) -> [String; N] {
    let best = all.iter().flatten().map(|it| it[0]).fold(f64::INFINITY, f64::min);
    all.map(|it| match it {
        Some(it) if it[0] <= best => format!("**{}**", cell(Some(it))),
        it => cell(it),
    })
}

/// A median with its range, if there are several values.
fn cell(value: Option<[f64; 3]>) -> String {
    match value {
        None => "–".into(),
        Some([median, low, high]) if low == high => number(median),
        Some([median, low, high]) => format!("{} ({})", number(median), between(low, high)),
    }
}

fn between(low: f64, high: f64) -> String {
    let (low, high) = (number(low), number(high));
    if low == high { low } else { format!("{low}–{high}") }
}

/// Two significant digits, or all before the decimal point.
fn number(value: f64) -> String {
    match value {
        _ if value >= 9.95 => format!("{value:.0}"),
        _ if value >= 0.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::{number, rendered, winner};
    use crate::peers::data::{Data, spread};

    fn data() -> Data {
        let mut data = Data::default();
        for (system, us) in [("Disco, processes", 2.0), ("MPICH", 1.0)] {
            data.collective("all_reduce", 2, system).add(0, 8, us);
        }
        data
    }

    #[test]
    fn the_fastest_system_of_a_row_is_bold() {
        let text = rendered("a <!-- peers: all_reduce 2 -->old<!-- peers end --> b", &data()).unwrap();
        assert!(text.contains("| 8 B | 2.0 | – | **1.0** | – | – |"), "{text}");
        assert!(text.starts_with("a ") && text.ends_with(" b") && !text.contains("old"), "{text}");
        assert_eq!(rendered(&text, &data()).unwrap(), text);
    }

    #[test]
    fn a_table_without_a_rendering_is_an_error() {
        assert!(rendered("<!-- peers: nothing --><!-- peers end -->", &data()).is_err());
        assert!(rendered("<!-- peers: calls -->", &data()).is_err());
    }

    #[test]
    fn a_later_start_is_added_and_a_first_start_replaces() {
        let mut data = data();
        data.collective("all_reduce", 2, "MPICH").add(1, 8, 3.0);
        assert_eq!(data.collectives[1].sizes[0].us, [1.0, 3.0]);
        data.collective("all_reduce", 2, "MPICH").add(0, 8, 4.0);
        assert_eq!(data.collectives[1].sizes[0].us, [4.0]);
    }

    #[test]
    fn figures_have_two_digits() {
        assert_eq!([0.123, 0.999, 9.94, 9.96, 1234.4].map(number), ["0.12", "1.0", "9.9", "10", "1234"]);
        assert_eq!(spread([3.0, 1.0, 2.0]), Some([2.0, 1.0, 3.0]));
        assert_eq!(winner([None, Some([1.0, 0.5, 2.0])]), ["–", "**1.0 (0.50–2.0)**"]);
    }
}
