//! One sub-case of a collective, on one rank.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use disco_core::{DType, OpKind, Reduction};

use crate::oracle::{Elements, Expected, Values, random};

/// The tensors of input and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Two tensors.
    Apart,
    /// One tensor, passed as the destination; there is no source.
    InPlace,
    /// One tensor, passed as the source and as the destination.
    Same,
}

impl Layout {
    /// The layouts that an operation supports.
    pub(crate) fn of(kind: OpKind) -> Vec<Self> {
        match kind {
            OpKind::AllReduce | OpKind::Reduce | OpKind::Broadcast => vec![Self::Apart, Self::InPlace, Self::Same],
            _ => vec![Self::Apart, Self::InPlace],
        }
    }

    /// Whether each rank may choose its layout. The counts of an all-to-all V depend on the layout.
    pub(crate) fn may_differ_by_rank(kind: OpKind) -> bool {
        kind != OpKind::AllToAllV
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Apart => "two tensors",
            Self::InPlace => "in place",
            Self::Same => "the same tensor twice",
        }
    }
}

/// What sub-cases have in common that differ in nothing but their number of elements, row, layout, root, values and offset.
#[derive(Debug, Default)]
pub(crate) struct Common {
    /// By kind of values, rank and number of elements.
    inputs: Known<(Values, usize, usize), Vec<u8>>,
    /// By kind of values, last dimension and number of elements.
    reduced: Known<(Values, Option<usize>, usize), Expected>,
}

type Known<K, V> = RefCell<HashMap<K, V>>;

/// Largest input that is kept, in bytes: those of large all-to-alls would be as many as pairs of ranks.
const MAX_KEPT: usize = 1 << 20;

/// One sub-case, as rank `me` of `size` sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case<'c> {
    pub(crate) kind: OpKind,
    pub(crate) dtype: DType,
    pub(crate) reduction: Reduction,
    /// Elements of a block.
    pub(crate) count: usize,
    /// The last dimension of the tensors, which divides `count`; `None` for tensors of one dimension.
    pub(crate) row: Option<usize>,
    pub(crate) root: usize,
    pub(crate) layout: Layout,
    pub(crate) values: Values,
    /// Elements before each tensor in its storage.
    pub(crate) offset: usize,
    pub(crate) me: usize,
    pub(crate) size: usize,
    pub(crate) exact: bool,
    /// Part of the seed of the inputs.
    pub(crate) salt: u64,
    pub(crate) common: &'c Common,
}

impl Case<'_> {
    /// The input of a rank: `count` elements.
    pub(crate) fn input(&self, rank: usize, count: usize) -> Vec<u8> {
        let make = || match self.values {
            Values::Bits => random(self.dtype, self.salt + (rank * 31 + count) as u64, count),
            values => values.bytes(self.dtype, self.reduction, (rank, self.size), count, self.salt),
        };
        if count * self.dtype.size() > MAX_KEPT {
            return make();
        }
        self.common.inputs.borrow_mut().entry((self.values, rank, count)).or_insert_with(make).clone()
    }

    /// The inputs of all ranks, one after the other.
    pub(crate) fn inputs(&self, count: usize) -> Vec<u8> {
        (0..self.size).flat_map(|rank| self.input(rank, count)).collect()
    }

    /// The reduction of `count` elements of all ranks.
    pub(crate) fn reduced(&self, count: usize) -> Expected {
        let reduce = || self.reduce(count);
        self.common.reduced.borrow_mut().entry((self.values, self.row, count)).or_insert_with(reduce).clone()
    }

    fn reduce(&self, count: usize) -> Expected {
        let inputs = (0..self.size).map(|rank| Elements::decode(self.dtype, &self.input(rank, count)));
        if let Some(row) = self.row {
            return Expected::of_chain(self.dtype, row, &inputs.collect::<Vec<_>>());
        }
        // For averages, vendors may multiply by the reciprocal of the number of ranks, which may not be exact.
        let rounds = self.reduction == Reduction::Avg && self.dtype.is_float() && !self.size.is_power_of_two();
        let exact = self.values == Values::Whole && !rounds;
        Expected::of(self.dtype, self.reduction, &inputs.collect::<Vec<_>>(), exact)
    }

    /// `count` elements of a list of bytes.
    pub(crate) fn cut(&self, bytes: &[u8], first: usize, count: usize) -> Vec<u8> {
        bytes[first * self.dtype.size()..][..count * self.dtype.size()].to_vec()
    }
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, dtype, reduction, count, row, root, layout, values, offset, me, size, .. } = self;
        write!(f, "{kind} of {dtype} x {count}, {}", values.name())?;
        if let Some(row) = row {
            write!(f, ", in rows of {row}")?;
        }
        if matches!(kind, OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter) {
            write!(f, ", {reduction}")?;
        }
        if matches!(kind, OpKind::Reduce | OpKind::Broadcast | OpKind::Gather | OpKind::Scatter) {
            write!(f, ", root {root}")?;
        }
        write!(f, ", {}, at element {offset} of the storage: rank {me} of {size}", layout.name())
    }
}
