//! GPT-2: learnt positions, LayerNorm, matrices stored as inputs × outputs, and a feed-forward network without a gate.

use super::keys::ends;
use super::{Family, Gguf, Role, Scheme, metadata};
use crate::config::{
    Activation, Attention, Config, Dense, FeedForward, Inputs, Layer, NormKind, Pairs, Positions, Projections,
    check_layers, json,
};
use crate::error::ModelError;

pub(super) const FAMILY: Family = Family {
    name: "gpt2",
    architecture: "GPT2LMHeadModel",
    keys: &[
        "activation_function",
        "attn_pdrop",
        "layer_norm_epsilon",
        "n_ctx",
        "n_embd",
        "n_head",
        "n_inner",
        "n_layer",
        "n_positions",
        "scale_attn_weights",
        // Of heads of classifiers.
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        // How products of 16 bits are rounded.
        "reorder_and_upcast_attn",
    ],
    json: |keys| {
        // By either of two names.
        let number =
            |key, other, default| Ok::<_, ModelError>(keys.number(key)?.or(keys.number(other)?).unwrap_or(default));
        let (dim, heads) = (number("n_embd", "hidden_size", 768)?, number("n_head", "num_attention_heads", 12)?);
        let layers = number("n_layer", "num_hidden_layers", 12)?;
        if !keys.json["quantization_config"].is_null() {
            return Err(ModelError::Feature { feature: "quantization_config of GPT-2".into() });
        }
        check_layers(layers)?;
        let (context, head_dim) =
            (number("n_positions", "max_position_embeddings", 1024)?, dim.checked_div(heads).unwrap_or(0));
        let is_scaled = json::flag(keys.json, "scale_attn_weights")?.unwrap_or(true);
        let mut attention = Attention {
            projections: Projections::Fused,
            input_bias: true,
            output_bias: true,
            ..Attention::new(heads, heads, head_dim)
        };
        if !is_scaled {
            attention.factor = 1.0;
        }
        let dense = Dense {
            ffn: number("n_inner", "intermediate_size", dim.saturating_mul(4))?,
            inputs: Inputs::Plain,
            bias: true,
            activation: keys.activation(("activation_function", Activation::GeluTanh))?,
        };
        let mut config =
            Config::new(dim, vec![Layer::new(attention, dense); layers], keys.required("vocab_size")?, context);
        config.eps = keys.float("layer_norm_epsilon")?.unwrap_or(1e-5);
        config.norm = NormKind::LayerNorm { bias: true };
        config.positions = Some(Positions { rows: context, first: 0 });
        config.tied = json::flag(keys.json, "tie_word_embeddings")?.unwrap_or(true);
        config.eos = ends(keys.json)?;
        config.names = FAMILY.names;
        Ok(config)
    },
    names: Scheme {
        modules: &[("transformer.", "lm_head.weight"), ("", "lm_head.weight")],
        embedding: "wte",
        positions: "wpe",
        norm: "ln_f",
        layers: "h.",
        own: &[
            (Role::AttentionNorm, "ln_1"),
            (Role::Qkv, "attn.c_attn"),
            (Role::Output, "attn.c_proj"),
            (Role::FfnNorm, "ln_2"),
            (Role::Up, "mlp.c_fc"),
            (Role::Down, "mlp.c_proj"),
        ],
        is_transposed: true,
        // Masks.
        buffers: &[".attn.bias", ".attn.masked_bias"],
        ..Scheme::LLAMA
    },
    wrapper: None,
    gguf: Some(Gguf {
        name: "gpt2",
        keys: &[metadata::LAYER_NORM_EPS],
        read: |keys| {
            let mut config = keys.llama(Pairs::Halves)?;
            config.norm = NormKind::LayerNorm { bias: true };
            config.positions = Some(Positions { rows: config.context, first: 0 });
            config.each_attention(|attention| {
                (attention.projections, attention.rotary) = (Projections::Fused, None);
                (attention.input_bias, attention.output_bias) = (true, true);
            });
            for layer in &mut config.layers {
                if let FeedForward::Dense(dense) = &mut layer.feed_forward {
                    (dense.inputs, dense.bias, dense.activation) = (Inputs::Plain, true, Activation::GeluTanh);
                }
            }
            Ok(config)
        },
    }),
};
