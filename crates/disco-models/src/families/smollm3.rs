//! SmolLM3: llama in which each fourth layer has no rotary embedding (NoPE).

use serde_json::Value as Json;

use super::keys::SLIDES;
use super::{Defaults, Family, Gguf, Keys, Scheme, qwen2};
use crate::config::{Config, Pairs, json};
use crate::error::ModelError;

pub(super) const FAMILY: Family = Family {
    name: "smollm3",
    architecture: "SmolLM3ForCausalLM",
    keys: &[
        "attention_bias",
        "mlp_bias",
        "no_rope_layers",
        "no_rope_layer_interval",
        SLIDES,
        "sliding_window",
        "max_window_layers",
    ],
    json: |keys| {
        let defaults = Defaults { kv_heads: Some(4), context: 32768, rope_base: 2e6, tied: true, ..Defaults::LLAMA };
        let mut config = keys.llama(defaults)?;
        if keys.flag(SLIDES)? && keys.json["layer_types"].is_null() {
            return Err(ModelError::Feature { feature: format!("{SLIDES} without layer_types") });
        }
        let first = keys.number("max_window_layers")?.unwrap_or(qwen2::FIRST_WINDOW);
        keys.windows_from(&mut config, first)?;
        let unrotated = unrotated(keys, config.layers.len())?;
        without_rotary(&mut config, &unrotated);
        Ok(config)
    },
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: Some(Gguf {
        name: "smollm3",
        keys: &[],
        read: |keys| {
            let mut config = keys.llama(Pairs::Interleaved)?;
            let layers = config.layers.len();
            without_rotary(&mut config, &each(4, layers));
            Ok(config)
        },
    }),
};

/// The layers whose flag in `no_rope_layers` is 0; without the key, each `no_rope_layer_interval`-th.
fn unrotated(keys: &Keys<'_>, layers: usize) -> Result<Vec<usize>, ModelError> {
    let (key, flags) = ("no_rope_layers", &keys.json["no_rope_layers"]);
    if flags.is_null() {
        return Ok(each(keys.number("no_rope_layer_interval")?.unwrap_or(4).max(1), layers));
    }
    match flags.as_array().and_then(|flags| flags.iter().map(Json::as_u64).collect::<Option<Vec<_>>>()) {
        Some(flags) if flags.len() == layers => Ok((0..layers).filter(|layer| flags[*layer] == 0).collect()),
        _ => Err(json::wrong(key, &format!("{layers} flags, one per layer"), flags)),
    }
}

fn each(interval: usize, layers: usize) -> Vec<usize> {
    (0..layers).filter(|layer| (layer + 1).is_multiple_of(interval)).collect()
}

fn without_rotary(config: &mut Config, layers: &[usize]) {
    for layer in layers {
        if let Some(attention) = config.layers[*layer].attention_mut() {
            attention.rotary = None;
        }
    }
}
