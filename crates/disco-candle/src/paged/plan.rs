//! Which tokens attend to which blocks.

use std::ops::Range;

use candle_core::{Error, Result, Tensor};

/// Number of tokens of a block.
pub const BLOCK: usize = 16;
/// The largest number of tokens of a tile, whose rows a few blocks of threads of a device compute.
const TILE: usize = 4;

/// Consecutive tokens of a sequence, whose keys and values are in blocks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Run {
    /// The position of the first one in its sequence.
    pub first: usize,
    /// Number of tokens.
    pub count: usize,
    /// The blocks of the sequence, these tokens included.
    pub table: Vec<u32>,
}

impl Run {
    /// `count` tokens from position `first` on of the sequence that has these blocks.
    pub fn new(first: usize, count: usize, table: Vec<u32>) -> Self {
        Self { first, count, table }
    }

    /// The blocks that the tokens attend to.
    fn used(&self) -> Option<&[u32]> {
        self.table.get(..(self.first + self.count).div_ceil(BLOCK))
    }
}

/// Which tokens attend to which blocks: the same for all layers.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    pub(super) runs: &'a [Run],
    pub(super) groups: &'a [Range<usize>],
    /// All tokens, and all query heads.
    pub(super) tokens: usize,
    pub(super) heads: usize,
    /// The number of blocks that keys and values have at least.
    pub(super) blocks: usize,
    /// Begins with [`Plan::words`], in the memory of a CUDA device.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only CUDA devices read it"))]
    pub(super) uploaded: Option<Tensor>,
}

impl<'a> Plan<'a> {
    /// The tokens of `runs` follow each other in the queries. `groups` has the query heads of each kv head, which follow each
    /// other, too.
    ///
    /// # Errors
    /// A run has fewer blocks than its tokens need; the groups do not follow each other from 0 on.
    pub fn new(runs: &'a [Run], groups: &'a [Range<usize>]) -> Result<Self> {
        let (mut tokens, mut blocks, mut heads) = (0, 0, 0);
        for run in runs {
            let Run { first, count, table } = run;
            let used = run.used().ok_or_else(|| {
                Error::Msg(format!("{count} tokens from {first} on in a table of {} blocks", table.len()))
            })?;
            tokens += count;
            blocks = used.iter().fold(blocks, |blocks, block| blocks.max(*block as usize + 1));
        }
        for group in groups {
            if group.start != heads || group.end < group.start {
                return Err(Error::Msg(format!("query heads {group:?} of a kv head follow {heads} query heads")));
            }
            heads = group.end;
        }
        Ok(Self { runs, groups, tokens, heads, blocks, uploaded: None })
    }

    /// The plan for a CUDA device: u32 `[words]` there, which begin with [`words`](Self::words). The memory may be that of an
    /// earlier plan of as many runs, with as many tokens each, so that a graph reads this one.
    #[must_use]
    pub fn on_device(self, words: Tensor) -> Self {
        Self { uploaded: Some(words), ..self }
    }

    /// Tiles of at most [`TILE`] tokens.
    pub(super) fn tiles(&self) -> usize {
        self.runs.iter().map(|run| run.count.div_ceil(TILE)).sum()
    }

    /// The largest number of rows of a tile.
    #[cfg(any(test, feature = "cuda"))]
    pub(super) fn rows(&self) -> usize {
        let tokens = self.runs.iter().map(|run| run.count.min(TILE)).max();
        let heads = self.groups.iter().map(ExactSizeIterator::len).max();
        tokens.unwrap_or(0) * heads.unwrap_or(0)
    }

    /// What the kernel of a CUDA device reads: the tiles, four words each; the groups, two words each; the tables. See
    /// `attention.cu`.
    pub fn words(&self) -> Vec<u32> {
        let (mut words, mut tables) = (Vec::with_capacity(4 * self.tiles()), Vec::new());
        let mut place = 0;
        for run in self.runs {
            for start in (0..run.count).step_by(TILE) {
                let count = TILE.min(run.count - start);
                words.extend([run.first + start, count, place + start, tables.len()].map(|number| number as u32));
            }
            place += run.count;
            tables.extend_from_slice(run.used().unwrap_or_default());
        }
        words.extend(self.groups.iter().flat_map(|group| [group.start as u32, group.end as u32]));
        words.extend(tables);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_groups_and_tables_follow_each_other() {
        let runs = [Run::new(14, 5, vec![7, 2]), Run::new(3, 1, vec![4, 9])];
        let plan = Plan::new(&runs, &[0..1, 1..4]).unwrap();
        assert_eq!((plan.tiles(), plan.rows(), plan.blocks), (3, 12, 8));
        let tiles = [[14, 4, 0, 0], [18, 1, 4, 0], [3, 1, 5, 2]];
        let expected: Vec<u32> = tiles.into_iter().flatten().chain([0, 1, 1, 4]).chain([7, 2, 4]).collect();
        assert_eq!(plan.words(), expected);
    }

    #[test]
    fn too_few_blocks_and_gaps_between_groups_are_errors() {
        let error = |run, groups: &[_]| Plan::new(&[run], groups).unwrap_err().to_string();
        let short = error(Run::new(16, 1, vec![0]), &[0..1, 1..2]);
        assert_eq!(short, "1 tokens from 16 on in a table of 1 blocks");
        let gap = error(Run::new(0, 1, vec![0]), &[0..1, 2..3]);
        assert_eq!(gap, "query heads 2..3 of a kv head follow 1 query heads");
    }
}
