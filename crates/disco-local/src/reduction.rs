//! The reductions of this backend for others, which get the same bits.

#![allow(unsafe_code)]

use disco_core::{Capabilities, DType, Error, OpKind, Reduction, Result};

use crate::NAME;
use crate::kernel::{self, Fold};

/// Overwrites `output` with the reduction of `inputs`, of which `None` stands for the bytes of `output`. All have the same
/// number of whole elements of `dtype`. The result has the bits that the communicators of this crate give: that of a loop over
/// the inputs in their order, rounded once.
///
/// # Errors
/// [`Error::Unsupported`] if the dtype does not support the reduction, or the program brings it;
/// [`Error::Invalid`] if an input has another size, or there is none.
pub fn reduce(dtype: DType, reduction: Reduction, inputs: &[Option<&[u8]>], output: &mut [u8]) -> Result<()> {
    let bytes = output.len();
    let is_alike = |input: &Option<&[u8]>| input.is_none_or(|input| input.len() == bytes);
    if inputs.is_empty() || !inputs.iter().all(is_alike) || !bytes.is_multiple_of(dtype.size()) {
        return Err(Error::invalid(format!("the inputs of a reduction do not fit its output of {bytes} bytes")));
    }
    let unsupported =
        || Error::Unsupported { backend: NAME, operation: format!("reduction {reduction}"), dtype: Some(dtype) };
    if !Capabilities::all().supports(OpKind::AllReduce, dtype, Some(reduction)) {
        return Err(unsupported());
    }
    let to = output.as_mut_ptr();
    let from: Vec<_> = inputs.iter().map(|input| input.map_or(to.cast_const(), <[u8]>::as_ptr)).collect();
    let (count, stream) = (bytes / dtype.size(), false);
    let fold = Fold { dtype, reduction, inputs: &from, outputs: &[to], first: 0, count, stream };
    // SAFETY: the slices are valid for `count` elements. The output is borrowed mutably, so nothing else accesses it: an
    // input overlaps it only as `None`, with the same address.
    if unsafe { kernel::reduce(fold) } { Ok(()) } else { Err(unsupported()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_may_be_one_of_the_inputs() {
        let bytes = |values: [f32; 2]| values.map(f32::to_ne_bytes).concat();
        let (first, last, mut output) = (bytes([1e8, 1.0]), bytes([-1e8, 3.0]), bytes([1.0, 2.0]));
        reduce(DType::F32, Reduction::Sum, &[Some(&first), None, Some(&last)], &mut output).unwrap();
        assert_eq!(output, bytes([(1e8 + 1.0) - 1e8, 6.0]));
    }

    #[test]
    fn inputs_of_another_size_are_refused() {
        for inputs in [&[Some(&[0; 3][..])][..], &[]] {
            assert!(reduce(DType::U8, Reduction::Max, inputs, &mut [0; 4]).is_err());
        }
        assert!(reduce(DType::Bool, Reduction::Avg, &[None], &mut [1; 4]).is_err());
    }
}
