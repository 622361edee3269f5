//! Who waited for whom, as a heat map.

use std::collections::BTreeMap;

use super::rows::Rows;
use crate::analysis::Waits;
use crate::calls::Calls;
use crate::drawing::{Anchor, Svg, table};
use crate::format::time;
use crate::trace::Trace;

const LABEL: f64 = 130.0;
const TOP: f64 = 46.0;
/// Largest number of rows of the table.
const MAX_ROWS: usize = 10;

pub(super) fn section(trace: &Trace, calls: &Calls<'_>) -> String {
    let waits = Waits::of(trace, calls);
    let title = "<h2>Who waits for whom</h2>\n";
    let unknown: u64 = waits.unknown.values().copied().fold(0, u64::saturating_add);
    let unnamed = match unknown {
        0 => String::new(),
        _ => format!("<p>Of further {} of waiting, the backend does not name the rank.</p>\n", time(unknown)),
    };
    if waits.times.is_empty() {
        return format!("{title}<p>No wait with a known rank is recorded.</p>\n{unnamed}");
    }
    let rows = Rows::of(trace);
    let mut cells: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for ((worker, last), time) in &waits.times {
        let cell = cells.entry((rows.of_worker(*worker), rows.of_worker(*last))).or_default();
        *cell = cell.saturating_add(*time);
    }
    let lead =
        "<p>Each row is a worker that waited in operations; each column, the worker whose rank came last there.</p>\n";
    let late: Vec<_> = waits.latest().into_iter().take(MAX_ROWS).collect();
    let late: Vec<_> =
        late.iter().map(|(worker, late)| [worker.to_string(), late.count.to_string(), time(late.time)]).collect();
    let table = table(["came last", "waits of others", "their time"], &late);
    format!("{title}{lead}{}{table}{unnamed}", picture(&rows, &cells))
}

fn picture(rows: &Rows, cells: &BTreeMap<(usize, usize), u64>) -> String {
    let count = rows.len();
    let cell = (700.0 / count as f64).clamp(11.0, 34.0);
    let (width, height) = (LABEL + cell * count as f64 + 190.0, TOP + cell * count as f64 + 8.0);
    let mut picture = Svg::new(width, height.max(TOP + 60.0));
    let most = cells.values().copied().max().unwrap_or_default();
    // Labels that would overlap are left out.
    let step = (18.0 / cell).ceil() as usize;
    let across = ((rows.short(count.saturating_sub(1)).len() as f64 * 7.5 + 6.0) / cell).ceil() as usize;
    picture.text((LABEL, 14.0), Anchor::Start, "came last");
    picture.text((LABEL - 8.0, 36.0), Anchor::End, "waited");
    for at in 0..count {
        let offset = cell * at as f64;
        if at % step.max(1) == 0 {
            picture.text((LABEL - 8.0, TOP + offset + cell / 2.0 + 4.0), Anchor::End, &rows.name(at));
        }
        if at % across.max(1) == 0 {
            picture.text((LABEL + offset + cell / 2.0, 36.0), Anchor::Middle, &rows.short(at));
        }
    }
    for row in 0..count {
        for column in 0..count {
            let at = (LABEL + cell * column as f64, TOP + cell * row as f64);
            match cells.get(&(row, column)) {
                Some(waited) => {
                    let title = format!("{} waited {} for {}", rows.name(row), time(*waited), rows.name(column));
                    picture.heat(at, cell - 1.0, *waited as f64 / most.max(1) as f64, &title);
                }
                None => picture.rect(at, (cell - 1.0, cell - 1.0), "empty", ""),
            }
        }
    }
    let x = LABEL + cell * count as f64 + 24.0;
    for step in 0..5 {
        picture.heat((x + 18.0 * f64::from(step), TOP), 17.0, f64::from(step) / 4.0, "");
    }
    picture.text((x, TOP + 34.0), Anchor::Start, &format!("0 to {}", time(most)));
    picture.figure("Times that workers waited, by the worker that came last")
}
