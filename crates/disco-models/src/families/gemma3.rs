//! Gemma 3 (text), also as the text part of the models with images: Gemma 2 without softcaps of scores, with q/k norms of each
//! head, a window in five of six layers, and other frequencies in these.

use super::gemma2::{self, NORMS, gemma, of_gguf};
use super::keys::with;
use super::{Defaults, Family, Gguf, Scheme, Wrapper};
use crate::config::{Attention, Config, QkNorm, Scaling, json};
use crate::error::ModelError;

pub(super) const FAMILY: Family = Family {
    name: "gemma3_text",
    architecture: "Gemma3ForCausalLM",
    keys: &KEYS,
    json: |keys| {
        let defaults =
            Defaults { context: 4096 * 32, rope_base: 1e6, rope: Some("full_attention"), ..gemma2::DEFAULTS };
        let mut config = gemma(keys, defaults, 6)?;
        config.logits_softcap = keys.float("final_logit_softcapping")?;
        let (softcap, parameters) =
            (keys.float("attn_logit_softcapping")?, &keys.json["rope_parameters"]["sliding_attention"]);
        if parameters["rope_type"].as_str().is_some_and(|kind| kind != "default") {
            let feature = format!("a scaling of layers with a window ({})", parameters["rope_type"]);
            return Err(ModelError::Feature { feature });
        }
        let base = json::float(parameters, "rope_theta")?.or(keys.float("rope_local_base_freq")?).unwrap_or(1e4);
        config.each_attention(|attention| attention.softcap = softcap);
        if json::flag(keys.json, "use_bidirectional_attention")? == Some(true) {
            config.each_attention(|attention| {
                attention.looks_ahead = true;
                // The number of tokens of both sides together.
                attention.window = attention.window.map(|window| window / 2 + 1);
            });
        }
        norms_and_rotary(&mut config, base as f32);
        Ok(config)
    },
    names: Scheme { own: NORMS, ..Scheme::WITH_TOWERS },
    wrapper: Some(Wrapper { name: "gemma3", architecture: "Gemma3ForConditionalGeneration" }),
    gguf: Some(Gguf {
        name: "gemma3",
        keys: &["attention.sliding_window_pattern", "final_logit_softcapping", "rope.freq_base_swa"],
        read: |keys| {
            let mut config = of_gguf(keys, 62, 6, None)?;
            config.logits_softcap = keys.factor("final_logit_softcapping")?;
            norms_and_rotary(&mut config, keys.float("rope.freq_base_swa")?.unwrap_or(1e4) as f32);
            Ok(config)
        },
    }),
};

/// Of `config.json`.
const KEYS: [&str; 11] = with(gemma2::KEYS, ["use_bidirectional_attention"]);

/// Norms of queries and keys, and rotary embeddings of base `base` without scaling in layers with a window.
fn norms_and_rotary(config: &mut Config, base: f32) {
    config.each_attention(|Attention { qk_norm, rotary, window, .. }| {
        *qk_norm = QkNorm::Each;
        for rotary in rotary.iter_mut().filter(|_| window.is_some()) {
            (rotary.base, rotary.scaling) = (base, Scaling::None);
        }
    });
}
