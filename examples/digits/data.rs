//! The handwritten digits: rows of 64 pixels and a label, from a gzipped CSV file.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::{fs, io};

use flate2::bufread::MultiGzDecoder;

use super::random::Random;

/// Pixels of one image, row by row: 8 by 8.
pub(crate) const PIXELS: usize = 64;
/// Number of different labels: the digits 0 to 9.
pub(crate) const CLASSES: usize = 10;
/// Rows of a batch; all workers together compute one batch.
pub(crate) const BATCH: usize = 64;

/// The built-in data; source and licence are in `examples/data/README.md`.
const SHIPPED: &[u8] = include_bytes!("../data/digits.csv.gz");
const SHIPPED_NAME: &str = "digits.csv.gz (built in)";
/// Largest value of a pixel, the number of set bits in a block of 4 by 4.
const BRIGHTEST: u8 = 16;

/// Images and their labels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dataset {
    /// `rows × 64` numbers in `0.0..=1.0`, row-major.
    pub(crate) pixels: Vec<f32>,
    /// `rows` digits.
    pub(crate) labels: Vec<u8>,
}

/// Reasons to refuse a data file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    #[error("{file}: cannot open: {why}")]
    Open { file: String, why: io::Error },
    #[error("{file}: not a gzip file; expected a gzipped CSV file of digits")]
    NotGzip { file: String },
    #[error("{file}: line {line}: cannot read: {why}")]
    Read { file: String, line: usize, why: io::Error },
    #[error("{file}: line {line}: expected 65 columns (64 pixels and the label), got {columns}")]
    Columns { file: String, line: usize, columns: usize },
    #[error("{file}: line {line}, column {column}: the {what} is {text:?}, not a whole number from 0 to {most}")]
    Number { file: String, line: usize, column: usize, what: &'static str, text: String, most: u8 },
    #[error("{file}: no rows in the file")]
    Empty { file: String },
    #[error(
        "{file}: {rows} rows are too few: after a fifth is held out for testing, fewer than one batch of {BATCH} is left"
    )]
    TooFew { file: String, rows: usize },
}

impl Dataset {
    /// Reads `path`, or the built-in data.
    ///
    /// # Errors
    /// The file can't be read, is not gzip, has malformed rows or too few.
    pub(crate) fn load(path: Option<&Path>) -> Result<Self, DataError> {
        let Some(path) = path else { return Self::parse(SHIPPED_NAME, SHIPPED) };
        let file = path.display().to_string();
        match fs::read(path) {
            Ok(gzip) => Self::parse(&file, &gzip),
            Err(why) => Err(DataError::Open { file, why }),
        }
    }

    /// Number of images.
    pub(crate) fn rows(&self) -> usize {
        self.labels.len()
    }

    /// Shuffles the rows by `seed`, and splits them into training data and a fifth for testing.
    pub(crate) fn split(&self, seed: u64) -> (Self, Self) {
        let order = Random::new(seed).permutation(self.rows());
        let (test, train) = order.split_at(self.rows() / 5);
        (self.pick(train), self.pick(test))
    }

    fn pick(&self, rows: &[usize]) -> Self {
        Self {
            pixels: rows.iter().flat_map(|row| &self.pixels[row * PIXELS..][..PIXELS]).copied().collect(),
            labels: rows.iter().map(|row| self.labels[*row]).collect(),
        }
    }

