//! The remote ends of the GPUs' links, for each kind of machine.

use super::abi::Code;
use crate::settings::{self, Machine};

/// The remote end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The GPU with this number.
    Gpu(usize),
    /// The switch with this number.
    Switch(usize),
    /// The link is down.
    Down,
}

/// The remote GPUs of the links of each V100 in NVIDIA's DGX-1, as published by NVIDIA: the edges of a cube, some with
/// two links, and the diagonals of two of its faces.
const DGX_1: [[usize; 6]; 8] = [
    [1, 2, 3, 3, 4, 4],
    [0, 2, 2, 3, 5, 5],
    [0, 1, 1, 3, 3, 6],
    [0, 0, 1, 2, 2, 7],
    [0, 0, 5, 6, 7, 7],
    [1, 1, 4, 6, 6, 7],
    [2, 4, 5, 5, 7, 7],
    [3, 4, 4, 5, 6, 6],
];

impl Machine {
    /// Number of GPUs of the machine; CUDA may show fewer.
    pub(crate) fn gpus(self) -> usize {
        match self {
            Self::Pcie => settings::read().devices(),
            Self::Dgx1 | Self::Broken | Self::H100 => 8,
            Self::Dgx2 => 16,
        }
    }

    /// The remote end of a GPU's link.
    pub(crate) fn end(self, gpu: usize, link: usize) -> Result<End, Code> {
        let is_one_of = |links| if link < links { Ok(()) } else { Err(Code::INVALID_ARGUMENT) };
        match self {
            Self::Pcie => Err(Code::NOT_SUPPORTED),
            Self::Broken if (gpu, link) == (7, 0) => Ok(End::Down),
            Self::Dgx1 | Self::Broken => is_one_of(6).map(|()| End::Gpu(DGX_1[gpu][link])),
            // Six switches, one for each link.
            Self::Dgx2 => is_one_of(6).map(|()| End::Switch(link)),
            // Four switches, with four or five links to each.
            Self::H100 => is_one_of(18).map(|()| End::Switch(link % 4)),
        }
    }
}
