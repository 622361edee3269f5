//! The tensors of a model's files, compared with its configuration.

use std::collections::{HashMap, HashSet};

use disco_candle::weights::Weights;

use crate::names::{EXPERT, EXPERT_STACKS, Names, Role, bias};
use crate::packed::Packed;
use crate::scales::scales_of;
use crate::{
    Attention, Config, Dense, ExpertLayout, Experts, FeedForward, GatedDelta, Inputs, Layer, LayerInputs, Mixer,
    ModelError, Norms, Scores, stacks,
};

/// A tensor that the model uses, and its shape.
struct Used {
    name: String,
    shape: Vec<usize>,
}

/// Checks that the files have each tensor of the model in its shape, and no tensor that would change the results and is
/// not used: of the model's own modules (a bias, a scale), or of an adapter.
///
/// # Errors
/// [`UnknownTensor`](disco_candle::weights::WeightsError::UnknownTensor) if a tensor is missing; [`ModelError::Inconsistent`] if it has another
/// shape, or if there are more layers; [`ModelError::Feature`] if a tensor is not used.
pub(crate) fn check(config: &Config, weights: &Weights) -> Result<(), ModelError> {
    let names = Names::of(config.names, weights);
    let (mut used, mut packed) = (used(config, &names, weights), Vec::new());
    used.retain(|used| {
        packed_tensors(config, weights, used).is_none_or(|tensors| {
            packed.push(tensors);
            false
        })
    });
    used.extend(scales(config, weights, &used)?);
    for tensors in packed {
        used.extend(tensors?);
    }
    let used_names: HashSet<&str> = used.iter().map(|used| used.name.as_str()).collect();
    // A quantised model has scales in place of matrices, so unused tensors are looked at before missing ones.
    let unused = weights.names().filter(|name| !used_names.contains(name));
    for name in unused {
        refuse(name, config, &names)?;
    }
    for Used { name, shape } in &used {
        let found = weights.info(name)?.shape();
        // llama.cpp leaves out dimensions of one element.
        let is_same = found == shape || names.is_gguf() && without_ones(found).eq(without_ones(shape));
        if !is_same {
            return Err(ModelError::Inconsistent(format!(
                "the tensor {name:?} has the shape {found:?}, but the configuration says {shape:?}"
            )));
        }
    }
    Ok(())
}

fn without_ones(shape: &[usize]) -> impl Iterator<Item = &usize> {
    shape.iter().filter(|dim| **dim != 1)
}

