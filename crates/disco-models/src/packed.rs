//! Matrices that are packed in 4 bits, which are expanded while they are read: code minus zero point, times scale, in 32 bits.
//!
//! ```text
//! AWQ             qweight [in, out/8], qzeros [in/g, out/8], scales [in/g, out]    8 outputs a word, in the order ORDER
//! GPTQ            qweight [in/8, out], qzeros [in/g, out/8], scales [in/g, out], g_idx [in]          8 inputs a word
//! pack-quantized  weight_packed [out, in/8], weight_scale [out, in/g], weight_zero_point [out/8, in/g]
//! MXFP4, NVFP4    weight_packed or weight [out, in/2], weight_scale [out, in/g], and NVFP4's scale of the whole
//! nf4             weight [out · in/2, 1], weight.absmax, weight.quant_map, weight.quant_state.bitsandbytes__nf4, nested_…
//! ```
//!
//! A rank reads and expands whole matrices and keeps its part, or, with [`Precision::File`](crate::Precision::File), packs the
//! codes as blocks of Q4_0 where that loses nothing. Sources: AutoAWQ, GPTQModel, compressed-tensors, ModelOpt and
//! bitsandbytes.

use std::ops::Range;

use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{DType, Device, Tensor};
use disco_candle::weights::{Part, Shards, Weights};
use half::f16;
use serde_json::Value as Json;

use crate::{ModelError, Packing};

/// The output of each of AWQ's codes in a word.
const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// The numbers of E2M1 without their sign.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// What the name of nf4's description begins with, behind the name of the matrix.
const NF4: &str = "quant_state.bitsandbytes__nf4";

/// Columns of a block of Q4_0.
const RUN: usize = 32;

/// Codes of a matrix.
struct Codes {
    /// By row and column.
    code: Box<dyn Fn(usize, usize) -> u8>,
    /// By row and group.
    scale: Box<dyn Fn(usize, usize) -> f32>,
}

/// A matrix that is packed.
pub(crate) struct Packed<'a> {
    weights: &'a Weights,
    packing: Packing,
    /// The name of the matrix without `.weight`.
    module: &'a str,
    rows: usize,
    columns: usize,
}

