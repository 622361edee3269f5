//! Gemma 4 (text), also as the text part of the models with images and audio: Gemma 3 with other heads in layers without a
//! window, of which a quarter is rotated; norms of values; a second table of embeddings; the last layers share keys and values
//! of earlier ones; and, in some, experts beside the feed-forward network. Source: transformers 5.17.

use super::gemma2::{self, NORMS};
use super::keys::with;
use super::{Defaults, Family, Gguf, Keys, Metadata, Role, Scheme, Wrapper, metadata};
use crate::config::{
    Activation, Config, ExpertLayout, Experts, FeedForward, LayerInputs, NormKind, Norms, Pairs, Projections, QkNorm,
    Scaling, json, missing,
};
use crate::error::ModelError;

pub(super) const FAMILY: Family = Family {
    name: "gemma4_text",
    architecture: "Gemma4ForCausalLM",
    keys: &[
        "attention_bias",
        "attention_k_eq_v",
        "enable_moe_block",
        "final_logit_softcapping",
        "global_head_dim",
        "hidden_activation",
        "hidden_size_per_layer_input",
        "moe_intermediate_size",
        "num_experts",
        "num_global_key_value_heads",
        "num_kv_shared_layers",
        "sliding_window",
        "top_k_experts",
        "use_bidirectional_attention",
        "use_double_wide_mlp",
        "vocab_size_per_layer_input",
    ],
    json: |keys| {
        let defaults =
            Defaults { context: 4096 * 32, rope_base: 1e6, rope: Some("full_attention"), ..gemma2::DEFAULTS };
        // Images are attended to from both sides, of which there are none.
        if json::text(keys.json, "use_bidirectional_attention")?.is_some_and(|what| what != "vision") {
            return Err(ModelError::Feature { feature: "use_bidirectional_attention of texts".into() });
        }
        let mut config = keys.llama(defaults)?;
        config.embedding_factor = (config.dim as f64).sqrt();
        config.norm = NormKind::Rms { offset: 0.0, wide: true };
        config.logits_softcap = keys.float("final_logit_softcapping")?;
        let activation = keys.activation(defaults.activation)?;
        let width = keys.number("hidden_size_per_layer_input")?.unwrap_or(256);
        let rows = keys.number("vocab_size_per_layer_input")?.unwrap_or(262_144);
        config.layer_inputs = (width > 0).then_some(LayerInputs { rows, width, activation });
        let window = keys.number("sliding_window")?.unwrap_or(512);
        let last = config.layers.len().saturating_sub(1);
        keys.windows(&mut config, Some(window), |layer| (layer + 1).is_multiple_of(6) || layer == last)?;
        // transformers gives the last layer no window, whatever the list says.
        if config.attentions().last().is_some_and(|attention| attention.window.is_some()) {
            return Err(ModelError::Feature { feature: "a window in the last layer (layer_types)".into() });
        }
        if !keys.json["rope_scaling"].is_null() {
            return Err(ModelError::Feature { feature: "rope_scaling beside the rope_parameters of Gemma 4".into() });
        }
        layers(keys, &mut config, activation)?;
        Ok(config)
    },
    names: Scheme {
        own: &[
            NORMS[0],
            (Role::Router, "router.proj"),
            (Role::ExpertGateUp, "experts.gate_up_proj"),
            (Role::ExpertDowns, "experts.down_proj"),
        ],
        ..Scheme::WITH_TOWERS
    },
    wrapper: Some(Wrapper { name: "gemma4", architecture: "Gemma4ForConditionalGeneration" }),
    gguf: Some(Gguf { name: "gemma4", keys: &GGUF_KEYS, read: of_gguf }),
};

const GGUF_KEYS: [&str; 12] = with(
    metadata::EXPERTS,
    [
        "attention.key_length_swa",
        "attention.shared_kv_layers",
        "attention.sliding_window_pattern",
        "attention.value_length_swa",
        "embedding_length_per_layer_input",
        "final_logit_softcapping",
        "rope.dimension_count_swa",
        "rope.freq_base_swa",
    ],
);

