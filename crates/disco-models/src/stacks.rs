//! Experts whose matrices are stacked, inputs × outputs: gate and up in turn, or gate beside up.
//!
//! ```text
//! gate_up_proj [experts, dim, 2 · ffn]; down_proj [experts, ffn, dim]; …_bias [experts, outputs], if there are biases
//!   MXFP4   …_blocks [experts, outputs, inputs/32, 16], …_scales [experts, outputs, inputs/32]: expanded while they are read
//! ```

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use disco_candle::Matrix;
use disco_candle::weights::{Part, Weights};

use crate::names::{Names, Role};
use crate::packed::e2m1;
use crate::parts::{Parts, Stack};
use crate::units::{Expert, Units};
use crate::{ExpertLayout, Experts, ModelError};

/// Inputs of a block of MXFP4.
const BLOCK: usize = 32;

/// The stacked matrices of a layer: role, outputs and inputs.
fn matrices(experts: &Experts, dim: usize) -> [(Role, [usize; 2]); 2] {
    [(Role::ExpertGateUp, [2 * experts.ffn, dim]), (Role::ExpertDowns, [dim, experts.ffn])]
}

/// The tensors of the experts of a layer, and their shapes.
pub(crate) fn tensors(
    names: &Names,
    weights: &Weights,
    experts: &Experts,
    layer: usize,
    dim: usize,
) -> Vec<(String, Vec<usize>)> {
    let (count, mut all) = (experts.count, Vec::new());
    for (role, [outputs, inputs]) in matrices(experts, dim) {
        let name = names.module(layer, role);
        if is_packed(weights, &name) {
            let blocks = inputs.div_ceil(BLOCK);
            all.push((format!("{name}_blocks"), vec![count, outputs, blocks, BLOCK / 2]));
            all.push((format!("{name}_scales"), vec![count, outputs, blocks]));
        } else {
            all.push((name.clone(), vec![count, inputs, outputs]));
        }
        if experts.bias {
            all.push((format!("{name}_bias"), vec![count, outputs]));
        }
    }
    all
}

fn is_packed(weights: &Weights, name: &str) -> bool {
    weights.contains(&format!("{name}_blocks"))
}

/// The hidden units `units` of the experts `own`, and all columns of the rows `outputs` of their last matrices, if there are such.
/// Otherwise, the columns of these units; the biases of outputs are added by one rank only, which `adds_bias` is.
pub(crate) fn load(
    parts: &Parts<'_>,
    experts: &Experts,
    layer: usize,
    own: Range<usize>,
    (units, outputs): (Range<usize>, Option<Range<usize>>),
    adds_bias: bool,
) -> Result<Vec<Expert>, ModelError> {
    let [gate_up, down] =
        matrices(experts, parts.config.dim).map(|(role, shape)| (parts.names.module(layer, role), shape));
    let width = units.len();
    // The rows of gate of these units before those of up.
    let apart = |x: &Tensor| {
        if experts.layout != ExpertLayout::Interleaved {
            let gate_and_up = [x.narrow(0, units.start, width)?, x.narrow(0, experts.ffn + units.start, width)?];
            return Tensor::cat(&gate_and_up, 0);
        }
        let pairs = x.narrow(0, 2 * units.start, 2 * width)?;
        let pairs = pairs.reshape([&[width, 2], &pairs.dims()[1..]].concat())?;
        Tensor::cat(&[pairs.narrow(1, 0, 1)?.squeeze(1)?, pairs.narrow(1, 1, 1)?.squeeze(1)?], 0)
    };
    let load = |expert: usize| {
        let matrix = |(name, shape): &(String, [usize; 2])| matrix(parts, name, expert, *shape);
        let bias = |name: &str| bias(parts, name, expert);
        let input_bias = experts.bias.then(|| parts.taken(apart(&bias(&gate_up.0)?)?)).transpose()?;
        // A part of the rows of the last matrix and of its bias.
        let of_outputs = |all: Tensor| match &outputs {
            Some(own) => all.narrow(0, own.start, own.len()),
            None => Ok(all),
        };
        let output_bias = experts.bias && adds_bias;
        let output_bias = output_bias.then(|| parts.taken(of_outputs(bias(&down.0)?)?)).transpose()?;
        let key = |(name, _): &(String, _)| format!("{name} {expert}");
        let inputs =
            parts.shelved_one(&key(&gate_up), || Ok(Matrix::inference(parts.taken(apart(&matrix(&gate_up)?)?)?)?));
        let inputs = Stack::Stacked { matrix: inputs?, bias: input_bias, widths: vec![width; 2] };
        let output = parts.shelved_one(&key(&down), || {
            let output = match &outputs {
                Some(_) => of_outputs(matrix(&down)?)?,
                None => matrix(&down)?.narrow(1, units.start, width)?,
            };
            Ok(Matrix::inference(parts.taken(output.contiguous()?)?)?)
        })?;
        Ok(Expert { units: Units::new(inputs, experts.activation), down: output, bias: output_bias })
    };
    own.map(load).collect()
}

/// One expert's part of a tensor, on the host.
fn read(parts: &Parts<'_>, name: &str, expert: usize, dtype: DType) -> Result<Tensor, ModelError> {
    let part = Part::Range { dim: 0, range: expert..expert + 1 };
    Ok(parts.shards.weights().read(name, &part, dtype, &Device::Cpu)?.squeeze(0)?)
}

/// The bias of one expert, `[outputs]`.
fn bias(parts: &Parts<'_>, name: &str, expert: usize) -> Result<Tensor, ModelError> {
    read(parts, &format!("{name}_bias"), expert, DType::F32)
}

/// The matrix of one expert, `[outputs, inputs]`.
#[expect(clippy::disallowed_methods, reason = "the tensors are on the host")]
fn matrix(parts: &Parts<'_>, name: &str, expert: usize, [outputs, inputs]: [usize; 2]) -> Result<Tensor, ModelError> {
    if !is_packed(parts.shards.weights(), name) {
        return Ok(read(parts, name, expert, DType::F32)?.t()?.contiguous()?);
    }
    let codes = read(parts, &format!("{name}_blocks"), expert, DType::U8)?.flatten_all()?.to_vec1::<u8>()?;
    let scales = read(parts, &format!("{name}_scales"), expert, DType::U8)?.flatten_all()?.to_vec1::<u8>()?;
    let blocks = inputs.div_ceil(BLOCK);
    let scales: Vec<f32> = scales.into_iter().map(|scale| (f32::from(scale) - 127.0).exp2()).collect();
    let element = |index: usize| e2m1(&codes, index) * scales[index / BLOCK];
    let whole = Tensor::from_iter((0..outputs * blocks * BLOCK).map(element), &Device::Cpu)?;
    Ok(whole.reshape((outputs, blocks * BLOCK))?.narrow(1, 0, inputs)?.contiguous()?)
}
