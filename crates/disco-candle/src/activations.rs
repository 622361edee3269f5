//! Activations, sines, cosines and softmax of tensors of the host, whose bits are the same on any processor. They are computed in 32 bits and rounded
//! once. candle computes tensors on devices, tensors with gradients, and tensors of other types.

use candle_core::{D, DType, Result, Tensor};
use rayon::iter::{IndexedParallelIterator as _, ParallelIterator as _};
use rayon::slice::{ParallelSlice as _, ParallelSliceMut as _};

use crate::floats::{PART, floats, of_floats, with_floats};
use crate::functions::{self, each, softmax_of_rows};
use crate::products::Level;

/// `x · σ(x)`.
///
/// # Errors
/// Errors of candle.
pub fn silu(x: &Tensor) -> Result<Tensor> {
    if has_own(x) { of_each(x, functions::silu) } else { x.silu() }
}

/// The form of GELU with tanh.
///
/// # Errors
/// Errors of candle.
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    if has_own(x) { of_each(x, functions::gelu) } else { x.gelu() }
}

/// `1 / (1 + e⁻ˣ)`.
///
/// # Errors
/// Errors of candle.
pub fn sigmoid(x: &Tensor) -> Result<Tensor> {
    if has_own(x) { of_each(x, functions::sigmoid) } else { candle_nn::ops::sigmoid(x) }
}

/// The hyperbolic tangent.
///
/// # Errors
/// Errors of candle.
pub fn tanh(x: &Tensor) -> Result<Tensor> {
    if has_own(x) { of_each(x, functions::tanh) } else { x.tanh() }
}

/// The sine.
///
/// # Errors
/// Errors of candle.
pub fn sin(x: &Tensor) -> Result<Tensor> {
    if has_own(x) { of_each(x, functions::sin) } else { x.sin() }
}

/// The cosine.
///
/// # Errors
/// Errors of candle.
pub fn cos(x: &Tensor) -> Result<Tensor> {
    if has_own(x) { of_each(x, functions::cos) } else { x.cos() }
}

/// `gate · σ(gate) · up`, a gate by SiLU.
///
/// # Errors
/// The shapes differ; errors of candle.
pub fn silu_gated(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if !has_own(gate) || !has_own(up) || gate.dtype() != up.dtype() || gate.shape() != up.shape() {
        return silu(gate)? * up;
    }
    let level = Level::detect();
    in_parts(gate, Some(up), PART, |y, up| {
        each(level, y, functions::silu);
        y.iter_mut().zip(up).for_each(|(y, up)| *y *= up);
    })
}

/// The softmax of the last dimension.
///
/// # Errors
/// The tensor has no dimensions; errors of candle.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?.max(1);
    if x.track_op() {
        return candle_nn::ops::softmax(x, D::Minus1);
    }
    if !has_own(x) {
        return candle_nn::ops::softmax_last_dim(&x.contiguous()?);
    }
    let level = Level::detect();
    in_parts(x, None, (PART / width).max(1) * width, |y, _| softmax_of_rows(level, y, width))
}

fn has_own(x: &Tensor) -> bool {
    x.device().is_cpu() && !x.track_op() && matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16)
}

fn of_each(x: &Tensor, function: impl Fn(f32) -> f32 + Copy + Sync) -> Result<Tensor> {
    let level = Level::detect();
    in_parts(x, None, PART, |y, _| each(level, y, function))
}

