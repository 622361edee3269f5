//! DeepSeek-V3, and models that call themselves so, in GGUF files also DeepSeek-V2: latent attention, and experts in groups beside
//! a shared one in all but the first layers. The layers behind the last one, which predict further tokens, are left out.

use super::keys::with;
use super::{Defaults, Family, Gguf, Keys, Metadata, Scheme, metadata};
use crate::config::{
    Attention, Config, Dense, Experts, FeedForward, Groups, Latent, Pairs, Projections, Scaling, Scores, json, missing,
};
use crate::error::ModelError;

/// The keys of latent attention and of experts.
pub(super) const KEYS: [&str; 20] = [
    "attention_bias",
    "first_k_dense_replace",
    "kv_lora_rank",
    "moe_intermediate_size",
    "moe_layer_freq",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "norm_topk_prob",
    "num_experts_per_tok",
    "num_local_experts",
    "q_lora_rank",
    "qk_head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "routed_scaling_factor",
    "scoring_func",
    "topk_group",
    "topk_method",
    "v_head_dim",
];

const OWN_KEYS: [&str; 22] = with(KEYS, ["num_nextn_predict_layers", "rope_interleave"]);

pub(super) const FAMILY: Family = Family {
    name: "deepseek_v3",
    architecture: "DeepseekV3ForCausalLM",
    keys: &OWN_KEYS,
    json: |keys| {
        let mut config = read(keys, 4096)?;
        require(keys, "scoring_func", &["sigmoid"])?;
        require(keys, "topk_method", &["noaux_tc"])?;
        if json::flag(keys.json, "rope_interleave")?.unwrap_or(true) {
            config.interleave_rotary();
        }
        let groups = Groups {
            count: keys.number("n_group")?.unwrap_or(8),
            chosen: keys.number("topk_group")?.unwrap_or(4),
            best: 2,
        };
        let experts = Experts {
            normalises: json::flag(keys.json, "norm_topk_prob")?.unwrap_or(true),
            scores: Scores::Sigmoid,
            groups: Some(groups),
            factor: keys.float("routed_scaling_factor")?.unwrap_or(2.5),
            ..keys.experts("moe_intermediate_size", false)?
        };
        let first = keys.number("first_k_dense_replace")?.unwrap_or(3);
        mix(&mut config, first, experts, keys.number("n_shared_experts")?.unwrap_or(1));
        config.further_layers = keys.number("num_nextn_predict_layers")?.unwrap_or(1);
        Ok(config)
    },
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: Some(Gguf { name: "deepseek2", keys: &GGUF_KEYS, read: of_gguf }),
};

const GGUF_KEYS: [&str; 16] = with(
    metadata::EXPERTS,
    [
        "attention.key_length_mla",
        metadata::LATENT_RANK,
        "attention.q_lora_rank",
        "attention.value_length_mla",
        "expert_gating_func",
        "expert_group_count",
        "expert_group_used_count",
        "expert_shared_count",
        "expert_weights_scale",
        "leading_dense_block_count",
        "rope.scaling.yarn_log_multiplier",
        metadata::FURTHER_LAYERS,
    ],
);

/// GGUF files, of which older ones have one matrix for keys and values of latent vectors.
fn of_gguf(keys: &Metadata<'_>) -> Result<Config, ModelError> {
    let mut config = keys.llama(Pairs::Interleaved)?;
    let rotated = keys.required("rope.dimension_count")?;
    let apart = keys.has("blk.0.attn_k_b.weight");
    let width = |of_head, of_latent| keys.number(of_head)?.map_or_else(|| keys.required(of_latent), Ok);
    let latent = Latent {
        query_rank: keys.number("attention.q_lora_rank")?,
        rank: keys.required(metadata::LATENT_RANK)?,
        plain: width("attention.key_length_mla", "attention.key_length")?.saturating_sub(rotated),
        rotated,
        value: width("attention.value_length_mla", "attention.value_length")?,
        apart,
    };
    // The key has a tenth of transformers' `mscale_all_dim`, and rotated elements keep their size.
    let all = keys.factor("rope.scaling.yarn_log_multiplier")?;
    let mut factor = 1.0;
    for rotary in config.layers.iter_mut().filter_map(|layer| layer.attention_mut()?.rotary.as_mut()) {
        let Scaling::Yarn { factor: scale, attention, .. } = &mut rotary.scaling else { continue };
        let all = all.ok_or_else(|| missing(&keys.key("rope.scaling.yarn_log_multiplier")))?;
        (*attention, factor) = (1.0, (all * f64::from(scale.max(1.0)).ln() + 1.0).powi(2));
    }
    config.each_attention(|attention| of_latent(attention, latent, factor));
    if keys.has_experts()? {
        let mut experts = keys.experts()?;
        experts.normalises = keys.flag("expert_weights_norm")?.unwrap_or(false);
        experts.factor = keys.factor("expert_weights_scale")?.unwrap_or(1.0);
        let best;
        (experts.scores, best) = match keys.number("expert_gating_func")? {
            Some(2) => (Scores::Sigmoid, 2),
            // DeepSeek-V2, whose groups count as in transformers; llama.cpp takes their two best experts. Older files do not say it.
            None | Some(0 | 1) => (Scores::Softmax, 1),
            Some(other) => {
                return Err(ModelError::Feature { feature: format!("{} {other}", keys.key("expert_gating_func")) });
            }
        };
        let groups = keys.number("expert_group_count")?.filter(|count| *count > 1);
        let chosen = keys.number("expert_group_used_count")?.unwrap_or(1).max(1);
        experts.groups = groups.map(|count| Groups { count, chosen, best });
        let first = keys.number("leading_dense_block_count")?.unwrap_or(0);
        mix(&mut config, first, experts, keys.number("expert_shared_count")?.unwrap_or(0));
    }
    Ok(config)
}

