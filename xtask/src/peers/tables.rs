//! Cells of tables, and the places of tables in documents, between `<!-- peers: NAME -->` and `<!-- peers end -->`.

use std::fs;

use anyhow::Result;

use crate::built::root;

/// Documents with tables.
const DOCUMENTS: [&str; 2] = ["README.md", "docs/maintainers/performance.md"];
const END: &str = "<!-- peers end -->";

/// Prints a table and, if `is_written`, writes it into the documents that have a place for it.
///
/// # Errors
/// A document can't be read or written.
pub(crate) fn show(name: &str, table: &str, is_written: bool) -> Result<()> {
    println!("{table}");
    for document in DOCUMENTS.iter().filter(|_| is_written) {
        let path = root().join(document);
        let text = fs::read_to_string(&path)?;
        fs::write(&path, replaced(&text, name, table))?;
    }
    Ok(())
}

/// The text with this table in its place; the same text if it has no such place.
fn replaced(text: &str, name: &str, table: &str) -> String {
    let begin = format!("<!-- peers: {name} -->\n");
    let place = text.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    place.map_or_else(|| text.to_owned(), |(before, after)| format!("{before}{begin}{table}\n{END}{after}"))
}

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

pub(crate) fn between(low: f64, high: f64) -> String {
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

#[cfg(test)]
mod tests {
    use super::replaced;

    #[test]
    fn a_table_is_written_into_its_place_only() {
        let text = "a <!-- peers: calls -->\nold\n<!-- peers end --> b";
        let new = "a <!-- peers: calls -->\nnew\n<!-- peers end --> b";
        assert_eq!(replaced(text, "calls", "new"), new);
        assert_eq!(replaced(text, "all_reduce 2", "new"), text);
    }
}