fn used(config: &Config, names: &Names, weights: &Weights) -> Vec<Used> {
    let embedding = &names.embedding_in(weights, config.tied);
    let &Config { dim, vocabulary, .. } = config;
    let tensor = |name: &str, shape: &[usize]| Used { name: name.into(), shape: shape.into() };
    let mut used = vec![tensor(embedding, &[vocabulary, dim])];
    let norm = |used: &mut Vec<Used>, name: &str, width| {
        used.push(tensor(name, &[width]));
        if config.norm.has_bias() {
            used.push(tensor(&bias(name), &[width]));
        }
    };
    norm(&mut used, &names.norm(), dim);
    if let Some(positions) = config.positions {
        used.push(tensor(&names.positions(), &[positions.rows, dim]));
    }
    if !config.tied {
        used.push(tensor(names.logits(), &[vocabulary, dim]));
    }
    if let Some(rotary) = config.rotaries().find(|rotary| !rotary.scaling.tensors().is_empty()) {
        used.extend(rotary.scaling.tensors().iter().map(|name| tensor(name, &[rotary.elements / 2])));
    }
    if let Some(LayerInputs { rows, width, .. }) = config.layer_inputs {
        let [table, projection, of_projection] = names.layer_inputs();
        let all = config.layers.len() * width;
        used.extend([tensor(&table, &[rows, all]), tensor(&projection, &[all, dim])]);
        norm(&mut used, &of_projection, width);
    }
    for (number, layer) in config.layers.iter().enumerate() {
        if layer.scalar {
            used.push(tensor(&names.layer(number, Role::Scalar), &[1]));
        }
        if let Some(LayerInputs { width, .. }) = config.layer_inputs {
            used.push(tensor(&names.layer(number, Role::InputGate), &[width, dim]));
            used.push(tensor(&names.layer(number, Role::InputProjection), &[dim, width]));
            norm(&mut used, &names.layer(number, Role::InputNorm), dim);
        }
        if layer.experts().is_some_and(|experts| experts.scores == Scores::Sigmoid) {
            used.push(tensor(
                &names.layer(number, Role::RouterCorrection),
                &[layer.experts().map_or(0, |it| it.count)],
            ));
        }
        if let FeedForward::Shared { is_gated: true, .. } = layer.feed_forward {
            used.push(tensor(&names.layer(number, Role::SharedGating), &[1, dim]));
        }
        if let FeedForward::Both(_, experts) = &layer.feed_forward {
            for role in [Role::DensePostNorm, Role::ExpertsNorm, Role::ExpertsPostNorm] {
                norm(&mut used, &names.layer(number, role), dim);
            }
            used.push(tensor(&names.layer(number, Role::RouterScale), &[dim]));
            used.push(tensor(&names.layer(number, Role::ExpertScale), &[experts.count]));
        }
        norms(layer, dim).for_each(|(role, width)| norm(&mut used, &names.layer(number, role), width));
        for Matrix { role, shape: [rows, columns], has_bias } in matrices(layer, dim) {
            let name = names.layer(number, role);
            if has_bias {
                used.push(tensor(&bias(&name), &[rows]));
            }
            used.push(tensor(&name, &if names.is_transposed() { [columns, rows] } else { [rows, columns] }));
        }
        for (role, shape) in layer.attention().into_iter().flat_map(Attention::stacks) {
            used.push(tensor(&names.layer(number, role), &shape));
        }
        for (role, shape) in layer.delta().into_iter().flat_map(GatedDelta::vectors) {
            used.push(tensor(&names.layer(number, role), &shape));
        }
        if let Some(attention) = layer.attention().filter(|attention| attention.sinks) {
            used.push(tensor(&names.layer(number, Role::Sinks), &[attention.heads]));
        }
        let Some(experts) = layer.experts() else { continue };
        let &Experts { count, ffn, .. } = experts;
        match experts.layout {
            ExpertLayout::Apart => (),
            ExpertLayout::Interleaved | ExpertLayout::Transposed => {
                let all = stacks::tensors(names, weights, experts, number, dim);
                used.extend(all.into_iter().map(|(name, shape)| Used { name, shape }));
                continue;
            }
            ExpertLayout::Joined => {
                let stacks = EXPERT_STACKS.into_iter().zip([[count, 2 * ffn, dim], [count, dim, ffn]]);
                used.extend(stacks.map(|(role, shape)| tensor(&names.module(number, role), &shape)));
                continue;
            }
        }
        for role in EXPERT {
            let [rows, columns] = if role == Role::ExpertDown { [dim, ffn] } else { [ffn, dim] };
            if names.stacks_experts() {
                let name = names.layer(number, role);
                used.push(tensor(&name, &[count, rows, columns]));
                if experts.bias {
                    used.push(tensor(&bias(&name), &[count, rows]));
                }
            } else {
                used.extend((0..count).map(|expert| tensor(&names.expert(number, expert, role), &[rows, columns])));
            }
        }
    }
    used
}

/// The shapes of all matrices.
pub(crate) fn matrix_shapes(config: &Config, weights: &Weights) -> HashMap<String, [usize; 2]> {
    let names = Names::of(config.names, weights);
    let all = used(config, &names, weights).into_iter();
    all.filter_map(|Used { name, shape }| Some((name, <[usize; 2]>::try_from(shape).ok()?))).collect()
}

/// The tensors of a matrix that is packed.
fn packed_tensors(config: &Config, weights: &Weights, used: &Used) -> Option<Result<Vec<Used>, ModelError>> {
    let shape = <[usize; 2]>::try_from(used.shape.as_slice()).ok()?;
    let tensors = Packed::find(config.packing, weights, &used.name, shape)?.tensors();
    Some(tensors.map(|all| all.into_iter().map(|(name, shape)| Used { name, shape }).collect()))
}

