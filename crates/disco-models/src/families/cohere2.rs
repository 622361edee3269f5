//! Command-R7B: Command-R with a window in three of four layers; the others have no rotary embedding (NoPE).

use super::cohere::command_r;
use super::{Family, Scheme};

pub(super) const FAMILY: Family = Family {
    name: "cohere2",
    architecture: "Cohere2ForCausalLM",
    keys: &["attention_bias", "layer_norm_eps", "logit_scale", "sliding_window", "sliding_window_pattern"],
    json: |keys| {
        let mut config = command_r(keys)?;
        let (window, period) = (keys.window()?, keys.number("sliding_window_pattern")?.unwrap_or(4).max(1));
        keys.windows(&mut config, window, |layer| (layer + 1).is_multiple_of(period))?;
        config.each_attention(|attention| {
            attention.rotary.take_if(|_| attention.window.is_none());
        });
        Ok(config)
    },
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: None,
};
