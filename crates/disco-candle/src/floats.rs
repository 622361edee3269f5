//! Tensors of the host as 32-bit floats, and operations on them. candle's conversions and operations of 16 bits take longer.

use candle_core::{CpuStorage, DType, Device, Error, Result, Shape, Storage, Tensor, WithDType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::iter::{IndexedParallelIterator as _, ParallelIterator as _};
use rayon::slice::{ParallelSlice as _, ParallelSliceMut as _};

/// Elements that one thread computes sooner than it wakes another one.
pub(crate) const PART: usize = 1 << 14;

/// Sums that are added beside each other.
const SUMS: usize = 16;

/// Each row of `x`, `[.., width]`, divided by its root mean square, times `weight`, `[width]`, on the host. It is computed in 32 bits and
/// rounded once; the order of additions depends on the width only.
///
/// # Errors
/// The shapes differ; a tensor is on another device; errors of candle.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let width = weight.dims1()?;
    if x.dims().last() != Some(&width) {
        return Err(Error::Msg(format!("a norm of {width} elements got the shape {:?}", x.shape())));
    }
    let y = with_floats(x, |x| {
        with_floats(weight, |weight| {
            let mut y = vec![0.0; x.len()];
            let rows = (PART / width.max(1)).max(1) * width.max(1);
            let parts = y.par_chunks_mut(rows).zip(x.par_chunks(rows));
            parts.for_each(|(y, x)| {
                for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                    let factor = (sum_of_squares(x) / width as f32 + eps).sqrt().recip();
                    for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
                        *y = x * factor * weight;
                    }
                }
            });
            Ok(y)
        })
    })?;
    of_floats(y, x.shape(), x.dtype())
}

/// The sum of the squares of each head of `width` elements, on the host: `[.., heads * width]` to f32 `[.., heads]`. The order of additions
/// depends on the width only.
///
/// # Errors
/// The last dimension is not whole heads; the tensor is on another device; errors of candle.
pub fn squares(x: &Tensor, width: usize) -> Result<Tensor> {
    let mut dims = x.dims().to_vec();
    match dims.last_mut().filter(|last| width > 0 && last.is_multiple_of(width)) {
        Some(last) => *last /= width,
        None => return Err(Error::Msg(format!("heads of {width} elements of the shape {:?}", x.shape()))),
    }
    let sums = with_floats(x, |x| Ok(x.chunks_exact(width).map(sum_of_squares).collect()))?;
    Tensor::from_vec(sums, dims, &Device::Cpu)
}

fn sum_of_squares(x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<SUMS>();
    let mut sums = [0.0; SUMS];
    for chunk in chunks {
        for index in 0..SUMS {
            sums[index] += chunk[index] * chunk[index];
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += x * x;
    }
    let mut count = SUMS;
    while count > 1 {
        count /= 2;
        for index in 0..count {
            sums[index] += sums[index + count];
        }
    }
    sums[0]
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

/// The elements of a tensor on the CPU as 32-bit floats.
pub(crate) fn floats(x: &Tensor) -> Result<Vec<f32>> {
    with_floats(x, |x| Ok(x.to_vec()))
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
    fn norms_are_those_of_f64_rounded_once() {
        for (rows, width) in [(1, 1), (3, 47), (40, 576)] {
            let all = Tensor::randn(0f32, 3.0, (rows, width), &Device::Cpu).unwrap();
            let weight = Tensor::randn(1f32, 0.5, width, &Device::Cpu).unwrap();
            let weights = weight.to_vec1::<f32>().unwrap();
            for dtype in [DType::F16, DType::BF16, DType::F32] {
                let x = all.to_dtype(dtype).unwrap();
                let found = rms_norm(&x, &weight, 1e-5).unwrap();
                assert_eq!(found.dtype(), dtype);
                let [found, x] = [found, x].map(|it| it.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap());
                let step = if dtype == DType::F32 { 2e-6 } else { 4e-3 };
                for (found, x) in found.iter().zip(&x) {
                    let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
                    for ((found, x), weight) in found.iter().zip(x).zip(&weights) {
                        let expected = f64::from(*x) / (mean + 1e-5).sqrt() * f64::from(*weight);
                        assert!(
                            (f64::from(*found) - expected).abs() <= expected.abs() * step + 1e-7,
                            "{dtype:?}: {found}"
                        );
                    }
                }
            }
        }
        rms_norm(
            &Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap(),
            &Tensor::new(&[1f32], &Device::Cpu).unwrap(),
            1.0,
        )
        .unwrap_err();
    }
}