/// # Errors
/// A key has a value that is none of `known`.
pub(super) fn require(keys: &Keys<'_>, key: &str, known: &[&str]) -> Result<(), ModelError> {
    match json::text(keys.json, key)?.filter(|other| !known.contains(other)) {
        Some(other) => Err(ModelError::Feature { feature: format!("{key} {other:?}") }),
        None => Ok(()),
    }
}

/// A model of latent attention without experts.
pub(super) fn read(keys: &Keys<'_>, context: usize) -> Result<Config, ModelError> {
    if keys.number("moe_layer_freq")?.is_some_and(|every| every != 1) {
        return Err(ModelError::Feature { feature: "moe_layer_freq other than 1".into() });
    }
    let rotated = keys.number("qk_rope_head_dim")?.unwrap_or(64);
    if keys.number("head_dim")?.is_some_and(|width| width != rotated) {
        return Err(ModelError::Feature { feature: "a head_dim that is not qk_rope_head_dim".into() });
    }
    let mut config = keys.llama(Defaults { head_dim: Some(rotated), context, ..Defaults::LLAMA })?;
    let (latent, factor) = (latent(keys, rotated)?, factor(keys)?);
    config.each_attention(|attention| of_latent(attention, latent, factor));
    Ok(config)
}

/// Gives experts, and so many that all tokens share, to the layers from `first` on.
pub(super) fn mix(config: &mut Config, first: usize, experts: Experts, shared: usize) {
    for layer in config.layers.iter_mut().skip(first) {
        layer.feed_forward = match layer.feed_forward {
            FeedForward::Dense(dense) if shared > 0 => FeedForward::Shared {
                dense: Dense { ffn: experts.ffn.saturating_mul(shared), ..dense },
                experts,
                is_gated: false,
            },
            _ => FeedForward::Experts(experts),
        };
    }
}

fn latent(keys: &Keys<'_>, rotated: usize) -> Result<Latent, ModelError> {
    let number = |key, default| Ok::<_, ModelError>(keys.number(key)?.unwrap_or(default));
    let query_rank = if keys.has("q_lora_rank") { keys.number("q_lora_rank")? } else { Some(1536) };
    Ok(Latent {
        query_rank,
        rank: number("kv_lora_rank", 512)?,
        plain: number("qk_nope_head_dim", 128)?,
        rotated,
        value: number("v_head_dim", 128)?,
        apart: false,
    })
}

fn of_latent(attention: &mut Attention, latent: Latent, factor: f64) {
    attention.projections = Projections::Latent(latent);
    (attention.kv_heads, attention.head_dim) = (1, latent.rank.saturating_add(latent.rotated));
    attention.factor = (latent.query_dim() as f64).powf(-0.5) * factor;
}

/// The factor of scores by which transformers widens the context: `mscale_all_dim` of the scaled frequencies, twice.
fn factor(keys: &Keys<'_>) -> Result<f64, ModelError> {
    let parent = if keys.json["rope_parameters"].is_null() { "rope_scaling" } else { "rope_parameters" };
    let parameters = &keys.json[parent];
    let is_scaled = ["rope_type", "type"].iter().any(|key| parameters[key].as_str().is_some_and(|is| is != "default"));
    let all = json::float(parameters, "mscale_all_dim")?.filter(|all| is_scaled && *all != 0.0);
    let (Some(all), Some(factor)) = (all, json::float(parameters, "factor")?) else { return Ok(1.0) };
    Ok(if factor <= 1.0 { 1.0 } else { (0.1 * all * factor.ln() + 1.0).powi(2) })
}
