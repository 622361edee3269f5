//! Reading of parts of tensors as candle's tensors.

use std::ops::Range;

use candle_core::quantized::k_quants::{
    BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0, BlockQ8_1,
    BlockQ8K,
};
use candle_core::quantized::{GgmlDType, GgmlType, QStorage, QTensor};
use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};

use crate::Runs;
use crate::weights::layout::{Layout, cut_block, unsupported};
use crate::weights::memory::{self, AnyBytes};
use crate::weights::source::Source;
use crate::weights::{Codes, Encoding, Part, TensorInfo, Weights, WeightsError};

/// A tensor that is being read: its name, header entry and file.
struct Reading<'a> {
    name: &'a str,
    info: &'a TensorInfo,
    source: &'a Source,
}

impl Weights {
    /// Reads a part of a tensor, dequantised or converted to `dtype`.
    ///
    /// Only the bytes of the part are read. If a range cuts quantisation blocks, the blocks that cover the range are
    /// read. The conversion is candle's: to a narrower float it rounds, to integers it truncates.
    ///
    /// # Errors
    /// [`UnknownTensor`](WeightsError::UnknownTensor), [`NoSuchPart`](WeightsError::NoSuchPart),
    /// [`Unsupported`](WeightsError::Unsupported) elements, a file that was [truncated](WeightsError::Truncated) since it
    /// was opened, [`OutOfMemory`](WeightsError::OutOfMemory), errors of the system and of candle.
    pub fn read(&self, name: &str, part: &Part, dtype: DType, device: &Device) -> Result<Tensor, WeightsError> {
        let reading = self.reading(name)?;
        let info = reading.info;
        let layout = Layout::new(name, info, part)?;
        if let Some(stored) = info.encoding.dense() {
            return reading.dense(&layout, stored, dtype, device);
        }
        if layout.bytes == 0 {
            // candle panics if a tensor without elements is cut.
            return Tensor::zeros(part.shape(info.shape()), dtype, device).map_err(reading.candle("make"));
        }
        let dense = match info.encoding {
            Encoding::Codes(codes) => reading.expanded(&layout, codes)?.to_device(device),
            Encoding::Ggml(ggml) => {
                let quantized = reading.quantized(&layout, ggml, device)?;
                // candle's memory for the elements is infallible, so that the room is tried first.
                drop(memory::reserve::<f32>(name, reading.source, layout.shape.iter().product())?);
                quantized.dequantize(device)
            }
            _ => return Err(unsupported(name, info)),
        };
        let dense = dense.map_err(reading.candle("dequantise"))?;
        let dense = match cut_block(info, part) {
            None => dense,
            Some((block, _)) => cut(&dense, part, block).map_err(reading.candle("cut"))?,
        };
        dense.to_dtype(dtype).map_err(reading.candle("convert"))
    }

    /// Reads a part of a tensor of GGUF, quantised as in the file, or as [`Encoding::quantized`] says.
    ///
    /// # Errors
    /// Errors of [`read`](Self::read), [`NotQuantized`](WeightsError::NotQuantized) for tensors of safetensors and for
    /// blocks that can't be packed anew, and
    /// [`CutBlock`](WeightsError::CutBlock) for a range that begins or ends inside of a block.
    pub fn read_quantized(&self, name: &str, part: &Part, device: &Device) -> Result<QTensor, WeightsError> {
        let reading = self.reading(name)?;
        let info = reading.info;
        if info.encoding.quantized().is_none() {
            return Err(reading.not_quantized());
        }
        let layout = Layout::new(name, info, part)?;
        if let Some((block, range)) = cut_block(info, part) {
            let (file, tensor) = (info.file().into(), name.to_owned());
            return Err(WeightsError::CutBlock { file, tensor, encoding: info.encoding, block, range });
        }
        reading.blocks_of(&layout, device)
    }

    /// As [`read_quantized`](Self::read_quantized), but reads the whole blocks that cover a range along the last dimension.
    /// Returns also the columns of the blocks that are the part.
    ///
    /// # Errors
    /// Errors of [`read`](Self::read), [`NotQuantized`](WeightsError::NotQuantized), and
    /// [`CutBlock`](WeightsError::CutBlock) for several ranges that begin or end inside of a block.
    pub fn read_covering(
        &self,
        name: &str,
        part: &Part,
        device: &Device,
    ) -> Result<(QTensor, Range<usize>), WeightsError> {
        let reading = self.reading(name)?;
        if reading.info.encoding.quantized().is_none() {
            return Err(reading.not_quantized());
        }
        let (layout, columns) = reading.covering(part)?;
        Ok((reading.blocks_of(&layout, device)?, columns))
    }

