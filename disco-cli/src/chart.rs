//! Results of `disco bench` as a page in the look of `disco trace report`.

use disco_trace::drawing::{self, Anchor, PAGE_WIDTH, Svg, Text, bytes, decades, number, table, ticks};

use crate::report::{Figures, Report, Row, Series};

const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;
/// Largest number of sizes with a label.
const MAX_LABELS: usize = 9;

/// A scale of values: logarithmic, or linear from 0.
struct Scale {
    is_log: bool,
    low: f64,
    high: f64,
}

/// The page of some reports: a picture of times, one of bandwidths, and a table for each report.
pub(crate) fn page(reports: &[Report], series: &[Series]) -> String {
    let title = match reports {
        [one] => format!("{} on {}, {} workers ({})", one.operation, one.backend, one.workers, one.session),
        _ => "Results of disco bench".to_owned(),
    };
    let summary: String = reports.iter().map(summary).collect();
    let legend: String = series.iter().enumerate().map(|(at, series)| swatch(at, &series.name)).collect();
    let tables: String = reports.iter().map(rows).collect();
    let body = format!(
        "<pre>{}</pre>\n<h2>Time against size</h2>\n<p class=\"legend\">{legend}</p>\n{}<h2>Bus bandwidth against size</h2>\n\
         <p class=\"legend\">{legend}</p>\n{}<h2>Results</h2>\n{tables}",
        Text(summary.trim_end()),
        picture(series, true, "time (µs)", |figures| figures.time_us),
        picture(series, false, "busbw (GB/s)", |figures| figures.busbw),
    );
    drawing::page(&title, &body)
}

fn summary(report: &Report) -> String {
    let Report { version, operation, backend, library, workers, session, cpus, .. } = report;
    let wrong = match report.wrong() {
        Some(wrong) => format!("wrong elements: {wrong}"),
        None => "results not checked".to_owned(),
    };
    let mean = report.mean_busbw();
    format!(
        "disco {version}: {operation}, backend {backend} ({library}), {workers} workers ({session}), {cpus} CPUs; \
         mean bus bandwidth {mean:.3} GB/s; {wrong}\n"
    )
}

fn swatch(at: usize, name: &str) -> String {
    format!("<span class=\"swatch {}\"></span>{} ", drawing::series(at), Text(name))
}

fn rows(report: &Report) -> String {
    let cells = |figures: Option<Figures>| match figures {
        Some(Figures { time_us, algbw, busbw, .. }) => [time_us, algbw, busbw].map(number),
        None => ["–", "–", "–"].map(str::to_owned),
    };
    let row = |row: &Row| {
        let ([time, algbw, busbw], [time_in, algbw_in, busbw_in]) =
            (cells(Some(row.out_of_place)), cells(row.in_place));
        [bytes(row.size as u64), row.count.to_string(), time, algbw, busbw, time_in, algbw_in, busbw_in]
    };
    let head =
        ["size", "elements", "µs", "algbw (GB/s)", "busbw (GB/s)", "in place: µs", "algbw (GB/s)", "busbw (GB/s)"];
    let rows: Vec<_> = report.rows.iter().map(row).collect();
    table(head, &rows)
}

fn picture(series: &[Series], is_log: bool, unit: &str, value: fn(&Figures) -> f64) -> String {
    let points = || series.iter().flat_map(|series| &series.points);
    let range = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)))
    };
    let (first, last) = range(&mut points().map(|(size, _)| *size));
    let (low, high) = range(&mut points().map(|(_, figures)| value(figures)));
    let (sizes, values) = (Scale::log(first, last), if is_log { Scale::log(low, high) } else { Scale::linear(high) });
    let (width, height) = (PAGE_WIDTH - LEFT - 20.0, HEIGHT - TOP - BOTTOM);
    let (x, y) = (|size| LEFT + width * sizes.part(size), |value| TOP + height * (1.0 - values.part(value)));
    let mut picture = Svg::new(PAGE_WIDTH, HEIGHT);
    for tick in values.ticks() {
        picture.line((LEFT, y(tick)), (LEFT + width, y(tick)), "grid");
        picture.text((LEFT - 8.0, y(tick) + 4.0), Anchor::End, &number(tick));
    }
    picture.text((LEFT, HEIGHT - 6.0), Anchor::Start, &format!("{unit} against size"));
    let mut labels: Vec<f64> = points().map(|(size, _)| *size).collect();
    labels.sort_by(f64::total_cmp);
    labels.dedup();
    for label in labels.iter().step_by(labels.len().div_ceil(MAX_LABELS).max(1)) {
        picture.line((x(*label), TOP + height), (x(*label), TOP + height + 4.0), "grid");
        picture.text((x(*label), TOP + height + 18.0), Anchor::Middle, &bytes(*label as u64));
    }
    for (at, series) in series.iter().enumerate() {
        let class = drawing::series(at);
        let line: Vec<_> = series.points.iter().map(|(size, figures)| (x(*size), y(value(figures)))).collect();
        picture.polyline(&line, &class);
        for ((size, figures), point) in series.points.iter().zip(&line) {
            let title = format!("{}: {}, {} {unit}", series.name, bytes(*size as u64), number(value(figures)));
            picture.point(*point, &class, &title);
        }
    }
    picture.figure(&format!("{unit} against size"))
}

impl Scale {
    fn log(low: f64, high: f64) -> Self {
        let (low, high) =
            if low > 0.0 && low < high { (low, high) } else { (high.max(1e-3) / 2.0, high.max(1e-3) * 2.0) };
        Self { is_log: true, low, high }
    }

    fn linear(high: f64) -> Self {
        Self { is_log: false, low: 0.0, high: if high > 0.0 { high * 1.05 } else { 1.0 } }
    }

    /// The place of a value between the ends of the scale, from 0 to 1.
    fn part(&self, value: f64) -> f64 {
        let part = if self.is_log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            value / self.high
        };
        part.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_log { decades(self.low, self.high) } else { ticks(self.high) }
    }
}
