//! A GGUF file with dequantised weights.

use std::fs::File;
use std::path::Path;

use anyhow::Result;
use candle_core::Device;
use candle_core::quantized::gguf_file::{self, Content};
use candle_core::quantized::{GgmlDType, QTensor};

/// Writes the model at `path` to `to`, with all weights as 32-bit floats.
pub(crate) fn dequantise(path: &Path, to: &Path) -> Result<()> {
    let mut file = File::open(path)?;
    let content = Content::read(&mut file)?;
    let mut tensors = Vec::new();
    for name in content.tensor_infos.keys() {
        let tensor = content.tensor(&mut file, name, &Device::Cpu)?.dequantize(&Device::Cpu)?;
        tensors.push((name.as_str(), QTensor::quantize(&tensor, GgmlDType::F32)?));
    }
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let metadata: Vec<_> = content.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    Ok(gguf_file::write(&mut File::create(to)?, &metadata, &tensors)?)
}
