//! Llama 2 and 3, and models that call themselves llama. In GGUF files also Mistral and Mixtral, which have no name of their
//! own there.

use super::{Defaults, Family, Gguf, Scheme, metadata};
use crate::config::Pairs;

pub(super) const FAMILY: Family = Family {
    name: "llama",
    architecture: "LlamaForCausalLM",
    keys: &["attention_bias", "mlp_bias"],
    json: |keys| keys.llama(Defaults::LLAMA),
    names: Scheme::LLAMA,
    wrapper: None,
    gguf: Some(Gguf { name: "llama", keys: &metadata::EXPERTS, read: |keys| keys.mixture(Pairs::Interleaved) }),
};
