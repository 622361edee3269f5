//! Files for the tests: models that candle writes, and headers that no program writes.

use std::fs::File;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use tempfile::TempDir;

/// All types of GGML that candle can write.
pub(crate) const GGML: [GgmlDType; 15] = [
    GgmlDType::F32,
    GgmlDType::F16,
    GgmlDType::BF16,
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q8_1,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
    GgmlDType::Q8K,
];

/// Whether candle's own reader of GGUF has the type.
pub(crate) fn candle_reads(dtype: GgmlDType) -> bool {
    !matches!(dtype, GgmlDType::Q8_1 | GgmlDType::Q8K)
}

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Numbers that differ from element to element, with both signs.
pub(crate) fn numbers(shape: &[usize], dtype: DType) -> Tensor {
    let count: usize = shape.iter().product();
    let value =
        |index: usize| (index * 37 % 101) as f32 - if dtype == DType::U8 || dtype == DType::U32 { 0. } else { 50. };
    let values: Vec<f32> = (0..count).map(value).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

pub(crate) fn quantized(shape: &[usize], dtype: GgmlDType) -> QTensor {
    QTensor::quantize(&numbers(shape, DType::F32), dtype).unwrap()
}

pub(crate) fn write_safetensors(path: &Path, tensors: &[(&str, Tensor)]) {
    let tensors = tensors.iter().map(|(name, tensor)| (*name, tensor.clone())).collect();
    candle_core::safetensors::save(&tensors, path).unwrap();
}

pub(crate) fn write_gguf(path: &Path, metadata: &[(&str, &Value)], tensors: &[(&str, QTensor)]) {
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    gguf_file::write(&mut File::create(path).unwrap(), metadata, &tensors).unwrap();
}

/// All elements, with their type and shape.
pub(crate) fn contents(tensor: &Tensor) -> (DType, Vec<usize>, Vec<u64>) {
    if tensor.elem_count() == 0 {
        // candle panics if the elements of an empty slice are asked for.
        return (tensor.dtype(), tensor.dims().to_vec(), Vec::new());
    }
    // candle never ends the conversion of 8-bit floats to F64.
    let exact = if tensor.dtype() == DType::F8E4M3 { &tensor.to_dtype(DType::F32).unwrap() } else { tensor };
    let values = exact.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
    (tensor.dtype(), tensor.dims().to_vec(), values.into_iter().map(f64::to_bits).collect())
}

/// A file of safetensors with `header` as its header, and `data` bytes behind it.
pub(crate) fn raw_safetensors(folder: &Path, header: &str, data: usize) -> PathBuf {
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; data]].concat();
    let path = folder.join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    path
}
