//! The time between first and last arrival, over the time of the trace.

use std::collections::BTreeMap;

use disco_core::WorkerId;

use crate::calls::{Call, Calls};
use crate::drawing::{Anchor, PAGE_WIDTH, Svg, table, ticks};
use crate::format::time;
use crate::trace::Trace;

const HEIGHT: f64 = 220.0;
const LEFT: f64 = 80.0;
const BOTTOM: f64 = 34.0;
/// Parts of the time, in the picture and in the table.
const BARS: usize = 90;
const ROWS: usize = 10;

/// The collectives that begin in one part of the time.
#[derive(Clone, Default)]
struct Part {
    count: u64,
    sum: u64,
    most: u64,
    last: BTreeMap<WorkerId, u64>,
}

impl Part {
    fn add(&mut self, call: &Call<'_>) {
        let spread = call.spread();
        self.count += 1;
        self.sum = self.sum.saturating_add(spread);
        self.most = self.most.max(spread);
        if let Some(last) = call.latecomer() {
            *self.last.entry(last.worker).or_default() += 1;
        }
    }

    fn mean(&self) -> u64 {
        self.sum / self.count.max(1)
    }

    /// The worker that came last most often.
    fn latest(&self) -> Option<(WorkerId, u64)> {
        self.last.iter().max_by_key(|(worker, count)| (**count, std::cmp::Reverse(**worker))).map(|(id, n)| (*id, *n))
    }
}

pub(super) fn section(trace: &Trace, calls: &Calls<'_>) -> String {
    let title = "<h2>Imbalance over time</h2>\n";
    if calls.all.iter().all(|call| call.entries.len() < 2) {
        return format!("{title}<p>No collective of several workers is recorded.</p>\n");
    }
    let range = trace.range();
    let length = u64::try_from(range.1 - range.0).unwrap_or(u64::MAX).max(1);
    let lead = "<p>The time from the first to the last worker's call of a collective: the mean of the collectives that begin in each \
        part of the time, and the largest.</p>\n<p class=\"legend\"><span class=\"swatch operations\"></span>mean \
        <span class=\"swatch mark\"></span>largest</p>\n";
    let rows: Vec<_> = parts(calls, range, ROWS)
        .iter()
        .enumerate()
        .filter(|(_, part)| part.count > 0)
        .map(|(at, part)| {
            let from = |at: usize| time((length as f64 * at as f64 / ROWS as f64) as u64);
            let latest = part.latest().map_or("–".to_owned(), |(worker, count)| format!("{worker} ({count})"));
            let span = format!("{} to {}", from(at), from(at + 1));
            [span, part.count.to_string(), time(part.mean()), time(part.most), latest]
        })
        .collect();
    let table = table(["time", "collectives", "mean", "largest", "last most often"], &rows);
    format!("{title}{lead}{}{table}", picture(&parts(calls, range, BARS), length))
}

/// The collectives of each of `count` equal parts of the time.
fn parts(calls: &Calls<'_>, (first, last): (i128, i128), count: usize) -> Vec<Part> {
    let mut parts = vec![Part::default(); count];
    for call in calls.all.iter().filter(|call| call.entries.len() > 1) {
        let Some(start) = call.entries.iter().map(|entry| entry.start).min() else { continue };
        let at = (start - first) as f64 / (last - first).max(1) as f64 * count as f64;
        parts[(at as usize).min(count - 1)].add(call);
    }
    parts
}

fn picture(parts: &[Part], length: u64) -> String {
    let (width, height) = (PAGE_WIDTH - LEFT - 20.0, HEIGHT - BOTTOM - 10.0);
    let most = parts.iter().map(|part| part.most).max().unwrap_or_default().max(1) as f64;
    let mut picture = Svg::new(PAGE_WIDTH, HEIGHT);
    let y = |value: f64| 10.0 + height * (1.0 - value / most);
    for tick in ticks(most) {
        picture.line((LEFT, y(tick)), (LEFT + width, y(tick)), "grid");
        picture.text((LEFT - 8.0, y(tick) + 4.0), Anchor::End, &time(tick as u64));
    }
    for tick in ticks(length as f64) {
        let x = LEFT + width * tick / length as f64;
        picture.text((x, HEIGHT - 14.0), Anchor::Middle, &time(tick as u64));
    }
    let bar = width / parts.len() as f64;
    for (at, part) in parts.iter().enumerate().filter(|(_, part)| part.count > 0) {
        let x = LEFT + bar * at as f64;
        let title = format!("{} collectives: mean {}, largest {}", part.count, time(part.mean()), time(part.most));
        let top = y(part.mean() as f64);
        picture.rect((x + 0.5, top), (bar - 1.0, (10.0 + height - top).max(1.0)), "operations", &title);
        picture.rect((x + 0.5, y(part.most as f64) - 1.5), (bar - 1.0, 3.0), "mark", &title);
    }
    picture.figure("Time between the first and the last call of collectives, over time")
}