/// GGUF files: widths of feed-forward networks and kv heads are lists, and the frequencies of layers without a window have divisors
/// in a tensor.
fn of_gguf(keys: &Metadata<'_>) -> Result<Config, ModelError> {
    let mut config = keys.llama(Pairs::Halves)?;
    config.embedding_factor = (config.dim as f64).sqrt();
    config.norm = NormKind::Rms { offset: 0.0, wide: true };
    config.logits_softcap = keys.factor("final_logit_softcapping")?;
    let activation = Activation::GeluTanh;
    let width = keys.number("embedding_length_per_layer_input")?.filter(|width| *width > 0);
    config.layer_inputs = width.map(|width| {
        let rows = keys.rows("per_layer_token_embd.weight").unwrap_or(config.vocabulary);
        LayerInputs { rows, width, activation }
    });
    keys.take_windows(&mut config, 6)?;
    let head_dim = keys.required("attention.key_length_swa")?;
    if keys.number("attention.value_length_swa")?.is_some_and(|width| width != head_dim) {
        let feature = keys.key("attention.value_length_swa (another width of values)");
        return Err(ModelError::Feature { feature });
    }
    let (base, elements) = (keys.float("rope.freq_base_swa")?, keys.number("rope.dimension_count_swa")?);
    let has_window: Vec<_> = config.attentions().map(|attention| attention.window.is_some()).collect();
    let shared = keys.number("attention.shared_kv_layers")?.unwrap_or(0);
    let first = has_window.len().saturating_sub(shared);
    let experts = keys.has_experts()?.then(|| keys.experts()).transpose()?;
    let experts = experts.map(|experts| Experts { activation, ..experts });
    for (number, layer) in config.layers.iter_mut().enumerate() {
        layer.norms = Norms::Around;
        layer.scalar = keys.has(&format!("blk.{number}.layer_output_scale.weight"));
        if let FeedForward::Dense(dense) = &mut layer.feed_forward {
            dense.activation = activation;
            if let Some(experts) = experts {
                layer.feed_forward = FeedForward::Both(*dense, experts);
            }
        }
        let Some(attention) = layer.attention_mut() else { continue };
        (attention.factor, attention.qk_norm, attention.value_norm) = (1.0, QkNorm::Each, true);
        if has_window[number] {
            attention.head_dim = head_dim;
            if let Some(rotary) = &mut attention.rotary {
                (rotary.base, rotary.scaling) = (base.unwrap_or(1e4) as f32, Scaling::None);
                rotary.elements = elements.unwrap_or(head_dim);
            }
        }
        if number >= first {
            attention.projections = shared_with(&has_window, first, number)
                .ok_or_else(|| missing(&keys.key("attention.shared_kv_layers (layers to share)")))?;
        } else if !keys.has(&format!("blk.{number}.attn_v.weight")) {
            attention.projections = Projections::KeysAreValues;
        }
    }
    Ok(config)
}

/// The projections of the layer `number`, which shares keys and values with the last layer before `first` of its kind.
fn shared_with(has_window: &[bool], first: usize, number: usize) -> Option<Projections> {
    let layer = has_window[..first].iter().rposition(|window| *window == has_window[number])?;
    Some(Projections::Shared { layer })
}

fn layers(keys: &Keys<'_>, config: &mut Config, activation: Activation) -> Result<(), ModelError> {
    let head_dim = keys.number("global_head_dim")?.unwrap_or(512);
    let keys_are_values = keys.flag("attention_k_eq_v")?;
    let kv_heads = keys.number("num_global_key_value_heads")?.filter(|_| keys_are_values);
    let windowed = &keys.json["rope_parameters"]["sliding_attention"];
    if windowed["rope_type"].as_str().is_some_and(|kind| kind != "default") {
        let feature = format!("a scaling of layers with a window ({})", windowed["rope_type"]);
        return Err(ModelError::Feature { feature });
    }
    let base = json::float(windowed, "rope_theta")?.unwrap_or(1e4) as f32;
    let experts = keys.flag("enable_moe_block")?.then(|| experts(keys, activation)).transpose()?;
    let shared = keys.number("num_kv_shared_layers")?.unwrap_or(0);
    let is_wide = keys.flag("use_double_wide_mlp")?;
    let has_window: Vec<_> = config.attentions().map(|attention| attention.window.is_some()).collect();
    let first = has_window.len().saturating_sub(shared);
    for (number, layer) in config.layers.iter_mut().enumerate() {
        (layer.norms, layer.scalar) = (Norms::Around, true);
        let Some(attention) = layer.attention_mut() else { continue };
        (attention.factor, attention.qk_norm, attention.value_norm) = (1.0, QkNorm::Each, true);
        if !has_window[number] {
            attention.head_dim = head_dim;
            attention.kv_heads = kv_heads.unwrap_or(attention.kv_heads);
            if keys_are_values {
                attention.projections = Projections::KeysAreValues;
            }
        }
        if let Some(rotary) = &mut attention.rotary {
            rotary.elements = attention.head_dim;
            if has_window[number] {
                (rotary.base, rotary.scaling) = (base, Scaling::None);
            } else if keys.json["rope_parameters"].is_null() {
                rotary.scaling = Scaling::Proportional { share: 0.25, factor: 1.0 };
            }
        }
        if number >= first {
            attention.projections = shared_with(&has_window, first, number)
                .ok_or_else(|| json::wrong("num_kv_shared_layers", "layers to share", &shared.into()))?;
        }
        if let FeedForward::Dense(dense) = &mut layer.feed_forward {
            if is_wide && number >= first && first > 0 {
                dense.ffn = dense.ffn.saturating_mul(2);
            }
            if let Some(experts) = experts {
                layer.feed_forward = FeedForward::Both(*dense, experts);
            }
        }
    }
    Ok(())
}

fn experts(keys: &Keys<'_>, activation: Activation) -> Result<Experts, ModelError> {
    let number = |key| keys.number(key)?.ok_or_else(|| missing(key));
    let experts = Experts::new(number("num_experts")?, number("moe_intermediate_size")?, number("top_k_experts")?);
    Ok(Experts { activation, layout: ExpertLayout::Joined, ..experts })
}
