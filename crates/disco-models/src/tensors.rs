//! The tensors of a model's files, compared with its configuration.

use std::collections::HashSet;

use disco_candle::weights::Weights;

use crate::names::{EXPERT, Names, Role};
use crate::scales::scales_of;
use crate::{Config, Experts, ModelError};

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
    let names = Names::of(weights);
    let mut used = used(config, names, names.embedding_in(weights, config.tied));
    used.extend(scales(config, weights, &used)?);
    let used_names: HashSet<&str> = used.iter().map(|used| used.name.as_str()).collect();
    // A quantised model has scales in place of matrices, so unused tensors are looked at before missing ones.
    let unused = weights.names().filter(|name| !used_names.contains(name));
    for name in unused {
        refuse(name, config, names)?;
    }
    for Used { name, shape } in &used {
        let found = weights.info(name)?.shape();
        if found != shape {
            return Err(ModelError::Inconsistent(format!(
                "the tensor {name:?} has the shape {found:?}, but the configuration says {shape:?}"
            )));
        }
    }
    Ok(())
}

fn used(config: &Config, names: Names, embedding: &str) -> Vec<Used> {
    let &Config { dim, rotated, vocabulary, .. } = config;
    let tensor = |name: &str, shape: &[usize]| Used { name: name.into(), shape: shape.into() };
    let mut used = vec![tensor(embedding, &[vocabulary, dim]), tensor(names.norm(), &[dim])];
    if !config.tied {
        used.push(tensor(names.logits(), &[vocabulary, dim]));
    }
    used.extend(config.scaling.tensors().iter().map(|name| tensor(name, &[rotated / 2])));
    for layer in 0..config.layers {
        for role in Role::all(&config.features, layer) {
            let shape = shape(config, role);
            if role.has_bias(&config.features) {
                used.push(tensor(&names.bias(layer, role), &shape[..1]));
            }
            used.push(Used { name: names.layer(layer, role), shape });
        }
        let Some(Experts { count, ffn, .. }) = config.features.experts_of(layer) else { continue };
        for role in EXPERT {
            let [rows, columns] = if role == Role::Down { [dim, ffn] } else { [ffn, dim] };
            if names == Names::Gguf {
                used.push(tensor(&names.expert(layer, "", role), &[count, rows, columns]));
            } else {
                used.extend((0..count).map(|expert| tensor(&names.expert(layer, expert, role), &[rows, columns])));
            }
        }
    }
    used
}

/// The scales of matrices of 8-bit floats.
fn scales(config: &Config, weights: &Weights, matrices: &[Used]) -> Result<Vec<Used>, ModelError> {
    let mut found = Vec::new();
    for Used { name, shape } in matrices.iter().filter(|used| used.shape.len() == 2 && weights.contains(&used.name)) {
        if let Some(name) = scales_of(weights, name)? {
            let own = weights.info(&name)?.shape().to_vec();
            crate::scales::check(&name, &own, shape, config.features.scale_block)?;
            found.push(Used { name, shape: own });
        }
    }
    Ok(found)
}

/// The shape of a tensor of a layer.
fn shape(config: &Config, role: Role) -> Vec<usize> {
    let &Config { dim, heads, kv_heads, head_dim, ffn, .. } = config;
    match role {
        Role::AttentionNorm | Role::AttentionPostNorm => vec![dim],
        Role::FfnNorm | Role::PreFfnNorm | Role::FfnPostNorm => vec![dim],
        Role::QueryNorm if config.features.joint_head_norms => vec![heads * head_dim],
        Role::KeyNorm if config.features.joint_head_norms => vec![kv_heads * head_dim],
        Role::QueryNorm | Role::KeyNorm => vec![head_dim],
        Role::Query => vec![heads * head_dim, dim],
        Role::Key | Role::Value => vec![kv_heads * head_dim, dim],
        Role::Qkv => vec![(heads + 2 * kv_heads) * head_dim, dim],
        Role::GateUp => vec![2 * ffn, dim],
        Role::Output => vec![dim, heads * head_dim],
        Role::Gate | Role::Up => vec![ffn, dim],
        Role::Down => vec![dim, ffn],
        Role::Router => vec![config.features.experts.map_or(0, |experts| experts.count), dim],
    }
}

/// Fails if the tensor `name`, which is not used, would change the results.
fn refuse(name: &str, config: &Config, names: Names) -> Result<(), ModelError> {
    // transformers computes these frequencies again, as we do.
    if name.ends_with("rotary_emb.inv_freq") {
        return Ok(());
    }
    if let Some(rest) = name.strip_prefix(names.layers()) {
        return match rest.split('.').next().and_then(|layer| layer.parse::<usize>().ok()) {
            Some(layer) if layer >= config.layers => Err(ModelError::Inconsistent(format!(
                "the files have the tensor {name:?}, but the configuration says {} layers",
                config.layers
            ))),
            _ => Err(unused(name)),
        };
    }
    // Files of Hugging Face may have tensors for other purposes (a value head, further tokens). llama.cpp refuses unused
    // tensors of GGUF files.
    let is_of_model = names == Names::Gguf || ["model.", "lm_head."].iter().any(|module| name.starts_with(module));
    if is_of_model || is_of_adapter(name) { Err(unused(name)) } else { Ok(()) }
}

/// Whether a tensor belongs to an adapter: peft's names of LoRA and its relatives, and of learnt prompts.
fn is_of_adapter(name: &str) -> bool {
    name.starts_with("base_model.") || name.contains("lora_") || name == "prompt_embeddings"
}

fn unused(name: &str) -> ModelError {
    ModelError::Feature { feature: format!("the tensor {name:?}") }
}
