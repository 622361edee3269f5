//! DeepSeek-V2 and V2-Lite: latent attention as in DeepSeek-V3, and experts beside shared ones, which are chosen by their softmax:
//! of all, or of the groups with the best experts. GGUF files are those of [`deepseek_v3`].

use super::deepseek_v3::{KEYS, mix, read, require};
use super::{Family, Scheme};
use crate::config::{Experts, Groups, json};
use crate::error::ModelError;

pub(super) const FAMILY: Family = Family {
    name: "deepseek_v2",
    architecture: "DeepseekV2ForCausalLM",
    keys: &KEYS,
    json: |keys| {
        let mut config = read(keys, 2048)?;
        config.interleave_rotary();
        require(keys, "scoring_func", &["softmax"])?;
        require(keys, "topk_method", &["greedy", "group_limited_greedy"])?;
        let experts = keys.experts("moe_intermediate_size", false)?;
        if experts.normalises {
            // transformers leaves shares as they are in spite of it.
            return Err(ModelError::Feature { feature: "norm_topk_prob true of DeepSeek-V2".into() });
        }
        let groups = match json::text(keys.json, "topk_method")? {
            Some("group_limited_greedy") => {
                Some(Groups { count: keys.required("n_group")?, chosen: keys.required("topk_group")?, best: 1 })
            }
            _ => None,
        };
        let experts = Experts { groups, factor: keys.float("routed_scaling_factor")?.unwrap_or(1.0), ..experts };
        let first = keys.number("first_k_dense_replace")?.unwrap_or(0);
        mix(&mut config, first, experts, keys.number("n_shared_experts")?.unwrap_or(2));
        Ok(config)
    },
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: None,
};