    /// As [`read_covering`](Self::read_covering), of a tensor that has [runs](Encoding::run), on the host.
    ///
    /// # Errors
    /// Errors of [`read_covering`](Self::read_covering).
    pub fn read_runs(&self, name: &str, part: &Part) -> Result<(Runs, Range<usize>), WeightsError> {
        let reading = self.reading(name)?;
        let Encoding::Codes(codes) = reading.info.encoding else { return Err(reading.not_quantized()) };
        let (layout, columns) = reading.covering(part)?;
        let packed = reading.packed(&layout, codes)?;
        Ok((Runs::new(packed, layout.shape.clone(), codes.run(), codes.numbers()), columns))
    }

    /// Bytes that [`read`](Self::read) of a part reads.
    pub(super) fn bytes_of(&self, name: &str, part: &Part) -> Result<u64, WeightsError> {
        Ok(Layout::new(name, self.info(name)?, part)?.bytes)
    }

    fn reading<'a>(&'a self, name: &'a str) -> Result<Reading<'a>, WeightsError> {
        let info = self.info(name)?;
        Ok(Reading { name, info, source: self.source(info) })
    }
}

impl Reading<'_> {
    /// Reads elements that are stored one by one as `stored`.
    fn dense(&self, layout: &Layout, stored: DType, dtype: DType, device: &Device) -> Result<Tensor, WeightsError> {
        let host = match stored {
            DType::U8 => self.elements::<u8>(layout),
            DType::U32 => self.elements::<u32>(layout),
            DType::I16 => self.elements::<i16>(layout),
            DType::I32 => self.elements::<i32>(layout),
            DType::I64 => self.elements::<i64>(layout),
            DType::BF16 => self.elements::<bf16>(layout),
            DType::F16 => self.elements::<f16>(layout),
            DType::F32 => self.elements::<f32>(layout),
            DType::F64 => self.elements::<f64>(layout),
            _ => {
                let bytes = memory::read::<u8>(self.name, self.source, layout)?;
                Tensor::from_raw_buffer(&bytes, stored, &layout.shape, &Device::Cpu).map_err(self.candle("read"))
            }
        }?;
        if stored != dtype {
            let bytes = host.elem_count().saturating_mul(dtype.size_in_bytes());
            drop(memory::reserve::<u8>(self.name, self.source, bytes)?);
        }
        // candle 0.11 never ends the conversion of 8-bit floats to F64, so that they become F32 first, which is exact.
        let (host, stored) = match (stored, dtype) {
            (DType::F8E4M3, DType::F64) => (host.to_dtype(DType::F32).map_err(self.candle("convert"))?, DType::F32),
            _ => (host, stored),
        };
        // The smaller of the two encodings crosses to the device.
        if dtype.size_in_bytes() <= stored.size_in_bytes() {
            let host = host.to_dtype(dtype).map_err(self.candle("convert"))?;
            return host.to_device(device).map_err(self.candle("move to the device"));
        }
        let tensor = host.to_device(device).map_err(self.candle("move to the device"))?;
        tensor.to_dtype(dtype).map_err(self.candle("convert"))
    }

    fn elements<T: AnyBytes + candle_core::WithDType>(&self, layout: &Layout) -> Result<Tensor, WeightsError> {
        let elements = memory::read::<T>(self.name, self.source, layout)?;
        Tensor::from_vec(elements, layout.shape.as_slice(), &Device::Cpu).map_err(self.candle("read"))
    }

    /// Reads whole blocks and expands them, on the host.
    fn expanded(&self, layout: &Layout, codes: Codes) -> Result<Tensor, WeightsError> {
        let blocks = memory::read::<u8>(self.name, self.source, layout)?;
        let count = layout.shape.iter().product();
        let mut elements = memory::reserve::<f32>(self.name, self.source, count)?;
        elements.resize(count, 0.0);
        codes.expand(&blocks, &mut elements);
        Tensor::from_vec(elements, layout.shape.as_slice(), &Device::Cpu).map_err(self.candle("read"))
    }

    /// Reads whole blocks, as they are or packed anew.
    fn blocks_of(&self, layout: &Layout, device: &Device) -> Result<QTensor, WeightsError> {
        match self.info.encoding {
            Encoding::Ggml(ggml) => self.quantized(layout, ggml, device),
            Encoding::Codes(codes) if self.info.encoding.quantized().is_some() => {
                let storage = QStorage::from_data(self.packed(layout, codes)?.into(), device, GgmlDType::Q8_0);
                let tensor = storage.and_then(|storage| QTensor::new(storage, layout.shape.as_slice()));
                tensor.map_err(self.candle("pack"))
            }
            _ => Err(self.not_quantized()),
        }
    }

    fn packed(&self, layout: &Layout, codes: Codes) -> Result<Vec<u8>, WeightsError> {
        let blocks = memory::read::<u8>(self.name, self.source, layout)?;
        codes.packed(&blocks).ok_or_else(|| self.not_quantized())
    }

    /// The blocks that cover a part, and the columns of these blocks that are the part.
    fn covering(&self, part: &Part) -> Result<(Layout, Range<usize>), WeightsError> {
        let layout = Layout::new(self.name, self.info, part)?;
        let columns = match (cut_block(self.info, part), part.ranges()) {
            (Some((block, range)), Some((_, [_]))) => range.start % block..range.start % block + range.len(),
            (Some((block, range)), _) => {
                let (file, tensor) = (self.info.file().into(), self.name.to_owned());
                return Err(WeightsError::CutBlock { file, tensor, encoding: self.info.encoding, block, range });
            }
            (None, _) => 0..layout.shape.last().copied().unwrap_or(1),
        };
        Ok((layout, columns))
    }

    fn not_quantized(&self) -> WeightsError {
        let (file, tensor) = (self.info.file().into(), self.name.to_owned());
        WeightsError::NotQuantized { file, tensor, encoding: self.info.encoding }
    }

    /// Reads whole blocks.
    fn quantized(&self, layout: &Layout, dtype: GgmlDType, device: &Device) -> Result<QTensor, WeightsError> {
        let storage = match dtype {
            GgmlDType::F32 => self.blocks::<f32>(layout),
            GgmlDType::F16 => self.blocks::<f16>(layout),
            GgmlDType::BF16 => self.blocks::<bf16>(layout),
            GgmlDType::Q4_0 => self.blocks::<BlockQ4_0>(layout),
            GgmlDType::Q4_1 => self.blocks::<BlockQ4_1>(layout),
            GgmlDType::Q5_0 => self.blocks::<BlockQ5_0>(layout),
            GgmlDType::Q5_1 => self.blocks::<BlockQ5_1>(layout),
            GgmlDType::Q8_0 => self.blocks::<BlockQ8_0>(layout),
            GgmlDType::Q8_1 => self.blocks::<BlockQ8_1>(layout),
            GgmlDType::Q2K => self.blocks::<BlockQ2K>(layout),
            GgmlDType::Q3K => self.blocks::<BlockQ3K>(layout),
            GgmlDType::Q4K => self.blocks::<BlockQ4K>(layout),
            GgmlDType::Q5K => self.blocks::<BlockQ5K>(layout),
            GgmlDType::Q6K => self.blocks::<BlockQ6K>(layout),
            GgmlDType::Q8K => self.blocks::<BlockQ8K>(layout),
        }?;
        let shape = layout.shape.as_slice();
        let host = QTensor::new(storage, shape).map_err(self.candle("read"))?;
        if device.is_cpu() {
            return Ok(host);
        }
        let to_device = || QTensor::new(QStorage::from_data(host.data()?, device, dtype)?, shape);
        to_device().map_err(self.candle("move to the device"))
    }

    fn blocks<T>(&self, layout: &Layout) -> Result<QStorage, WeightsError>
    where
        T: AnyBytes + GgmlType + Send + Sync + 'static,
    {
        Ok(QStorage::Cpu(Box::new(memory::read::<T>(self.name, self.source, layout)?)))
    }

    /// Makes an error of an error of candle.
    fn candle(&self, operation: &'static str) -> impl FnOnce(candle_core::Error) -> WeightsError {
        let (file, tensor) = (self.info.file().into(), self.name.to_owned());
        move |source| WeightsError::Candle { file, tensor, operation, source: Box::new(source) }
    }
}

/// Cuts the ranges of `part` out of the blocks that cover them, which `dense` has one after the other.
fn cut(dense: &Tensor, part: &Part, block: usize) -> candle_core::Result<Tensor> {
    let Some((dim, ranges)) = part.ranges() else { return Ok(dense.clone()) };
    let mut pieces = Vec::with_capacity(ranges.len());
    let mut start = 0;
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        let first = range.start / block * block;
        pieces.push(dense.narrow(dim, start + range.start - first, range.len())?);
        start += range.end.next_multiple_of(block) - first;
    }
    // Without the elements beside the part, which a view would keep in memory.
    match pieces.as_slice() {
        [piece] => piece.force_contiguous(),
        pieces => Tensor::cat(pieces, dim),
    }
}
