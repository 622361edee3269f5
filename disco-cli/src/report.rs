//! The report of `disco bench`: a table in the format of nccl-tests, or JSON.

use std::io::{self, Write};

use serde::Serialize;

/// The results of one run of `disco bench`.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) version: String,
    pub(crate) operation: String,
    pub(crate) backend: String,
    /// Name and version of the backend's library.
    pub(crate) library: String,
    pub(crate) workers: usize,
    pub(crate) session: String,
    pub(crate) cpus: usize,
    /// One-way latency of a cache line between two threads of this process, in ns: before and after the measurement.
    pub(crate) hop_ns: [Option<u128>; 2],
    /// Number of iterations of the smallest size that each rank ran before the first measurement.
    pub(crate) initial_warmup_iters: u64,
    pub(crate) rows: Vec<Row>,
    /// Mean bus bandwidth of all rows, in GB/s; `None` until the last row is measured.
    pub(crate) avg_busbw: Option<f64>,
}

/// The results for one size.
#[derive(Serialize)]
pub(crate) struct Row {
    /// Size in bytes of the larger of one rank's source and destination.
    pub(crate) size: usize,
    /// Number of elements: per block if the operation has blocks, else in total.
    pub(crate) count: usize,
    #[serde(rename = "type")]
    pub(crate) dtype: String,
    pub(crate) redop: Option<String>,
    pub(crate) root: Option<u32>,
    pub(crate) out_of_place: Figures,
    pub(crate) in_place: Option<Figures>,
}

/// Time and bandwidth of one operation at one size, on the slowest rank.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Figures {
    /// Mean time of one iteration, in µs.
    pub(crate) time_us: f64,
    /// Algorithm bandwidth: size over time, in GB/s.
    pub(crate) algbw: f64,
    /// Bus bandwidth, in GB/s.
    pub(crate) busbw: f64,
    /// Number of wrong elements, summed over all ranks; `None` if the result was not checked.
    pub(crate) wrong: Option<u64>,
    /// Number of timed iterations that each rank ran.
    pub(crate) iters: u64,
    /// Number of iterations that each rank ran before the clock started.
    pub(crate) warmup_iters: u64,
}

impl Report {
    pub(crate) fn print_header(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { version, operation, backend, library, workers, session, cpus, hop_ns, .. } = self;
        writeln!(
            out,
            "# disco {version}: {operation}, backend {backend} ({library}), {workers} workers ({session}), {cpus} CPUs"
        )?;
        print_cache_line_latency(hop_ns[0], out)?;
        writeln!(out, "#{:>67}{:>37}", "out of place", "in place")?;
        let columns = format!("{:>11} {:>9} {:>9} {:>6}", "time", "algbw", "busbw", "wrong");
        writeln!(
            out,
            "#{:>11} {:>11} {:>7} {:>6} {:>4} {columns} {columns}",
            "size", "count", "type", "redop", "root"
        )?;
        let units = format!("{:>11} {:>9} {:>9} {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
        writeln!(out, "#{:>11} {:>11} {:>7} {:>6} {:>4} {units} {units}", "(B)", "(elements)", "", "", "")
    }

    pub(crate) fn print_footer(&self, out: &mut impl Write) -> io::Result<()> {
        print_cache_line_latency(self.hop_ns[1], out)?;
        writeln!(out, "# Avg bus bandwidth    : {:.4}", self.avg_busbw.unwrap_or_default())?;
        match self.wrong() {
            Some(wrong) => writeln!(out, "# wrong elements: {wrong}"),
            None => writeln!(out, "# wrong elements: not checked"),
        }
    }

    /// Number of wrong elements, summed over all rows; `None` if results were not checked.
    pub(crate) fn wrong(&self) -> Option<u64> {
        self.figures().map(|figures| figures.wrong).sum()
    }

    /// The mean bus bandwidth of all rows, out of place and in place, as nccl-tests compute it.
    pub(crate) fn mean_busbw(&self) -> f64 {
        let (sum, count) = self.figures().fold((0.0, 0.0), |(sum, count), figures| (sum + figures.busbw, count + 1.0));
        if count > 0.0 { sum / count } else { 0.0 }
    }

    fn figures(&self) -> impl Iterator<Item = Figures> {
        self.rows.iter().flat_map(|row| [Some(row.out_of_place), row.in_place]).flatten()
    }
}

fn print_cache_line_latency(ns: Option<u128>, out: &mut impl Write) -> io::Result<()> {
    match ns {
        Some(ns) => writeln!(out, "# placement: a cache line takes {ns} ns from one thread to another"),
        None => writeln!(out, "# placement: only one CPU, so no latency between two"),
    }
}

impl Row {
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { size, count, dtype, redop, root, out_of_place, in_place } = self;
        let (redop, root) = (redop.as_deref().unwrap_or("none"), root.map_or("-1".to_owned(), |root| root.to_string()));
        write!(out, "{size:>12} {count:>11} {dtype:>7} {redop:>6} {root:>4} {}", out_of_place.columns())?;
        match in_place {
            Some(figures) => writeln!(out, " {}", figures.columns()),
            None => writeln!(out, " {:>11} {:>9} {:>9} {:>6}", "N/A", "N/A", "N/A", "N/A"),
        }
    }
}

impl Figures {
    fn columns(self) -> String {
        let Self { time_us, algbw, busbw, wrong, .. } = self;
        let wrong = wrong.map_or("N/A".to_owned(), |wrong| wrong.to_string());
        format!("{time_us:>11.2} {algbw:>9.2} {busbw:>9.2} {wrong:>6}")
    }
}
