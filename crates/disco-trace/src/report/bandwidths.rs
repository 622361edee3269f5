//! Collectives by size, against the best one and a measured one.

use super::measured::Measured;
use crate::analysis::by_size;
use crate::calls::Calls;
use crate::drawing::{Anchor, PAGE_WIDTH, Svg, table, ticks};
use crate::format::{bytes, number, time};

const LABEL: f64 = 260.0;
const ROW: f64 = 22.0;
/// Largest number of rows.
const MAX_ROWS: usize = 24;

/// One row of picture and table.
struct Row {
    label: String,
    /// Bandwidth of the median and a measured one, as parts of the best one's.
    median: f64,
    measured: Option<f64>,
    cells: [String; 9],
}

pub(super) fn section(calls: &Calls<'_>, measured: &[Measured]) -> String {
    let rows: Vec<Row> = by_size(calls)
        .iter()
        .take(MAX_ROWS)
        .map(|it| {
            let label = match it.size {
                0 => format!("{}, {} ranks", it.kind, it.ranks),
                size => format!("{}, {} ranks, {}", it.kind, it.ranks, bytes(size)),
            };
            let best = it.best_bandwidth();
            let measured = Measured::bandwidth(measured, it.kind.name(), it.ranks, it.size).filter(|_| it.size > 0);
            let rate = |rate: f64| if it.size > 0 { number(rate) } else { "–".to_owned() };
            let cells = [
                label.clone(),
                it.count.to_string(),
                time(it.total),
                time(it.best),
                time(it.median),
                time(it.worst),
                rate(best),
                rate(it.bandwidth()),
                measured.map_or("–".to_owned(), number),
            ];
            let median = it.best.max(1) as f64 / it.median.max(1) as f64;
            Row { label, median, measured: measured.map(|measured| measured / best), cells }
        })
        .collect();
    let title = "<h2>Collectives by size</h2>\n";
    if rows.is_empty() {
        return format!("{title}<p>No finished collective is recorded.</p>\n");
    }
    let lead = "<p>The median's bandwidth as a part of the best one's of the same size, from the arrival of the last rank \
        to the end of the last. Collectives that took most time in total come first.</p>\n";
    let legend = "<p class=\"legend\"><span class=\"swatch operations\"></span>median \
        <span class=\"swatch mark\"></span>measured by <code>disco bench</code></p>\n";
    let has_measured = rows.iter().any(|row| row.measured.is_some());
    let head = ["", "count", "total", "best", "median", "worst", "best (GB/s)", "median (GB/s)", "measured (GB/s)"];
    let cells: Vec<_> = rows.iter().map(|row| row.cells.clone()).collect();
    format!("{title}{lead}{}{}{}", if has_measured { legend } else { "" }, picture(&rows), table(head, &cells))
}

fn picture(rows: &[Row]) -> String {
    let most = rows.iter().filter_map(|row| row.measured).fold(1.0, f64::max);
    let (width, bottom) = (PAGE_WIDTH - LABEL - 30.0, ROW * rows.len() as f64);
    let mut picture = Svg::new(PAGE_WIDTH, bottom + 24.0);
    for tick in ticks(most * 100.0) {
        let x = LABEL + width * tick / 100.0 / most;
        picture.line((x, 0.0), (x, bottom + 4.0), "grid");
        picture.text((x, bottom + 18.0), Anchor::Middle, &format!("{} %", number(tick)));
    }
    for (at, row) in rows.iter().enumerate() {
        let y = ROW * at as f64;
        picture.text((LABEL - 8.0, y + 15.0), Anchor::End, &row.label);
        let title = format!("{}: median {} % of the best", row.label, number(row.median * 100.0));
        picture.rect((LABEL, y + 4.0), (width * row.median / most, ROW - 8.0), "operations", &title);
        if let Some(measured) = row.measured {
            let title = format!("{}: measured {} % of the best", row.label, number(measured * 100.0));
            picture.rect((LABEL + width * measured / most - 1.5, y + 1.0), (3.0, ROW - 2.0), "mark", &title);
        }
    }
    picture.figure("Bandwidth of collectives as a part of the best one's of the same size")
}
