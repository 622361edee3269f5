//! Command-R7B: Command-R with a window in three of four layers; the others have no rotary embedding (NoPE).

use serde_json::Value as Json;

use super::cohere::{self, command_r};
use super::keys::with;
use super::{Family, Gguf, Scheme};
use crate::config::Config;
use crate::error::ModelError;

pub(super) const FAMILY: Family = Family {
    name: "cohere2",
    architecture: "Cohere2ForCausalLM",
    keys: &[
        "attention_bias",
        "cache_implementation",
        "layer_norm_eps",
        "layer_switch",
        "logit_scale",
        "order_of_interleaved_layers",
        "position_embedding_type",
        "sliding_window",
        "sliding_window_pattern",
        "use_embedding_sharing",
        "use_gated_activation",
        "use_parallel_block",
        "use_parallel_embedding",
    ],
    json: |keys| {
        // Of another program; this is what transformers computes whatever they say.
        let said = [
            ("order_of_interleaved_layers", "local_attn_first".into()),
            ("position_embedding_type", "rope_gptj".into()),
            ("use_gated_activation", Json::Bool(true)),
            ("use_parallel_block", Json::Bool(true)),
        ];
        if let Some((key, _)) = said.into_iter().find(|(key, value)| keys.has(key) && keys.json[key] != *value) {
            return Err(ModelError::UnknownKey { key: key.into(), value: keys.json[key].to_string() });
        }
        let mut config = command_r(keys)?;
        let (window, period) = (keys.window()?, keys.number("sliding_window_pattern")?.unwrap_or(4).max(1));
        keys.windows(&mut config, window, |layer| (layer + 1).is_multiple_of(period))?;
        rotate_windows(&mut config);
        Ok(config)
    },
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: Some(Gguf {
        name: "cohere2",
        keys: &GGUF_KEYS,
        read: |keys| {
            let mut config = cohere::of_gguf(keys)?;
            keys.take_windows(&mut config, 4)?;
            rotate_windows(&mut config);
            Ok(config)
        },
    }),
};

const GGUF_KEYS: [&str; 3] = with(cohere::GGUF_KEYS, ["attention.sliding_window_pattern"]);

/// Layers without a window are not rotated.
fn rotate_windows(config: &mut Config) {
    config.each_attention(|attention| {
        attention.rotary.take_if(|_| attention.window.is_none());
    });
}
