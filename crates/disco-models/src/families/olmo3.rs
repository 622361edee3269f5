//! OLMo 3: OLMo 2 with a window in three of four layers, in which the scaling of frequencies does not hold.

use super::olmo2::with_norms;
use super::{Defaults, Family, Scheme};
use crate::config::Scaling;

pub(super) const FAMILY: Family = Family {
    name: "olmo3",
    architecture: "Olmo3ForCausalLM",
    keys: &["attention_bias", "sliding_window"],
    json: |keys| {
        let mut config = with_norms(keys.llama(Defaults::LLAMA)?);
        let window = keys.window()?;
        keys.windows(&mut config, window, |layer| (layer + 1).is_multiple_of(4))?;
        config.each_attention(|attention| {
            for rotary in attention.rotary.iter_mut().filter(|_| attention.window.is_some()) {
                rotary.scaling = Scaling::None;
            }
        });
        Ok(config)
    },
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: None,
};
