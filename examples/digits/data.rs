//! The handwritten digits: rows of 64 pixels and a label, from a gzipped CSV file.

use std::io::{BufRead, BufReader};

use flate2::bufread::MultiGzDecoder;

use super::random::Random;
use super::train::Failure;

/// Pixels of one image, row by row: 8 by 8.
pub(crate) const PIXELS: usize = 64;
/// Number of different labels: the digits 0 to 9.
pub(crate) const CLASSES: usize = 10;
/// Rows of a batch; all workers together compute one batch.
pub(crate) const BATCH: usize = 64;

/// The data; source and licence are in `examples/data/README.md`.
const DIGITS: &[u8] = include_bytes!("../data/digits.csv.gz");
/// Largest value of a pixel, the number of set bits in a block of 4 by 4.
const BRIGHTEST: f32 = 16.0;

/// Images and their labels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dataset {
    /// `rows × 64` numbers in `0.0..=1.0`, row-major.
    pub(crate) pixels: Vec<f32>,
    /// `rows` digits.
    pub(crate) labels: Vec<u8>,
}

impl Dataset {
    /// Reads the data.
    ///
    /// # Errors
    /// The file of the repository is damaged.
    pub(crate) fn load() -> Result<Self, Failure> {
        let mut data = Self { pixels: Vec::new(), labels: Vec::new() };
        for line in BufReader::new(MultiGzDecoder::new(DIGITS)).lines() {
            let line = line?;
            let (pixels, label) = line.rsplit_once(',').ok_or("digits.csv.gz: a line without columns")?;
            for pixel in pixels.split(',') {
                data.pixels.push(pixel.parse::<f32>()? / BRIGHTEST);
            }
            data.labels.push(label.parse()?);
        }
        Ok(data)
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
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_shipped_file_has_1797_images_of_all_ten_digits() {
        let data = Dataset::load().unwrap();
        assert_eq!((data.rows(), data.pixels.len()), (1797, 1797 * PIXELS));
        assert_eq!(data.labels.iter().copied().collect::<BTreeSet<_>>(), (0..10).collect());
        assert!(data.pixels.iter().all(|pixel| (0.0..=1.0).contains(pixel)));
        assert_eq!(data.pixels[2..5], [5.0 / 16.0, 13.0 / 16.0, 9.0 / 16.0]);
    }

    #[test]
    fn split_holds_out_a_fifth_and_keeps_every_row_once() {
        let data = Dataset::load().unwrap();
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
}
