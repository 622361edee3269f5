//! Ministral 3, the text part of `mistral3`: Mistral whose queries grow with their position.

use super::{Defaults, Family, Gguf, Scheme, mistral};
use crate::config::{Growth, Pairs, Scaling};
use crate::error::ModelError;

pub(super) const FAMILY: Family = Family {
    name: "ministral3",
    architecture: "Ministral3ForCausalLM",
    keys: &["sliding_window"],
    json: |keys| mistral::read(keys, Defaults { grows: true, ..mistral::DEFAULTS }),
    names: Scheme::WITH_TOWERS,
    wrapper: Some(mistral::WRAPPER),
    // Also Mistral Small 3.1 and 3.2, whose queries do not grow.
    gguf: Some(Gguf {
        name: "mistral3",
        keys: &["attention.temperature_scale", "rope.scaling.yarn_log_multiplier"],
        read: |keys| {
            let mut config = keys.llama(Pairs::Interleaved)?;
            let Some(beta) = keys.factor("attention.temperature_scale")? else { return Ok(config) };
            for rotary in config.layers.iter_mut().filter_map(|layer| layer.attention_mut()?.rotary.as_mut()) {
                let Scaling::Yarn { context, .. } = rotary.scaling else {
                    let feature = keys.key("attention.temperature_scale without YaRN");
                    return Err(ModelError::Feature { feature });
                };
                rotary.growth = Some(Growth { beta, context: context.max(1) });
            }
            Ok(config)
        },
    }),
};
