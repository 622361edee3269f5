//! One sub-case of a collective, on one rank.

use std::fmt;

use disco_core::{DType, OpKind, Reduction, Result};

use super::part::Part;
use crate::communicator::stage::Stage;
use crate::oracle::{Elements, Expected, Values, random};

/// Where input and output lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// In two tensors.
    Apart,
    /// In one tensor; there is no source.
    InPlace,
    /// In one tensor, which is passed twice.
    Same,
}

impl Layout {
    /// Those that an operation has.
    pub(crate) fn of(kind: OpKind) -> Vec<Self> {
        match kind {
            OpKind::AllReduce | OpKind::Reduce | OpKind::Broadcast => vec![Self::Apart, Self::InPlace, Self::Same],
            _ => vec![Self::Apart, Self::InPlace],
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Apart => "two tensors",
            Self::InPlace => "in place",
            Self::Same => "the same tensor twice",
        }
    }
}

/// One sub-case, as rank `me` of `size` sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) kind: OpKind,
    pub(crate) dtype: DType,
    pub(crate) reduction: Reduction,
    /// Elements of a block.
    pub(crate) count: usize,
    pub(crate) root: usize,
    pub(crate) layout: Layout,
    pub(crate) values: Values,
    /// Elements before each tensor in its storage.
    pub(crate) offset: usize,
    pub(crate) me: usize,
    pub(crate) size: usize,
    pub(crate) exact: bool,
}

/// What came of a sub-case.
#[derive(Debug)]
pub(crate) struct Ran {
    /// What is wrong, if anything.
    pub(crate) wrong: Option<String>,
    /// The bytes of all results.
    pub(crate) result: Vec<u8>,
}

/// What must be in a tensor afterwards.
#[derive(Debug)]
pub(crate) enum Want {
    /// What was in it before.
    Unchanged,
    /// These bytes.
    Bytes(Vec<u8>),
    /// These numbers first; nothing is said of what follows.
    Numbers(Expected),
}

impl Case {
    /// Runs it and compares; a second time where results must not depend on the run.
    pub(crate) fn run(&self, stage: &mut Stage<'_>) -> Result<Ran> {
        let ran = self.run_once(stage)?;
        if !self.exact || self.values != Values::Any || ran.wrong.is_some() {
            return Ok(ran);
        }
        let again = self.run_once(stage)?;
        let wrong = (again.result != ran.result).then(|| format!("{self}: a second run gives another result"));
        Ok(Ran { wrong, ..ran })
    }

    fn run_once(&self, stage: &mut Stage<'_>) -> Result<Ran> {
        let part = Part::of(self, stage)?;
        stage.enqueue(&[part.op])?;
        let mut ran = Ran { wrong: None, result: Vec::new() };
        for (name, buffer, want) in part.wants {
            let (bytes, touched) = buffer.read(stage.ctx)?;
            let wrong = touched.or_else(|| self.wrong(&bytes, buffer.content(), &want));
            ran.wrong = ran.wrong.or_else(|| wrong.map(|wrong| format!("{self}: {name}: {wrong}")));
            match want {
                Want::Unchanged => {}
                Want::Bytes(_) => ran.result.extend(bytes),
                Want::Numbers(expected) => ran.result.extend(&bytes[..expected.len() * self.dtype.size()]),
            }
        }
        Ok(ran)
    }

    /// The first wrong element, in words.
    fn wrong(&self, bytes: &[u8], before: &[u8], want: &Want) -> Option<String> {
        let got = || Elements::decode(self.dtype, bytes);
        let (index, expected) = match want {
            Want::Unchanged => self.first_difference(bytes, before)?,
            Want::Bytes(expected) => self.first_difference(bytes, expected)?,
            Want::Numbers(expected) => expected.first_wrong(&got())?,
        };
        let change = if matches!(want, Want::Unchanged) { " of the input, which was changed" } else { "" };
        Some(format!("element {index}{change}: expected {expected}, got {}", got().show(index)))
    }

    fn first_difference(&self, bytes: &[u8], expected: &[u8]) -> Option<(usize, String)> {
        let at = bytes.iter().zip(expected).position(|(got, expected)| got != expected)?;
        let index = at / self.dtype.size();
        Some((index, Elements::decode(self.dtype, expected).show(index)))
    }

    /// What a rank puts in: `count` elements.
    pub(crate) fn input(&self, rank: usize, count: usize) -> Vec<u8> {
        match self.values {
            Values::Bits => random(self.dtype, (rank * 31 + count) as u64, count),
            values => values.bytes(self.dtype, self.reduction, rank, self.size, count),
        }
    }

    /// The inputs of all ranks, one after the other.
    pub(crate) fn inputs(&self, count: usize) -> Vec<u8> {
        (0..self.size).flat_map(|rank| self.input(rank, count)).collect()
    }

    /// The reduction of `count` elements of all ranks.
    pub(crate) fn reduced(&self, count: usize) -> Expected {
        let inputs = (0..self.size).map(|rank| Elements::decode(self.dtype, &self.input(rank, count)));
        // Vendors may multiply with the reciprocal of a number of ranks that has none.
        let rounds = self.reduction == Reduction::Avg && self.dtype.is_float() && !self.size.is_power_of_two();
        let exact = self.values == Values::Whole && !rounds;
        Expected::of(self.dtype, self.reduction, &inputs.collect::<Vec<_>>(), exact)
    }

    /// `count` elements of a list of bytes.
    pub(crate) fn cut(&self, bytes: &[u8], first: usize, count: usize) -> Vec<u8> {
        bytes[first * self.dtype.size()..][..count * self.dtype.size()].to_vec()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, dtype, reduction, count, root, layout, values, offset, me, size, .. } = self;
        write!(f, "{kind} of {dtype} x {count}, {}", values.name())?;
        if matches!(kind, OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter) {
            write!(f, ", {reduction}")?;
        }
        if matches!(kind, OpKind::Reduce | OpKind::Broadcast | OpKind::Gather | OpKind::Scatter) {
            write!(f, ", root {root}")?;
        }
        write!(f, ", {}, at element {offset} of the storage: rank {me} of {size}", layout.name())
    }
}
