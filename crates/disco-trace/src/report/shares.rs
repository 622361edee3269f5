//! The parts of each worker's time, as stacked bars.

use super::rows::Rows;
use crate::analysis::shares;
use crate::drawing::{Anchor, PAGE_WIDTH, Svg, table};
use crate::format::{percent, time};
use crate::trace::Trace;

const LABEL: f64 = 130.0;
const ROW: f64 = 22.0;
/// The parts of a bar: class and name.
const PARTS: [(&str, &str); 4] = [
    ("waiting", "waiting for ranks"),
    ("operations", "in operations"),
    ("code", "in code"),
    ("rest", "between commands"),
];

/// The sums of a row's workers.
#[derive(Clone, Copy, Default)]
struct Sum {
    recorded: u64,
    parts: [u64; 4],
}

pub(super) fn section(trace: &Trace) -> String {
    let rows = Rows::of(trace);
    let mut sums = vec![Sum::default(); rows.len()];
    let all = shares(trace);
    let title = "<h2>Time of each worker</h2>\n";
    if all.is_empty() {
        return format!("{title}<p>The trace has no timeline, so times are not known.</p>\n");
    }
    for share in all {
        let sum = &mut sums[rows.of_worker(share.worker)];
        sum.recorded = sum.recorded.saturating_add(share.recorded);
        let parts = [share.waiting, share.operations, share.code, share.rest];
        sum.parts.iter_mut().zip(parts).for_each(|(sum, part)| *sum = sum.saturating_add(part));
    }
    let mut text = format!("{title}<p class=\"legend\">");
    for (class, name) in PARTS {
        text.push_str(&format!("<span class=\"swatch {class}\"></span>{name} "));
    }
    text.push_str("</p>\n");
    let mut picture = Svg::new(PAGE_WIDTH, ROW * rows.len() as f64 + 24.0);
    let width = PAGE_WIDTH - LABEL - 30.0;
    for tick in [0, 25, 50, 75, 100] {
        let (x, bottom) = (LABEL + width * f64::from(tick) / 100.0, ROW * rows.len() as f64);
        picture.line((x, 0.0), (x, bottom + 4.0), "grid");
        picture.text((x, bottom + 18.0), Anchor::Middle, &format!("{tick} %"));
    }
    for (row, sum) in sums.iter().enumerate() {
        let y = ROW * row as f64;
        picture.text((LABEL - 8.0, y + 15.0), Anchor::End, &rows.name(row));
        let mut x = LABEL;
        for ((class, name), part) in PARTS.iter().zip(sum.parts) {
            let length = width * part as f64 / sum.recorded.max(1) as f64;
            let title = format!("{}: {} {name}, {}", rows.name(row), percent(part, sum.recorded), time(part));
            if length > 0.0 {
                // The gap between parts.
                picture.rect((x, y + 3.0), ((length - 1.0).max(0.5), ROW - 6.0), class, &title);
            }
            x += length;
        }
    }
    text.push_str(&picture.figure("Parts of the time of each worker"));
    let rows: Vec<[String; 6]> = sums
        .iter()
        .enumerate()
        .map(|(row, sum)| {
            let [waiting, operations, code, rest] = sum.parts.map(|part| percent(part, sum.recorded));
            [rows.name(row), time(sum.recorded), waiting, operations, code, rest]
        })
        .collect();
    text.push_str(&table(["", "recorded", PARTS[0].1, PARTS[1].1, PARTS[2].1, PARTS[3].1], &rows));
    text
}
