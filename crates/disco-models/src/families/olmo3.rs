//! OLMo 3: OLMo 2 with a window in three of four layers, in which the scaling of frequencies does not hold.

use super::olmo2::{scale_full_layers, with_norms};
use super::{Defaults, Family, Scheme};

pub(super) const FAMILY: Family = Family {
    name: "olmo3",
    architecture: "Olmo3ForCausalLM",
    keys: &["attention_bias", "sliding_window"],
    json: |keys| {
        let mut config = with_norms(keys.llama(Defaults::LLAMA)?);
        let window = keys.window()?;
        keys.windows(&mut config, window, |layer| (layer + 1).is_multiple_of(4))?;
        scale_full_layers(&mut config);
        Ok(config)
    },
    names: Scheme::LLAMA,
    wrapper: None,
    // As OLMo 2.
    gguf: None,
};
