//! Collectives with tensors: all sub-cases of one check, on one rank.

pub(crate) mod case;
pub(crate) mod maker;

use disco_core::{Capabilities, DType, Error, OpKind, Reduction, Result};

use self::case::{Case, Common, Layout};
use super::fixture::Fixture;
use super::verdict::{Tally, Verdict};
use crate::oracle::Values;

/// Elements of a block, for worlds of up to four ranks: none, one, odd, prime, and more than the small-message path of
/// any backend takes.
const COUNTS: [usize; 5] = [0, 1, 7, 257, 2053];
/// Elements of a block, for larger worlds.
const FEW_COUNTS: [usize; 3] = [1, 7, 257];
/// More than 1 MiB of `f32`.
const LARGE: usize = (1 << 18) + 5;
/// Rows of a block, and elements of a row, for reductions of programs: nothing, small messages, several staging pieces
/// of `local`, and rows that have no room in such a piece.
const ROWS: [(usize, usize); 6] = [(0, 3), (1, 1), (3, 7), (257, 4), (20_011, 3), (3, 40_009)];
/// For communicators of more than four ranks.
const FEW_ROWS: [(usize, usize); 3] = [(1, 1), (3, 7), (257, 4)];

/// A collective on one dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collective {
    pub(crate) kind: OpKind,
    pub(crate) dtype: DType,
    /// The reduction, if the kind is a reduction.
    pub(crate) reduction: Option<Reduction>,
    /// Whether the tensors exceed 1 MiB.
    pub(crate) large: bool,
}

impl Collective {
    /// The name of the check, such as `all_reduce::bf16::avg`.
    pub(crate) fn name(&self) -> String {
        let large = if self.large { "large::" } else { "" };
        let reduction = self.reduction.map_or_else(String::new, |reduction| format!("::{reduction}"));
        format!("{large}{}::{}{reduction}", self.kind, self.dtype)
    }

    /// Runs every sub-case on this rank.
    ///
    /// # Errors
    /// Errors of the communicator.
    pub(crate) fn run(&self, fixture: &mut Fixture<'_>) -> Result<Verdict> {
        if !self.is_supported(fixture.comm()?.capabilities()) {
            return self.refused(fixture);
        }
        let (mut tally, common) = (Tally::default(), Common::default());
        for case in self.cases(fixture, &common)? {
            let ran = case.run(fixture)?;
            // Every rank gets the same.
            tally.count(ran.wrong, if self.kind == OpKind::AllReduce { &ran.result } else { &[] });
        }
        Ok(tally.verdict(fixture.color))
    }

    fn is_supported(&self, capabilities: Capabilities) -> bool {
        capabilities.supports(self.kind, self.dtype, self.reduction)
    }

    /// Checks that the communicator refuses an operation that its capabilities lack.
    fn refused(&self, fixture: &mut Fixture<'_>) -> Result<Verdict> {
        let common = Common::default();
        let case = Case { count: 1, ..self.first(fixture, &common)? };
        Ok(match case.run(fixture) {
            Err(error @ Error::Unsupported { .. }) => Verdict::Skipped(error.to_string()),
            Err(other) => Verdict::Wrong(format!("{case}: expected to be unsupported, got: {other}")),
            Ok(_) => Verdict::Wrong(format!("{case}: ran, although the capabilities lack it")),
        })
    }

    fn first<'c>(&self, fixture: &mut Fixture<'_>, common: &'c Common) -> Result<Case<'c>> {
        let (me, size) = fixture.rank_and_size()?;
        Ok(Case {
            kind: self.kind,
            dtype: self.dtype,
            reduction: self.reduction.unwrap_or(Reduction::Sum),
            count: 0,
            row: None,
            root: 0,
            layout: Layout::Apart,
            values: Values::Bits,
            offset: 0,
            me,
            size,
            exact: fixture.exact,
            salt: 0,
            common,
        })
    }

    fn cases<'c>(&self, fixture: &mut Fixture<'_>, common: &'c Common) -> Result<Vec<Case<'c>>> {
        let first = self.first(fixture, common)?;
        // The count and the row of each block.
        let flat = |counts: &[usize]| counts.iter().map(|count| (*count, None)).collect::<Vec<_>>();
        let in_rows = |rows: &[(usize, usize)]| rows.iter().map(|(rows, row)| (rows * row, Some(*row))).collect();
        let shapes = match (first.size, first.reduction) {
            (..=4, Reduction::Custom(_)) => in_rows(&ROWS),
            (_, Reduction::Custom(_)) => in_rows(&FEW_ROWS),
            _ if self.large => flat(&[LARGE]),
            (..=4, _) => flat(&COUNTS),
            _ => flat(&FEW_COUNTS),
        };
        let mut cases = Vec::new();
        for (index, &(count, row)) in shapes.iter().enumerate() {
            for root in self.roots(first.size, index) {
                let mut layouts = Layout::of(self.kind);
                if index + 1 == shapes.len() && Layout::may_differ_by_rank(self.kind) {
                    // Another layout on even ranks than on odd ranks.
                    layouts.push(layouts[first.me % 2]);
                }
                for layout in layouts {
                    for &values in self.values(fixture.exact) {
                        // Aligned and unaligned offsets alternate.
                        let offset = [0, 1, 3][cases.len() % 3];
                        cases.push(Case { count, row, root, layout, values, offset, ..first });
                    }
                }
            }
        }
        Ok(cases)
    }

    /// All roots in a small world with small counts; otherwise one root for each count.
    fn roots(&self, size: usize, index: usize) -> Vec<usize> {
        let rooted = matches!(self.kind, OpKind::Reduce | OpKind::Broadcast | OpKind::Gather | OpKind::Scatter);
        if !rooted {
            vec![0]
        } else if size <= 4 && index < 3 {
            (0..size).collect()
        } else {
            vec![(index + 1) % size]
        }
    }

    fn values(&self, exact: bool) -> &'static [Values] {
        match self.reduction {
            None => &[Values::Bits],
            Some(_) if self.large => &[Values::Whole],
            Some(Reduction::Custom(_)) => &[Values::Bits],
            Some(Reduction::Min | Reduction::Max) if exact && self.dtype.is_float() => {
                &[Values::Whole, Values::Any, Values::Nan]
            }
            Some(_) => &[Values::Whole, Values::Any],
        }
    }
}
