//! Families of models. The file of a family reads the family's keys of `config.json` and of GGUF files, puts its layers
//! together, and names its tensors.
//!
//! ```text
//! mod        the list of the families
//! keys       a family's keys in `config.json`; what all families read of it
//! metadata   the same of GGUF files
//! open       what files a configuration is read from
//! ```
//!
//! A family begins with what llama reads ([`Keys::llama`], [`Metadata::llama`]) and changes it, or builds its [`Config`] itself.

mod keys;
mod metadata;
mod open;

mod cohere;
mod cohere2;
mod deepseek_v2;
mod deepseek_v3;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm4;
mod gpt2;
mod gpt_oss;
mod granite;
mod llama;
mod ministral3;
mod mistral;
mod mixtral;
mod olmo2;
mod olmo3;
mod opt;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod qwen3_vl;
mod qwen3_vl_moe;
mod smollm3;

use serde_json::Value as Json;

use crate::config::Config;
use crate::error::ModelError;
use crate::names::{Role, Scheme};
use keys::{Defaults, Keys};
use metadata::Metadata;

/// The families that can be computed.
static FAMILIES: [Family; 28] = [
    llama::FAMILY,
    mistral::FAMILY,
    ministral3::FAMILY,
    mixtral::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    qwen3_moe::FAMILY,
    qwen3_vl::FAMILY,
    qwen3_vl_moe::FAMILY,
    qwen3_next::FAMILY,
    qwen3_5::FAMILY,
    qwen3_5_moe::FAMILY,
    phi3::FAMILY,
    gemma2::FAMILY,
    gemma3::FAMILY,
    gemma4::FAMILY,
    olmo2::FAMILY,
    olmo3::FAMILY,
    smollm3::FAMILY,
    granite::FAMILY,
    glm4::FAMILY,
    gpt_oss::FAMILY,
    cohere::FAMILY,
    cohere2::FAMILY,
    deepseek_v2::FAMILY,
    deepseek_v3::FAMILY,
    gpt2::FAMILY,
    opt::FAMILY,
];

/// A family of models.
pub(crate) struct Family {
    /// The key `model_type` of `config.json`.
    name: &'static str,
    /// The first of the key `architectures`.
    architecture: &'static str,
    /// The keys that the family reads beside those of [all families](keys::READ).
    keys: &'static [&'static str],
    /// Reads `config.json`.
    json: fn(&Keys<'_>) -> Result<Config, ModelError>,
    /// Names of tensors in files of Hugging Face.
    names: Scheme,
    /// The model with other towers of which this is the text part.
    wrapper: Option<Wrapper>,
    /// The family in GGUF files.
    gguf: Option<Gguf>,
}

/// A model of images and texts. Its text part has the key `text_config`.
struct Wrapper {
    /// The key `model_type` of the whole.
    name: &'static str,
    architecture: &'static str,
}

/// A family in GGUF files.
pub(crate) struct Gguf {
    /// The key `general.architecture`.
    name: &'static str,
    /// The keys that the family reads beside those of [all families](metadata::READ).
    keys: &'static [&'static str],
    read: fn(&Metadata<'_>) -> Result<Config, ModelError>,
}

impl Family {
    /// Reads a `config.json`. Keys of `ignored` may be unknown.
    ///
    /// # Errors
    /// The family is not known; a key is missing, has the wrong type, or is not understood.
    pub(crate) fn config(json: &Json, ignored: &[String]) -> Result<Config, ModelError> {
        let text = text_part(json, ignored)?;
        let json = text.as_ref().unwrap_or(json);
        let family = Self::of(json)?;
        let keys = Keys::new(json, family);
        keys.check(ignored)?;
        let config = (family.json)(&keys)?;
        keys.check_layer_types(&config)?;
        config.checked()
    }

    /// The family of a `config.json`.
    fn of(json: &Json) -> Result<&'static Self, ModelError> {
        let name = json["model_type"].as_str().or(json["architectures"][0].as_str()).unwrap_or("(none)");
        let family = FAMILIES.iter().find(|family| [family.name, family.architecture].contains(&name));
        // Other programs write names of their own, but a classifier has no matrix for logits.
        match (family, json["architectures"][0].as_str()) {
            (Some(family), Some(other))
                if other != family.architecture
                    && !["ForCausalLM", "TextModel"].iter().any(|end| other.ends_with(end)) =>
            {
                Err(unknown(other, "", |family| Some(family.name)))
            }
            (Some(family), _) => Ok(family),
            (None, _) => Err(unknown(name, "", |family| Some(family.name))),
        }
    }

    /// Reads the metadata of a GGUF file.
    pub(crate) fn gguf(architecture: &str) -> Result<&'static Gguf, ModelError> {
        let mut known = FAMILIES.iter().filter_map(|family| family.gguf.as_ref());
        known
            .find(|gguf| gguf.name == architecture)
            .ok_or_else(|| unknown(architecture, " (of GGUF files)", |family| Some(family.gguf.as_ref()?.name)))
    }
}

/// The error for a family that is not known.
fn unknown(found: &str, kind: &str, name: impl Fn(&Family) -> Option<&'static str>) -> ModelError {
    let known = FAMILIES.iter().filter_map(name).collect::<Vec<_>>().join(", ");
    ModelError::Architecture { found: found.into(), known: known + kind }
}

/// The keys of the text part of a model of images and texts, with those of the whole that hold for it, too.
///
/// # Errors
/// The whole has a key that is not understood.
fn text_part(json: &Json, ignored: &[String]) -> Result<Option<Json>, ModelError> {
    let is_known = |wrapper: &Wrapper| {
        json["model_type"] == wrapper.name && json["architectures"].get(0).is_none_or(|it| it == wrapper.architecture)
    };
    let is_wrapped = FAMILIES.iter().filter_map(|family| family.wrapper.as_ref()).any(is_known);
    let Some(text) = json["text_config"].as_object().filter(|_| is_wrapped) else { return Ok(None) };
    keys::check(json, &keys::OF_WRAPPERS, &[], ignored)?;
    let mut text = text.clone();
    for key in ["eos_token_id", "quantization_config", "tie_word_embeddings"] {
        if let Some(value) = json.get(key) {
            text.insert(key.into(), value.clone());
        }
    }
    Ok(Some(Json::Object(text)))
}
