//! Matrices of 8-bit floats with scales beside them: one for each matrix, row or block.

use std::ops::Range;

use candle_core::{DType, Tensor};
use disco_candle::weights::{Encoding, Part, Shards, Weights};

use crate::ModelError;

/// What the names of scales have in place of `weight`.
const NAMES: [&str; 2] = ["weight_scale", "weight_scale_inv"];

/// The name of the scales of the matrix `name`, if it has 8-bit floats.
///
/// # Errors
/// The matrix has no scales.
pub(crate) fn scales_of(weights: &Weights, name: &str) -> Result<Option<String>, ModelError> {
    if !matches!(weights.info(name)?.encoding(), Encoding::Dense(DType::F8E4M3)) {
        return Ok(None);
    }
    let names = NAMES.map(|scale| name.replace(".weight", &format!(".{scale}")));
    let found = names.iter().find(|scale| *scale != name && weights.contains(scale));
    found
        .cloned()
        .map(Some)
        .ok_or_else(|| ModelError::Inconsistent(format!("{name:?} has 8-bit floats without scales")))
}

/// Checks that scales fit a matrix `[outputs, inputs]`.
///
/// # Errors
/// [`ModelError::Inconsistent`] with both shapes.
pub(crate) fn check(scales: &str, shape: &[usize], matrix: &[usize], block: [usize; 2]) -> Result<(), ModelError> {
    let blocks = [matrix[0].div_ceil(block[0]), matrix[1].div_ceil(block[1])];
    match *shape {
        [] | [1] => Ok(()),
        [rows] if rows == matrix[0] => Ok(()),
        [rows, 1] if rows == matrix[0] => Ok(()),
        [rows, columns] if [rows, columns] == blocks => Ok(()),
        _ => Err(ModelError::Inconsistent(format!(
            "the scales {scales:?} have the shape {shape:?}, which is not one for each matrix, row or block of {block:?} of a matrix {matrix:?}"
        ))),
    }
}

/// This rank's part of the matrix `name`, with its scales. `block` is the size of a block.
pub(crate) fn scaled(shards: &Shards, name: &str, scales: &str, block: [usize; 2]) -> Result<Tensor, ModelError> {
    let (weights, device) = (shards.weights(), shards.device());
    let matrix = shards.tensor(name)?.to_dtype(DType::F32)?;
    let scales = weights.read(scales, &Part::Whole, DType::F32, device)?;
    let shape = weights.info(name)?.shape();
    let part = shards.plan().part(name, shape, shards.rank(), shards.size())?;
    let scaled = match *scales.dims() {
        [] | [1] => matrix.broadcast_mul(&scales.flatten_all()?.unsqueeze(0)?),
        [rows] | [rows, 1] if rows == shape[0] => {
            let rows = indices(&part, 0, shape[0], 1);
            matrix.broadcast_mul(&scales.flatten_all()?.index_select(&Tensor::new(rows, device)?, 0)?.unsqueeze(1)?)
        }
        _ => {
            let rows = Tensor::new(indices(&part, 0, shape[0], block[0]), device)?;
            let columns = Tensor::new(indices(&part, 1, shape[1], block[1]), device)?;
            matrix * scales.index_select(&rows, 0)?.index_select(&columns, 1)?
        }
    };
    Ok(scaled?.to_dtype(shards.dtype())?)
}

/// The block of each of the elements along `dim` of a part of a matrix that has `len` of them.
fn indices(part: &Part, dim: usize, len: usize, block: usize) -> Vec<u32> {
    let all = |range: Range<usize>| range.map(|element| (element / block) as u32);
    match part {
        Part::Range { dim: cut, range } if *cut == dim => all(range.clone()).collect(),
        Part::Ranges { dim: cut, ranges } if *cut == dim => ranges.iter().cloned().flat_map(all).collect(),
        _ => all(0..len).collect(),
    }
}
