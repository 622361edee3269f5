//! The memory of matrices: the worker's own, or memory that outlives it.
#![allow(unsafe_code)] // Types that consist of their bytes.

use std::ops::Deref;

use bytemuck::{Pod, Zeroable};
use disco_core::shared_memory::FrozenBytes;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::blocks::Codes;
use super::elements::{Element, Kind, Line};

/// Elements of a matrix.
#[derive(Debug)]
pub(super) enum Elements<T> {
    Own(Vec<T>),
    Stored(FrozenBytes),
}

/// A matrix in memory that outlives its worker, without its elements.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) enum Stored {
    Dense { kind: Kind, outputs: usize, inputs: usize },
    Packed { outputs: usize, inputs: usize, columns: usize, bits: usize, zero: i32, table: Option<[i8; 16]> },
}

impl<T: Pod> Deref for Elements<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Own(elements) => elements,
            Self::Stored(bytes) => bytemuck::cast_slice(bytes),
        }
    }
}

impl<T: Pod> Elements<T> {
    /// `None`: there are other than `count` elements.
    pub(super) fn stored(bytes: Option<FrozenBytes>, count: usize) -> Option<Self> {
        let bytes = bytes?;
        (bytemuck::try_cast_slice::<u8, T>(&bytes).ok()?.len() == count).then_some(Self::Stored(bytes))
    }
}

// SAFETY: the zero bits of its numbers are numbers.
unsafe impl<T: Zeroable> Zeroable for Line<T> {}
// SAFETY: 32 numbers of 2 or 4 bytes are a multiple of the alignment, so there is no padding: see below.
unsafe impl<T: Element> Pod for Line<T> {}
// SAFETY: zeros are codes.
unsafe impl Zeroable for Codes {}
// SAFETY: 64 bytes, as the alignment.
unsafe impl Pod for Codes {}

const _: () = assert!(
    size_of::<Line<f32>>() == 32 * size_of::<f32>()
        && size_of::<Line<f16>>() == 32 * size_of::<f16>()
        && size_of::<Line<bf16>>() == 32 * size_of::<bf16>()
        && size_of::<Codes>() == 64
);