/// A tensor like `x`, which [has own](has_own) operations. `compute` changes `part` of its elements at once, which are 32-bit floats then,
/// beside those of a tensor of the same shape.
fn in_parts(
    x: &Tensor,
    beside: Option<&Tensor>,
    part: usize,
    compute: impl Fn(&mut [f32], &[f32]) + Sync,
) -> Result<Tensor> {
    let mut y = floats(x)?;
    let parts = y.par_chunks_mut(part);
    match beside {
        Some(beside) => with_floats(beside, |beside| {
            parts.zip(beside.par_chunks(part)).for_each(|(y, beside)| compute(y, beside));
            Ok(())
        })?,
        None => parts.for_each(|y| compute(y, &[])),
    }
    of_floats(y, x.shape(), x.dtype())
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    type OfTensors = fn(&Tensor) -> Result<Tensor>;

    const ALL: [(&str, OfTensors, OfTensors); 7] = [
        ("sin", sin, |x| x.sin()),
        ("cos", cos, |x| x.cos()),
        ("silu", silu, |x| x.silu()),
        ("gelu", gelu, |x| x.gelu()),
        ("sigmoid", sigmoid, candle_nn::ops::sigmoid),
        ("tanh", tanh, |x| x.tanh()),
        ("softmax", softmax, |x| candle_nn::ops::softmax(x, D::Minus1)),
    ];

    fn floats(x: &Tensor) -> Vec<f32> {
        x.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    /// Parts of rows, in more parts than one.
    fn random(dtype: DType) -> [Tensor; 2] {
        let both = Tensor::randn(0f32, 3.0, (3, PART + 40), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        [0, PART / 2 + 20].map(|first| both.narrow(1, first, PART / 2 + 20).unwrap())
    }

    #[test]
    fn tensors_of_all_types_have_the_values_of_candle_in_64_bits_rounded_once() {
        for (dtype, step) in [(DType::F32, 2e-6), (DType::F16, 1e-3), (DType::BF16, 8e-3), (DType::F64, 1e-12)] {
            let [x, _] = random(dtype);
            for (name, own, of_candle) in ALL {
                let found = own(&x).unwrap();
                assert_eq!((found.dtype(), found.dims()), (dtype, x.dims()), "{name}");
                let expected = floats(&of_candle(&x.to_dtype(DType::F64).unwrap()).unwrap());
                for (found, expected) in floats(&found).iter().zip(&expected) {
                    // Less than the first number of 16 bits, f16's 2⁻²⁴, is rounded to it or to 0.
                    let bound = expected.abs() * step + 1e-7;
                    assert!((found - expected).abs() <= bound, "{name} of {dtype:?}: {found}, not {expected}");
                }
            }
        }
    }

    #[test]
    fn gated_elements_are_those_of_32_bits_rounded_once() {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let [gate, up] = random(dtype);
            let [wide, wide_up] = [&gate, &up].map(|part| part.to_dtype(DType::F32).unwrap());
            let expected = (silu(&wide).unwrap() * wide_up).unwrap().to_dtype(dtype).unwrap();
            let found = silu_gated(&gate, &up).unwrap();
            assert_eq!(found.dtype(), dtype);
            if dtype == DType::F64 {
                assert!(floats(&found).iter().zip(floats(&expected)).all(|(a, b)| (a - b).abs() < 1e-5));
            } else {
                assert_eq!(floats(&found), floats(&expected), "{dtype:?}");
            }
        }
        let [gate, up] = random(DType::F32);
        silu_gated(&gate, &up.narrow(1, 0, 7).unwrap()).unwrap_err();
    }

    #[test]
    fn gradients_flow_through_all_of_them() {
        let x = Var::from_tensor(&random(DType::F32)[0]).unwrap();
        for (name, own, _) in ALL {
            let gradients = own(&x).unwrap().sqr().unwrap().sum_all().unwrap().backward().unwrap();
            assert!(gradients.get(&x).is_some(), "{name}");
        }
        let gated = silu_gated(&x, &x).unwrap().sum_all().unwrap().backward().unwrap();
        assert!(gated.get(&x).is_some());
    }

    #[test]
    fn tensors_without_elements_stay_empty_and_scalars_have_no_softmax() {
        for (name, own, _) in ALL {
            let y = own(&Tensor::zeros((3, 0), DType::F32, &Device::Cpu).unwrap()).unwrap();
            assert_eq!(y.dims(), [3, 0], "{name}");
        }
        softmax(&Tensor::new(1f32, &Device::Cpu).unwrap()).unwrap_err();
    }
}
