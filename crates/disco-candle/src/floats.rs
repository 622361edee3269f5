//! Tensors of the host as 32-bit floats, and operations on them. candle's conversions and operations of 16 bits take longer.

use candle_core::{CpuStorage, DType, Device, Error, Result, Shape, Storage, Tensor, WithDType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::iter::{IndexedParallelIterator as _, ParallelIterator as _};
use rayon::slice::{ParallelSlice as _, ParallelSliceMut as _};

/// Elements that one thread computes sooner than it wakes another one.
const PART: usize = 1 << 14;

/// `gate · σ(gate) · up`, a gate by SiLU: elements of 16 bits on the host are rounded once, behind the products.
///
/// # Errors
/// The shapes differ; errors of candle.
pub fn silu_gated(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let is_short = matches!(gate.dtype(), DType::F16 | DType::BF16) && gate.dtype() == up.dtype();
    if !is_short || !gate.device().is_cpu() || gate.track_op() || up.track_op() || gate.shape() != up.shape() {
        return gate.silu()? * up;
    }
    let y = with_floats(gate, |gate| {
        with_floats(up, |up| {
            let mut y = vec![0.0; gate.len()];
            let parts = y.par_chunks_mut(PART).zip(gate.par_chunks(PART)).zip(up.par_chunks(PART));
            parts.for_each(|((y, gate), up)| {
                for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
                    *y = gate / (1.0 + (-gate).exp()) * up;
                }
            });
            Ok(y)
        })
    })?;
    of_floats(y, gate.shape(), gate.dtype())
}

/// Calls `read` with the elements of a tensor on the CPU as 32-bit floats. candle's conversions of 16 bits take longer.
pub(crate) fn with_floats<T>(x: &Tensor, read: impl FnOnce(&[f32]) -> Result<T>) -> Result<T> {
    let x = match x.dtype() {
        DType::F16 | DType::BF16 => x.contiguous()?,
        _ => x.to_dtype(DType::F32)?.contiguous()?,
    };
    let (storage, layout) = x.storage_and_layout();
    let range = layout.start_offset()..layout.start_offset() + x.elem_count();
    let mut wide = vec![0.0; if x.dtype() == DType::F32 { 0 } else { range.len() }];
    match &*storage {
        Storage::Cpu(CpuStorage::F32(x)) => read(&x[range]),
        Storage::Cpu(CpuStorage::F16(x)) => {
            x[range].convert_to_f32_slice(&mut wide);
            read(&wide)
        }
        Storage::Cpu(CpuStorage::BF16(x)) => {
            x[range].convert_to_f32_slice(&mut wide);
            read(&wide)
        }
        _ => Err(Error::Msg(format!("a product on the CPU got an input on {:?}", x.device().location()))),
    }
}

/// A tensor of `dtype` on the CPU.
pub(crate) fn of_floats(x: Vec<f32>, shape: &Shape, dtype: DType) -> Result<Tensor> {
    fn narrow<T: Copy + Default + WithDType>(x: &[f32], shape: &Shape) -> Result<Tensor>
    where
        [T]: HalfFloatSliceExt,
    {
        let mut narrow = vec![T::default(); x.len()];
        narrow.convert_from_f32_slice(x);
        Tensor::from_vec(narrow, shape, &Device::Cpu)
    }
    match dtype {
        DType::F16 => narrow::<f16>(&x, shape),
        DType::BF16 => narrow::<bf16>(&x, shape),
        dtype => Tensor::from_vec(x, shape, &Device::Cpu)?.to_dtype(dtype),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gated_elements_of_16_bits_are_those_of_32_bits_rounded_once() {
        let both = Tensor::randn(0f32, 3.0, (3, 80), &Device::Cpu).unwrap();
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            let both = both.to_dtype(dtype).unwrap();
            // Parts of rows.
            let [gate, up] = [0, 40].map(|first| both.narrow(1, first, 40).unwrap());
            let [wide, wide_up] = [&gate, &up].map(|part| part.to_dtype(DType::F32).unwrap());
            let expected = (wide.silu().unwrap() * wide_up).unwrap().to_dtype(dtype).unwrap();
            let found = silu_gated(&gate, &up).unwrap();
            assert_eq!(found.dtype(), dtype);
            let [found, expected] = [found, expected].map(|it| it.to_dtype(DType::F32).unwrap());
            assert_eq!(found.to_vec2::<f32>().unwrap(), expected.to_vec2::<f32>().unwrap(), "{dtype:?}");
        }
    }
}
