//! Ministral 3, the text part of `mistral3`: Mistral whose queries grow with their position.

use super::keys::BETA;
use super::{Family, Scheme, mistral};
use crate::config::{Growth, json};

pub(super) const FAMILY: Family = Family {
    name: "ministral3",
    architecture: "Ministral3ForCausalLM",
    keys: &["sliding_window", BETA],
    json: |keys| {
        let mut config = (mistral::FAMILY.json)(keys)?;
        let parameters = &keys.json["rope_parameters"];
        let beta = json::float(parameters, BETA)?;
        let context = json::number(parameters, "original_max_position_embeddings")?.unwrap_or(config.context);
        let growth = beta.map(|beta| Growth { beta, context: context.max(1) });
        config.each_attention(|attention| {
            attention.rotary.iter_mut().for_each(|rotary| rotary.growth = growth);
        });
        Ok(config)
    },
    names: Scheme::WITH_TOWERS,
    wrapper: Some(mistral::WRAPPER),
    gguf: None,
};