impl<'a> Packed<'a> {
    /// The matrix `name` of `[rows, columns]`, if it is packed.
    pub(crate) fn find(
        packing: Option<Packing>,
        weights: &'a Weights,
        name: &'a str,
        [rows, columns]: [usize; 2],
    ) -> Option<Self> {
        let (packing, module) = (packing?, name.strip_suffix(".weight")?);
        let packed = Self { weights, packing, module, rows, columns };
        let mark = match packing {
            Packing::Awq { .. } | Packing::Gptq { .. } => "qweight".into(),
            Packing::Int4 { .. } | Packing::Mxfp4 | Packing::Nvfp4 { divides: true } => "weight_packed".into(),
            Packing::Nvfp4 { divides: false } => "weight_scale_2".into(),
            Packing::Nf4 => format!("weight.{NF4}"),
        };
        weights.contains(&packed.name(&mark)).then_some(packed)
    }

    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.module)
    }

    /// Inputs with one scale.
    fn group(&self) -> usize {
        match self.packing {
            Packing::Awq { group } | Packing::Gptq { group, .. } | Packing::Int4 { group, .. } => {
                group.unwrap_or(self.columns).max(1)
            }
            Packing::Mxfp4 => 32,
            Packing::Nvfp4 { .. } => 16,
            Packing::Nf4 => 64,
        }
    }

    /// The tensors of the matrix, and the shape of each.
    ///
    /// # Errors
    /// [`ModelError::Inconsistent`]: a tensor has another shape, or is missing.
    pub(crate) fn tensors(&self) -> Result<Vec<(String, Vec<usize>)>, ModelError> {
        let (rows, columns) = (self.rows, self.columns);
        let groups = columns.div_ceil(self.group());
        let all: Vec<(&str, Vec<usize>, bool)> = match self.packing {
            Packing::Awq { .. } => vec![
                ("qweight", vec![columns, rows / 8], true),
                ("qzeros", vec![groups, rows / 8], true),
                ("scales", vec![groups, rows], true),
            ],
            Packing::Gptq { .. } => vec![
                ("qweight", vec![columns / 8, rows], true),
                ("qzeros", vec![groups, rows / 8], true),
                ("scales", vec![groups, rows], true),
                ("g_idx", vec![columns], false),
            ],
            Packing::Int4 { symmetric, .. } => vec![
                ("weight_packed", vec![rows, columns.div_ceil(8)], true),
                ("weight_scale", vec![rows, groups], true),
                ("weight_zero_point", vec![rows.div_ceil(8), groups], !symmetric),
                ("weight_shape", vec![2], false),
            ],
            Packing::Mxfp4 => {
                vec![("weight_packed", vec![rows, columns / 2], true), ("weight_scale", vec![rows, groups], true)]
            }
            Packing::Nvfp4 { divides: true } => vec![
                ("weight_packed", vec![rows, columns / 2], true),
                ("weight_scale", vec![rows, groups], true),
                ("weight_global_scale", vec![1], true),
                // Of activations, which stay as they are.
                ("input_global_scale", vec![1], false),
            ],
            Packing::Nvfp4 { divides: false } => vec![
                ("weight", vec![rows, columns / 2], true),
                ("weight_scale", vec![rows, groups], true),
                ("weight_scale_2", vec![], true),
                ("input_scale", vec![], false),
            ],
            Packing::Nf4 => return self.tensors_of_nf4(),
        };
        let is_whole = match self.packing {
            Packing::Int4 { .. } => true,
            _ => rows.is_multiple_of(8) && columns.is_multiple_of(8),
        };
        let found = all.into_iter().filter(|(part, _, is_due)| *is_due || self.weights.contains(&self.name(part)));
        let found = found.map(|(part, shape, _)| self.check(&self.name(part), shape)).collect::<Result<Vec<_>, _>>()?;
        if is_whole { Ok(found) } else { Err(self.error(&format!("codes of a matrix of {rows} × {columns}"))) }
    }

    fn tensors_of_nf4(&self) -> Result<Vec<(String, Vec<usize>)>, ModelError> {
        let elements = self.rows * self.columns;
        let mut all = vec![
            self.check(&self.name("weight"), vec![elements.div_ceil(2), 1])?,
            self.check(&self.name("weight.absmax"), vec![elements.div_ceil(64)])?,
            self.check(&self.name("weight.quant_map"), vec![16])?,
        ];
        for part in [NF4, "nested_absmax", "nested_quant_map"] {
            let name = self.name(&format!("weight.{part}"));
            if self.weights.contains(&name) {
                all.push((name.clone(), self.weights.info(&name)?.shape().to_vec()));
            }
        }
        Ok(all)
    }

    fn check(&self, name: &str, shape: Vec<usize>) -> Result<(String, Vec<usize>), ModelError> {
        let found = self.weights.info(name)?.shape();
        if found == shape {
            return Ok((name.into(), shape));
        }
        let (rows, columns) = (self.rows, self.columns);
        Err(self.error(&format!(
            "the tensor {name:?} has the shape {found:?}, and a matrix of {rows} × {columns} needs {shape:?}"
        )))
    }

    fn error(&self, why: &str) -> ModelError {
        ModelError::Inconsistent(format!("{} is packed by {:?}: {why}", self.module, self.packing))
    }

    /// This rank's part of the matrix, of the type of `shards`.
    ///
    /// # Errors
    /// A tensor has another shape or can't be read; a code names a group that is not there.
    pub(crate) fn part(&self, shards: &Shards, name: &str) -> Result<Tensor, ModelError> {
        self.tensors()?;
        let part = shards.plan().part(name, &[self.rows, self.columns], shards.rank(), shards.size())?;
        let whole = Tensor::from_vec(self.expand()?, (self.rows, self.columns), &Device::Cpu)?;
        let own = match part {
            Part::Range { dim, range } => whole.narrow(dim, range.start, range.len())?,
            Part::Ranges { dim, ranges } => {
                let narrow = |range: &Range<usize>| whole.narrow(dim, range.start, range.len());
                Tensor::cat(&ranges.iter().map(narrow).collect::<candle_core::Result<Vec<_>>>()?, dim)?
            }
            _ => whole,
        };
        Ok(own.contiguous()?.to_dtype(shards.dtype())?.to_device(shards.device())?)
    }

    /// This rank's part as blocks of Q4_0, if that loses nothing: symmetric codes, scales that 16-bit floats hold, and one scale
    /// for each run of 32 columns.
    ///
    /// # Errors
    /// As [`part`](Self::part).
    pub(crate) fn blocks(&self, shards: &Shards, name: &str) -> Result<Option<QTensor>, ModelError> {
        self.tensors()?;
        let (rows, columns) =
            match shards.plan().part(name, &[self.rows, self.columns], shards.rank(), shards.size())? {
                Part::Whole => ((0..self.rows).collect::<Vec<_>>(), 0..self.columns),
                Part::Range { dim: 0, range } => (range.collect(), 0..self.columns),
                Part::Ranges { dim: 0, ranges } => (ranges.into_iter().flatten().collect(), 0..self.columns),
                Part::Range { dim: 1, range } => ((0..self.rows).collect(), range),
                _ => return Ok(None),
            };
        let is_whole = [self.group(), columns.start, columns.end].iter().all(|place| place.is_multiple_of(RUN));
        let is_there = is_whole && !columns.is_empty() && !rows.is_empty();
        let Some(codes) = self.symmetric()?.filter(|_| is_there) else { return Ok(None) };
        // Those of all rows, so that all ranks find the same.
        let scales =
            (0..self.rows).flat_map(|row| (0..self.columns.div_ceil(self.group())).map(move |group| (row, group)));
        if scales.map(|(row, group)| (codes.scale)(row, group)).any(|scale| f16::from_f32(scale).to_f32() != scale) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        for row in rows.iter().copied() {
            for start in columns.clone().step_by(RUN) {
                let scale = (codes.scale)(row, start / self.group());
                bytes.extend_from_slice(&f16::from_f32(scale).to_le_bytes());
                let code = |column: usize| (codes.code)(row, column);
                bytes.extend((start..start + RUN / 2).map(|low| code(low) | code(low + RUN / 2) << 4));
            }
        }
        let storage = QStorage::from_data(bytes.into(), &Device::Cpu, GgmlDType::Q4_0)?;
        Ok(Some(QTensor::new(storage, (rows.len(), columns.len()))?))
    }

    /// Whether [`blocks`](Self::blocks) may be there.
    pub(crate) fn may_be_blocks(&self) -> bool {
        matches!(self.packing, Packing::Gptq { .. } | Packing::Int4 { symmetric: true, .. })
    }

    /// The codes, if 8 is zero in all of them and groups follow each other.
    fn symmetric(&self) -> Result<Option<Codes>, ModelError> {
        let (rows, groups) = (self.rows, self.columns.div_ceil(self.group()));
        Ok(match self.packing {
            Packing::Gptq { v2, .. } => {
                let (codes, scales) = (self.words("qweight")?, self.floats("scales")?);
                let zero = if v2 { 0x8888_8888 } else { 0x7777_7777 };
                let in_order = |(column, group): (usize, &u32)| *group as usize == column / self.group();
                let is_symmetric = self.words("qzeros")?.iter().all(|word| *word == zero)
                    && (!self.weights.contains(&self.name("g_idx"))
                        || self.words("g_idx")?.iter().enumerate().all(in_order));
                is_symmetric.then(|| Codes {
                    code: Box::new(move |row, column| {
                        (codes[column / 8 * rows + row] >> (4 * (column % 8)) & 15) as u8
                    }),
                    scale: Box::new(move |row, group| scales[group * rows + row]),
                })
            }
            Packing::Int4 { symmetric: true, .. } => {
                let (codes, scales) = (self.words("weight_packed")?, self.floats("weight_scale")?);
                let words = self.columns.div_ceil(8);
                Some(Codes {
                    code: Box::new(move |row, column| {
                        (codes[row * words + column / 8] >> (4 * (column % 8)) & 15) as u8
                    }),
                    scale: Box::new(move |row, group| scales[row * groups + group]),
                })
            }
            _ => None,
        })
    }

    /// All elements, `[rows, columns]`.
    fn expand(&self) -> Result<Vec<f32>, ModelError> {
        let (columns, group) = (self.columns, self.group());
        let groups = columns.div_ceil(group);
        let mut y = vec![0.0; self.rows * columns];
        match self.packing {
            Packing::Awq { .. } => {
                let (codes, zeros, scales) = (self.words("qweight")?, self.words("qzeros")?, self.floats("scales")?);
                let word = |words: &[u32], row: usize, output: usize| {
                    let place = ORDER.iter().position(|place| *place == output % 8).unwrap_or(0);
                    nibble(words[row * (self.rows / 8) + output / 8], place)
                };
                self.fill(&mut y, |row, column| {
                    let group = column / group;
                    (word(&codes, column, row) - word(&zeros, group, row)) * scales[group * self.rows + row]
                });
            }
            Packing::Gptq { v2, .. } => {
                let (codes, zeros, scales) = (self.words("qweight")?, self.words("qzeros")?, self.floats("scales")?);
                let of_inputs = if self.weights.contains(&self.name("g_idx")) {
                    self.words("g_idx")?.into_iter().map(|group| group as usize).collect()
                } else {
                    (0..columns).map(|column| column / group).collect::<Vec<_>>()
                };
                if let Some(group) = of_inputs.iter().find(|group| **group >= groups) {
                    return Err(self.error(&format!("g_idx has group {group} of {groups}")));
                }
                // Zero points are stored less one, but in the second version.
                let less = if v2 { 0.0 } else { 1.0 };
                self.fill(&mut y, |row, column| {
                    let group = of_inputs[column];
                    let zero = nibble(zeros[group * (self.rows / 8) + row / 8], row % 8) + less;
                    (nibble(codes[column / 8 * self.rows + row], column % 8) - zero) * scales[group * self.rows + row]
                });
            }
            Packing::Int4 { symmetric, .. } => {
                let (codes, scales) = (self.words("weight_packed")?, self.floats("weight_scale")?);
                let zeros = if symmetric { Vec::new() } else { self.words("weight_zero_point")? };
                let words = columns.div_ceil(8);
                self.fill(&mut y, |row, column| {
                    let group = column / group;
                    let zero = zeros.get(row / 8 * groups + group).map_or(8.0, |word| nibble(*word, row % 8));
                    (nibble(codes[row * words + column / 8], column % 8) - zero) * scales[row * groups + group]
                });
            }
            Packing::Mxfp4 => {
                let (codes, scales) = (self.bytes("weight_packed")?, self.bytes("weight_scale")?);
                self.fill(&mut y, |row, column| {
                    let scale = (f64::from(scales[row * groups + column / group]) - 127.0).exp2();
                    e2m1(&codes, row * columns + column) * scale as f32
                });
            }
            Packing::Nvfp4 { divides } => {
                let codes = self.bytes(if divides { "weight_packed" } else { "weight" })?;
                let scales = self.floats("weight_scale")?;
                let whole = self.floats(if divides { "weight_global_scale" } else { "weight_scale_2" })?;
                let whole = whole.first().copied().unwrap_or(1.0);
                let whole = if divides { 1.0 / whole } else { whole };
                self.fill(&mut y, |row, column| {
                    e2m1(&codes, row * columns + column) * (scales[row * groups + column / group] * whole)
                });
            }
            Packing::Nf4 => {
                let (codes, map, scales) =
                    (self.bytes("weight")?, self.floats("weight.quant_map")?, self.scales_of_nf4(group)?);
                self.fill(&mut y, |row, column| {
                    let element = row * columns + column;
                    let (byte, is_high) = (codes[element / 2], element.is_multiple_of(2));
                    map[usize::from(if is_high { byte >> 4 } else { byte & 15 })] * scales[element / group]
                });
            }
        }
        Ok(y)
    }

    fn fill(&self, y: &mut [f32], element: impl Fn(usize, usize) -> f32) {
        for (row, y) in y.chunks_exact_mut(self.columns.max(1)).enumerate() {
            y.iter_mut().enumerate().for_each(|(column, y)| *y = element(row, column));
        }
    }

    /// nf4's scales, which may be quantised themselves.
    ///
    /// # Errors
    /// The description has another type or size of blocks.
    fn scales_of_nf4(&self, group: usize) -> Result<Vec<f32>, ModelError> {
        let text = self.bytes(&format!("weight.{NF4}"))?;
        let state: Json = serde_json::from_slice(&text).map_err(|error| self.error(&format!("{NF4}: {error}")))?;
        if state["blocksize"] != group || state["quant_type"] != "nf4" {
            return Err(self.error(&format!("the description {state}")));
        }
        let is_nested = self.weights.contains(&self.name("weight.nested_absmax"));
        if is_nested == state["nested_blocksize"].is_null() {
            return Err(self.error(&format!("nested scales beside the description {state}")));
        }
        if !is_nested {
            return self.floats("weight.absmax");
        }
        let codes = self.bytes("weight.absmax")?;
        let (scales, map) = (self.floats("weight.nested_absmax")?, self.floats("weight.nested_quant_map")?);
        let size = state["nested_blocksize"].as_u64().filter(|size| *size > 0);
        let (Some(size), Some(offset)) = (size, state["nested_offset"].as_f64()) else {
            return Err(self.error(&format!("the description {state}")));
        };
        let (size, offset) = (size as usize, offset as f32);
        if map.len() != 256 || scales.len() != codes.len().div_ceil(size) {
            return Err(self.error(&format!("{} nested scales of {} blocks", scales.len(), codes.len())));
        }
        let scale = |(block, code): (usize, &u8)| map[usize::from(*code)] * scales[block / size] + offset;
        Ok(codes.iter().enumerate().map(scale).collect())
    }

    fn words(&self, part: &str) -> Result<Vec<u32>, ModelError> {
        let words = self.weights.read(&self.name(part), &Part::Whole, DType::I32, &Device::Cpu)?;
        Ok(host::<i32>(&words)?.into_iter().map(|word| word as u32).collect())
    }

    fn bytes(&self, part: &str) -> Result<Vec<u8>, ModelError> {
        host(&self.weights.read(&self.name(part), &Part::Whole, DType::U8, &Device::Cpu)?)
    }

    fn floats(&self, part: &str) -> Result<Vec<f32>, ModelError> {
        host(&self.weights.read(&self.name(part), &Part::Whole, DType::F32, &Device::Cpu)?)
    }
}