    fn parse(name: &str, gzip: &[u8]) -> Result<Self, DataError> {
        let file = || name.to_owned();
        if !gzip.starts_with(&[0x1f, 0x8b]) {
            return Err(DataError::NotGzip { file: file() });
        }
        let mut data = Self { pixels: Vec::new(), labels: Vec::new() };
        for (line, text) in (1..).zip(BufReader::new(MultiGzDecoder::new(gzip)).lines()) {
            let text = text.map_err(|why| DataError::Read { file: file(), line, why })?;
            let fields: Vec<&str> = text.split(',').collect();
            if fields.len() != PIXELS + 1 {
                return Err(DataError::Columns { file: file(), line, columns: fields.len() });
            }
            for (column, text) in (1..).zip(fields) {
                let (what, most) = if column <= PIXELS { ("pixel", BRIGHTEST) } else { ("label", CLASSES as u8 - 1) };
                let Some(number) = text.trim().parse().ok().filter(|number| *number <= most) else {
                    let text = text.to_owned();
                    return Err(DataError::Number { file: file(), line, column, what, text, most });
                };
                if column <= PIXELS {
                    data.pixels.push(f32::from(number) / f32::from(BRIGHTEST));
                } else {
                    data.labels.push(number);
                }
            }
        }
        match data.rows() {
            0 => Err(DataError::Empty { file: file() }),
            rows if rows - rows / 5 < BATCH => Err(DataError::TooFew { file: file(), rows }),
            _ => Ok(data),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// `rows` valid rows, of which `change` changes the last one.
    fn rows(rows: usize, change: impl Fn(&mut Vec<&str>)) -> String {
        let good = ["3"; PIXELS + 1];
        let mut last = good.to_vec();
        change(&mut last);
        let mut lines = vec![good.join(","); rows - 1];
        lines.push(last.join(","));
        lines.join("\n") + "\n"
    }

    /// The text of the error for a file.
    fn error_text(file: &[u8]) -> String {
        Dataset::parse("x.csv.gz", file).unwrap_err().to_string()
    }

    #[test]
    fn the_shipped_file_has_1797_images_of_all_ten_digits() {
        let data = Dataset::load(None).unwrap();
        assert_eq!((data.rows(), data.pixels.len()), (1797, 1797 * PIXELS));
        assert_eq!(data.labels.iter().copied().collect::<BTreeSet<_>>(), (0..10).collect());
        assert!(data.pixels.iter().all(|pixel| (0.0..=1.0).contains(pixel)));
        assert_eq!(data.pixels[2..5], [5.0 / 16.0, 13.0 / 16.0, 9.0 / 16.0]);
    }

    #[test]
    fn split_holds_out_a_fifth_and_keeps_every_row_once() {
        let data = Dataset::load(None).unwrap();
        let (train, test) = data.split(1);
        assert_eq!((train.rows(), test.rows()), (1438, 359));
        assert_eq!((train.clone(), test.clone()), data.split(1));
        let bits = |row: &[f32]| row.iter().map(|pixel| pixel.to_bits()).collect::<Vec<_>>();
        let sorted = |pixels: &[f32]| {
            let mut rows: Vec<_> = pixels.chunks(PIXELS).map(bits).collect();
            rows.sort_unstable();
            rows
        };
        assert_eq!(sorted(&[train.pixels, test.pixels].concat()), sorted(&data.pixels));
    }

    #[test]
    fn split_keeps_labels_with_their_rows() {
        let labels: Vec<u8> = (0..100).map(|row| row % 10).collect();
        let pixels = labels.iter().flat_map(|label| [f32::from(*label); PIXELS]).collect();
        let (train, test) = Dataset { pixels, labels }.split(3);
        for side in [train, test] {
            for (row, label) in side.pixels.chunks(PIXELS).zip(&side.labels) {
                assert_eq!(row, [f32::from(*label); PIXELS]);
            }
        }
    }

    #[test]
    fn the_error_for_a_missing_file_names_it() {
        let error = Dataset::load(Some(Path::new("no/such.csv.gz"))).unwrap_err().to_string();
        assert!(error.starts_with("no/such.csv.gz: cannot open: "), "{error}");
    }

    #[test]
    fn a_file_that_is_not_gzip_is_refused() {
        let error = "x.csv.gz: not a gzip file; expected a gzipped CSV file of digits";
        assert_eq!(error_text(rows(80, |_| ()).as_bytes()), error);
        assert_eq!(error_text(b""), error);
    }

    #[test]
    fn the_error_for_a_truncated_or_damaged_file_names_the_line() {
        let cut = &SHIPPED[..SHIPPED.len() / 2];
        let error = error_text(cut);
        assert!(error.starts_with("x.csv.gz: line ") && error.contains(": cannot read: "), "{error}");
        let mut damaged = SHIPPED.to_vec();
        damaged[SHIPPED.len() / 2..][..64].fill(0xff);
        let error = error_text(&damaged);
        assert!(error.starts_with("x.csv.gz: line "), "{error}");
    }

    #[test]
    fn text_that_is_not_utf_8_is_refused() {
        let error = error_text(&gzip(b"\xff\xfe,1\n"));
        assert!(error.starts_with("x.csv.gz: line 1: cannot read: "), "{error}");
    }

    #[test]
    fn a_row_with_another_number_of_columns_is_refused() {
        let long = gzip(rows(80, |row| row.push("1")).as_bytes());
        assert_eq!(error_text(&long), "x.csv.gz: line 80: expected 65 columns (64 pixels and the label), got 66");
        let blank = gzip(rows(80, |row| *row = Vec::new()).as_bytes());
        assert_eq!(error_text(&blank), "x.csv.gz: line 80: expected 65 columns (64 pixels and the label), got 1");
    }

    #[test]
    fn the_error_for_an_invalid_number_quotes_it_with_line_and_column() {
        for text in ["x", "", "NaN", "-1", "3.5", "17", "99999999999999999999"] {
            let error = format!("x.csv.gz: line 80, column 2: the pixel is {text:?}, not a whole number from 0 to 16");
            assert_eq!(error_text(&gzip(rows(80, |row| row[1] = text).as_bytes())), error);
            let error = format!("x.csv.gz: line 80, column 65: the label is {text:?}, not a whole number from 0 to 9");
            assert_eq!(error_text(&gzip(rows(80, |row| row[PIXELS] = text).as_bytes())), error);
        }
    }

    #[test]
    fn a_file_without_rows_is_refused() {
        assert_eq!(error_text(&gzip(b"")), "x.csv.gz: no rows in the file");
    }

    #[test]
    fn a_file_with_one_row_too_few_for_a_batch_is_refused() {
        let few =
            "x.csv.gz: 78 rows are too few: after a fifth is held out for testing, fewer than one batch of 64 is left";
        assert_eq!(error_text(&gzip(rows(78, |_| ()).as_bytes())), few);
        assert_eq!(Dataset::parse("x", &gzip(rows(79, |_| ()).as_bytes())).unwrap().split(0).0.rows(), BATCH);
    }

    #[test]
    fn windows_line_ends_and_spaces_around_numbers_are_accepted() {
        let text = rows(80, |row| row[0] = " 3 ").replace('\n', "\r\n");
        assert_eq!(Dataset::parse("x", &gzip(text.as_bytes())).unwrap().rows(), 80);
    }
}