/// The norms of a layer, and their widths.
fn norms(layer: &Layer, dim: usize) -> impl Iterator<Item = (Role, usize)> {
    let of_states: &[Role] = match layer.norms {
        Norms::Before => &[Role::AttentionNorm, Role::FfnNorm],
        Norms::After => &[Role::AttentionPostNorm, Role::FfnPostNorm],
        Norms::Around => &[Role::AttentionNorm, Role::AttentionPostNorm, Role::FfnNorm, Role::FfnPostNorm],
        Norms::Shared => &[Role::AttentionNorm],
    };
    let of_heads = layer.attention().into_iter().flat_map(Attention::norms);
    of_states.iter().map(move |role| (*role, dim)).chain(of_heads)
}

/// A matrix of a layer.
struct Matrix {
    role: Role,
    /// Outputs and inputs.
    shape: [usize; 2],
    has_bias: bool,
}

/// The matrices of a layer, without those of experts.
fn matrices(layer: &Layer, dim: usize) -> Vec<Matrix> {
    let matrix = |role, shape, has_bias| Matrix { role, shape, has_bias };
    let mut all = Vec::new();
    match &layer.mixer {
        Mixer::Attention(attention) => {
            let width = attention.heads * attention.value_dim();
            all.push(matrix(Role::Output, [dim, width], attention.output_bias));
            let projections = attention.matrices(dim).into_iter();
            all.extend(projections.map(|it| matrix(it.role, [it.outputs, it.inputs], it.has_bias)));
        }
        Mixer::Delta(delta) => {
            all.extend(delta.matrices(dim).into_iter().map(|(role, shape)| matrix(role, shape, false)));
        }
    }
    if let Some(Experts { count, bias, .. }) = layer.experts() {
        all.push(matrix(Role::Router, [*count, dim], *bias));
    }
    if let Some(&Dense { ffn, inputs, bias, .. }) = layer.dense() {
        let [gate, up, down] = layer.feed_forward.dense_roles();
        all.push(matrix(down, [dim, ffn], bias));
        match inputs {
            Inputs::Gated => all.extend([gate, up].map(|role| matrix(role, [ffn, dim], bias))),
            Inputs::Fused => all.push(matrix(Role::GateUp, [2 * ffn, dim], bias)),
            Inputs::Plain => all.push(matrix(up, [ffn, dim], bias)),
        }
    }
    all
}

/// The scales of matrices of 8-bit floats.
fn scales(config: &Config, weights: &Weights, matrices: &[Used]) -> Result<Vec<Used>, ModelError> {
    let mut found = Vec::new();
    for Used { name, shape } in matrices.iter().filter(|used| used.shape.len() == 2 && weights.contains(&used.name)) {
        if let Some(name) = scales_of(weights, name)? {
            let own = weights.info(&name)?.shape().to_vec();
            crate::scales::check(&name, &own, shape, config.scale_block)?;
            found.push(Used { name, shape: own });
        }
    }
    Ok(found)
}

/// Fails if the tensor `name`, which is not used, would change the results.
fn refuse(name: &str, config: &Config, names: &Names) -> Result<(), ModelError> {
    if names.is_skipped(name) {
        return Ok(());
    }
    if name.starts_with(&names.layers()) {
        return match names.layer_of(name) {
            Some(layer) if layer >= config.layers.len() + config.further_layers => {
                Err(ModelError::Inconsistent(format!(
                    "the files have the tensor {name:?}, but the configuration says {} layers",
                    config.layers.len()
                )))
            }
            Some(layer) if layer >= config.layers.len() => Ok(()),
            // Files may have keys and values of a layer that takes those of another one.
            Some(layer)
                if config.layers[layer].attention().is_some_and(|attention| !attention.has_memory())
                    && names.is_one_of(name, layer, &[Role::Key, Role::Value, Role::KeyNorm]) =>
            {
                Ok(())
            }
            _ => Err(unused(name)),
        };
    }
    // Files of Hugging Face may have tensors for other purposes (a value head, further tokens). llama.cpp refuses unused
    // tensors of GGUF files.
    if names.is_of_model(name) || is_of_adapter(name) { Err(unused(name)) } else { Ok(()) }
}

/// Whether a tensor belongs to an adapter: peft's names of LoRA and its relatives, and of learnt prompts.
fn is_of_adapter(name: &str) -> bool {
    name.starts_with("base_model.") || name.contains("lora_") || name == "prompt_embeddings"
}

fn unused(name: &str) -> ModelError {
    ModelError::Feature { feature: format!("the tensor {name:?}") }
}
