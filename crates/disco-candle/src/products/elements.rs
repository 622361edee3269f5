//! Elements of dense matrices.

use bytemuck::Pod;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// Outputs of a panel.
pub(super) const PANEL: usize = 32;

/// The weights of a column of a panel.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Line<T>(pub(super) [T; PANEL]);

/// How the elements of a dense matrix become 32-bit floats.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) enum Kind {
    F32,
    F16,
    Bf16,
}

/// The elements of a dense matrix.
pub(crate) trait Element: Pod + Send + Sync {
    const KIND: Kind;

    fn to_f32(self) -> f32;
}

impl Element for f32 {
    const KIND: Kind = Kind::F32;

    fn to_f32(self) -> f32 {
        self
    }
}

impl Element for f16 {
    const KIND: Kind = Kind::F16;

    fn to_f32(self) -> f32 {
        Self::to_f32(self)
    }
}

impl Element for bf16 {
    const KIND: Kind = Kind::Bf16;

    fn to_f32(self) -> f32 {
        Self::to_f32(self)
    }
}
