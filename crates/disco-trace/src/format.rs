//! Numbers and tables as text.

/// A time: `1.23 ms`.
pub(crate) fn time(nanoseconds: u64) -> String {
    scaled(nanoseconds as f64, &[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")])
}

/// A size: `64 KiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let (kib, mib, gib) = (1024.0, 1_048_576.0, 1_073_741_824.0);
    scaled(bytes as f64, &[(gib, "GiB"), (mib, "MiB"), (kib, "KiB"), (1.0, "B")])
}

/// A bandwidth in GB/s: bytes per nanosecond.
pub(crate) fn bandwidth(bytes: u64, nanoseconds: u64) -> f64 {
    bytes as f64 / nanoseconds.max(1) as f64
}

/// A part of a whole, in percent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "–".to_owned() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

/// A number with three digits.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let unit = units.iter().find(|(size, _)| value >= *size).or(units.last());
    unit.map_or(String::new(), |(size, unit)| format!("{} {unit}", number(value / size)))
}

/// A table with aligned columns: the first to the left, the others to the right.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let head = head.map(str::to_owned);
    let all = || std::iter::once(&head).chain(rows);
    let widths: [usize; N] =
        std::array::from_fn(|column| all().map(|row| row[column].chars().count()).max().unwrap_or_default());
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("  {}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    all().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!(
            [0, 999, 1_000, 12_345, 1_234_567, 65_000_000_000].map(time),
            ["0 ns", "999 ns", "1 µs", "12.3 µs", "1.23 ms", "65 s"]
        );
        assert_eq!([0, 1_000, 1_024, 3 << 19, 5 << 30].map(bytes), ["0 B", "1000 B", "1 KiB", "1.5 MiB", "5 GiB"]);
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(0, 0), "–");
    }

    #[test]
    fn columns_of_a_table_are_aligned() {
        let rows = [["a".to_owned(), "10".to_owned()], ["longer".to_owned(), "5".to_owned()]];
        assert_eq!(table(["name", "n"], &rows), "  name     n\n  a       10\n  longer   5\n");
    }
}
