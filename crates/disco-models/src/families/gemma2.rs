//! Gemma 2: four norms a layer, of 1 + weight; embeddings times √width; a window in every other layer; softcaps of scores and
//! logits.

use serde_json::Value as Json;

use super::{Defaults, Family, Gguf, Keys, Metadata, Role, Scheme};
use crate::config::{Activation, Config, FeedForward, NormKind, Norms, Pairs, json};
use crate::error::ModelError;

/// The keys of Gemma 2 and 3.
pub(super) const KEYS: [&str; 10] = [
    "_sliding_window_pattern",
    "attention_bias",
    "attn_logit_softcapping",
    "cache_implementation",
    "final_logit_softcapping",
    "hidden_activation",
    "query_pre_attn_scalar",
    "rope_local_base_freq",
    "sliding_window",
    "sliding_window_pattern",
];

pub(super) const DEFAULTS: Defaults = Defaults {
    kv_heads: Some(4),
    head_dim: Some(256),
    context: 8192,
    tied: true,
    activation: ("hidden_activation", Activation::GeluTanh),
    ..Defaults::LLAMA
};

/// The names of the norms.
pub(super) const NORMS: &[(Role, &str)] = &[(Role::FfnNorm, "pre_feedforward_layernorm")];

pub(super) const FAMILY: Family = Family {
    name: "gemma2",
    architecture: "Gemma2ForCausalLM",
    keys: &KEYS,
    json: |keys| {
        let mut config = gemma(keys, DEFAULTS, 2)?;
        let cap = |key, default| if keys.has(key) { keys.float(key) } else { Ok(Some(default)) };
        config.logits_softcap = cap("final_logit_softcapping", 30.0)?;
        let softcap = cap("attn_logit_softcapping", 50.0)?;
        config.each_attention(|attention| attention.softcap = softcap);
        Ok(config)
    },
    names: Scheme { own: NORMS, ..Scheme::LLAMA },
    wrapper: None,
    gguf: Some(Gguf {
        name: "gemma2",
        keys: &["attention.sliding_window_pattern", "attn_logit_softcapping", "final_logit_softcapping"],
        read: |keys| {
            let mut config = of_gguf(keys, 46, 2, Some(4096))?;
            config.logits_softcap = Some(keys.factor("final_logit_softcapping")?.unwrap_or(30.0));
            let softcap = Some(keys.factor("attn_logit_softcapping")?.unwrap_or(50.0));
            config.each_attention(|attention| attention.softcap = softcap);
            Ok(config)
        },
    }),
};

/// What Gemma 2 and 3 share; without `layer_types`, each `period`-th layer has no window.
pub(super) fn gemma(keys: &Keys<'_>, defaults: Defaults, period: usize) -> Result<Config, ModelError> {
    let mut config = keys.llama(defaults)?;
    share(&mut config);
    config.norm = NormKind::Rms { offset: 1.0, wide: true };
    let scale = keys.float("query_pre_attn_scalar")?.unwrap_or(256.0);
    config.each_attention(|attention| attention.factor = scale.powf(-0.5));
    let period = match keys.number("sliding_window_pattern")? {
        Some(period) => period,
        None => keys.number("_sliding_window_pattern")?.unwrap_or(period),
    };
    let window = keys.window()?.ok_or_else(|| json::wrong("sliding_window", "a whole number", &Json::Null))?;
    keys.windows(&mut config, Some(window), |layer| (layer + 1).is_multiple_of(period.max(1)))?;
    Ok(config)
}

/// What Gemma 2 and 3 share in GGUF files, in which weights of norms have the 1 added. `large`: the number of layers of the
/// model with 27 billion weights, whose factor of scores files do not have. `window`: that of files without the key.
pub(super) fn of_gguf(
    keys: &Metadata<'_>,
    large: usize,
    period: usize,
    window: Option<usize>,
) -> Result<Config, ModelError> {
    let mut config = keys.llama(Pairs::Halves)?;
    share(&mut config);
    config.norm = NormKind::Rms { offset: 0.0, wide: true };
    let (layers, dim) = (config.layers.len(), config.dim);
    let full = keys.full_layers(layers, period)?;
    for (number, layer) in config.layers.iter_mut().enumerate() {
        if let FeedForward::Dense(dense) = &mut layer.feed_forward {
            dense.activation = Activation::GeluTanh;
        }
        let Some(attention) = layer.attention_mut() else { continue };
        if layers == large {
            attention.factor = (dim.checked_div(attention.heads).unwrap_or(1).max(1) as f64).powf(-0.5);
        }
        attention.window = attention.window.or(window).filter(|_| !full.contains(&number));
    }
    Ok(config)
}

fn share(config: &mut Config) {
    config.embedding_factor = (config.dim as f64).sqrt();
    for layer in &mut config.layers {
        layer.norms = Norms::Around;
    }
}
