//! One rank's part of an operation, and the comparison of its results.

use std::borrow::Cow;

use disco_core::{DType, Op, Result, WorkerContext};

use super::buffer::Buffer;
use crate::oracle::{Elements, Expected};

/// One rank's part: its operation, or its sends and receives; and each of its tensors, by name, with the content that
/// it must have afterwards.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) ops: Vec<Op>,
    wants: Vec<(Cow<'static, str>, Buffer, Want)>,
}

/// The content that a tensor must have after an operation.
#[derive(Debug)]
pub(crate) enum Want {
    /// The content that it had before.
    Unchanged,
    /// These bytes.
    Bytes(Vec<u8>),
    /// These numbers first; elements behind them are not compared.
    Numbers(Expected),
}

/// The state of a part's tensors after its operation.
#[derive(Debug)]
pub(crate) struct Seen {
    /// A text about the first wrong element.
    pub(crate) wrong: Option<String>,
    /// The bytes of all results.
    pub(crate) result: Vec<u8>,
}

impl Part {
    /// A part of one operation.
    pub(crate) fn new(op: Op, wants: impl IntoIterator<Item = (&'static str, Buffer, Want)>) -> Self {
        let named = |(name, buffer, want): (&'static str, _, _)| (name.into(), buffer, want);
        Self { ops: vec![op], wants: wants.into_iter().map(named).collect() }
    }

    /// Adds an operation on a tensor.
    pub(crate) fn push(&mut self, op: Op, name: String, buffer: Buffer, want: Want) {
        self.ops.push(op);
        self.wants.push((name.into(), buffer, want));
    }

    /// Compares the tensors with their expected contents. The operation has ended.
    ///
    /// # Errors
    /// The tensors can't be copied to the host.
    pub(crate) fn inspect(&self, ctx: &mut WorkerContext, dtype: DType) -> Result<Seen> {
        let mut seen = Seen { wrong: None, result: Vec::new() };
        for (name, buffer, want) in &self.wants {
            let (bytes, touched) = buffer.read(ctx)?;
            let wrong = touched.or_else(|| want.wrong(dtype, &bytes, buffer.content()));
            seen.wrong = seen.wrong.or_else(|| wrong.map(|wrong| format!("{name}: {wrong}")));
            match want {
                Want::Unchanged => {}
                Want::Bytes(_) => seen.result.extend(bytes),
                Want::Numbers(expected) => seen.result.extend(&bytes[..expected.len() * dtype.size()]),
            }
        }
        Ok(seen)
    }
}

impl Want {
    /// A text about the first wrong element.
    fn wrong(&self, dtype: DType, bytes: &[u8], before: &[u8]) -> Option<String> {
        let got = || Elements::decode(dtype, bytes);
        let (index, expected) = match self {
            Self::Unchanged => first_difference(dtype, bytes, before)?,
            Self::Bytes(expected) => first_difference(dtype, bytes, expected)?,
            Self::Numbers(expected) => expected.first_wrong(&got())?,
        };
        let change = if matches!(self, Self::Unchanged) { " of the input, which was changed" } else { "" };
        Some(format!("element {index}{change}: expected {expected}, got {}", got().show(index)))
    }
}

fn first_difference(dtype: DType, bytes: &[u8], expected: &[u8]) -> Option<(usize, String)> {
    if bytes == expected {
        return None;
    }
    let at = bytes.iter().zip(expected).position(|(got, expected)| got != expected)?;
    let index = at / dtype.size();
    Some((index, Elements::decode(dtype, expected).show(index)))
}
