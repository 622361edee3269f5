//! The table of times that steps and test programs end with.

use std::time::Duration;

/// What a step or a test program took.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) time: Duration,
    /// Processor time.
    pub(crate) cpu: Duration,
}

/// Prints the rows, the longest first, and their sum.
pub(crate) fn print(mut rows: Vec<Row>) {
    rows.sort_unstable_by_key(|row| std::cmp::Reverse(row.time));
    println!("{:>8} {:>8}", "time", "CPU");
    let sum = Row {
        name: "sum".to_owned(),
        time: rows.iter().map(|row| row.time).sum(),
        cpu: rows.iter().map(|row| row.cpu).sum(),
    };
    rows.iter().chain([&sum]).for_each(|row| println!("{}", row.line()));
}

impl Row {
    fn line(&self) -> String {
        format!("{:6.1} s {:6.1} s  {}", self.time.as_secs_f64(), self.cpu.as_secs_f64(), self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Row;

    #[test]
    fn columns_of_rows_are_aligned() {
        let [time, cpu] = [Duration::from_millis(12_340), Duration::from_secs(123)];
        assert_eq!(Row { name: "clippy".to_owned(), time, cpu }.line(), "  12.3 s  123.0 s  clippy");
    }
}
