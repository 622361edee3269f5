//! Ministral 3, the text part of `mistral3`: Mistral whose queries grow with their position.

use super::{Defaults, Family, Scheme, mistral};

pub(super) const FAMILY: Family = Family {
    name: "ministral3",
    architecture: "Ministral3ForCausalLM",
    keys: &["sliding_window"],
    json: |keys| mistral::read(keys, Defaults { grows: true, ..mistral::DEFAULTS }),
    names: Scheme::WITH_TOWERS,
    wrapper: Some(mistral::WRAPPER),
    gguf: None,
};
