//! Cells of tables.

/// Median, smallest and largest.
pub(crate) fn spread(values: impl IntoIterator<Item = f64>) -> Option<[f64; 3]> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    let (first, last) = (*values.first()?, *values.last()?);
    let middle = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
    Some([middle, first, last])
}

/// Cells of a row, with the smallest median in bold.
pub(crate) fn winner<const N: usize>(all: [Option<[f64; 3]>; N]) -> [String; N] {
    let best = all.iter().flatten().map(|it| it[0]).fold(f64::INFINITY, f64::min);
    all.map(|it| match it {
        Some(it) if it[0] <= best => format!("**{}**", cell(Some(it))),
        it => cell(it),
    })
}

/// A median with its range, if there are several values.
pub(crate) fn cell(value: Option<[f64; 3]>) -> String {
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
