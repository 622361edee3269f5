//! Granite 3: llama with factors of embeddings, scores, residuals and logits.

use super::{Defaults, Family, Gguf, Scheme};
use crate::config::Pairs;
use crate::error::ModelError;

pub(super) const FAMILY: Family = Family {
    name: "granite",
    architecture: "GraniteForCausalLM",
    keys: &[
        "attention_bias",
        "mlp_bias",
        "embedding_multiplier",
        "attention_multiplier",
        "residual_multiplier",
        "logits_scaling",
    ],
    json: |keys| {
        let mut config = keys.llama(Defaults::LLAMA)?;
        let factor = |key| Ok::<_, ModelError>(keys.float(key)?.unwrap_or(1.0));
        config.embedding_factor = factor("embedding_multiplier")?;
        config.residual_factor = factor("residual_multiplier")?;
        let attention_factor = factor("attention_multiplier")?;
        config.each_attention(|attention| attention.factor = attention_factor);
        let divisor = factor("logits_scaling")?;
        if divisor <= 0.0 {
            return Err(ModelError::Inconsistent(format!("logits_scaling is {divisor}, and must be positive")));
        }
        config.logits_factor = 1.0 / divisor;
        Ok(config)
    },
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: Some(Gguf {
        name: "granite",
        keys: &["attention.scale", "embedding_scale", "logit_scale", "residual_scale"],
        read: |keys| {
            let mut config = keys.llama(Pairs::Interleaved)?;
            config.embedding_factor = keys.factor("embedding_scale")?.unwrap_or(1.0);
            config.residual_factor = keys.factor("residual_scale")?.unwrap_or(1.0);
            config.logits_factor = 1.0 / keys.factor("logit_scale")?.unwrap_or(1.0);
            // The key says whether queries and keys are rotated, which it does in no other family.
            let is_rotated = keys.flag("rope.scaling.finetuned")?.unwrap_or(true);
            let factor = keys.factor("attention.scale")?;
            config.each_attention(|attention| {
                attention.factor = factor.unwrap_or(attention.factor);
                attention.rotary.take_if(|_| !is_rotated);
            });
            Ok(config)
        },
    }),
};