#[expect(clippy::disallowed_methods, reason = "the tensor is on the host")]
fn host<T: candle_core::WithDType>(tensor: &Tensor) -> Result<Vec<T>, ModelError> {
    Ok(tensor.flatten_all()?.to_vec1()?)
}

/// One of the eight codes of a word, the lowest first.
fn nibble(word: u32, place: usize) -> f32 {
    ((word >> (4 * place)) & 15) as f32
}

/// The number `element` of codes of E2M1, two in a byte, the lower half first.
pub(crate) fn e2m1(codes: &[u8], element: usize) -> f32 {
    let code = codes[element / 2] >> (4 * (element % 2));
    let number = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { number } else { -number }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use disco_candle::weights::{Plan, Split};

    use super::*;
    use crate::Config;

    #[test]
    fn blocks_have_the_elements_of_the_codes_or_are_not_made() {
        let mut made = Vec::new();
        for name in ["gptq-64", "compressed-int4", "gptq-asym-act-order", "awq-32"] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats").join(name);
            let weights = Arc::new(Weights::open(&folder).unwrap());
            let packing = Config::open(&weights).unwrap().packing;
            let matrix = "model.layers.0.mlp.down_proj.weight";
            for (dim, rank) in [(0, 1), (1, 0), (1, 1)] {
                let plan = Plan::new().with("*", Split::even(dim, 32));
                let shards = Shards::new(weights.clone(), plan, rank, 2, DType::F32, Device::Cpu);
                let packed = Packed::find(packing, &weights, matrix, [64, 64]).unwrap();
                let Some(blocks) = packed.blocks(&shards, matrix).unwrap() else { continue };
                let expected = packed.part(&shards, matrix).unwrap();
                let found = blocks.dequantize(&Device::Cpu).unwrap();
                assert_eq!(host::<f32>(&found).unwrap(), host::<f32>(&expected).unwrap(), "{name}");
                made.push(name);
            }
        }
        // The scales of the second are of bf16, which 16-bit floats hold here.
        made.dedup();
        assert_eq!(made, ["gptq-64", "compressed-int4"]);
    }
}
