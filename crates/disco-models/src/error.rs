//! Errors of llama models.

use std::path::PathBuf;

use disco_candle::weights::WeightsError;

/// Reasons why a model can't be loaded or computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The model has another architecture.
    #[error(
        "the model has the architecture {found:?}, which is not supported; `disco_models` computes models of the families {known}"
    )]
    Architecture {
        /// The name in the file.
        found: String,
        /// The names of the families that are supported, of this kind of file.
        known: String,
    },
    /// The model uses a feature that is not supported.
    #[error("the model can't be computed: {feature} is not supported by `disco_models`")]
    Feature {
        /// The feature and its value.
        feature: String,
    },
    /// `config.json` has a key that may change the results and is not understood.
    #[error(
        "the configuration of the model has the key {key:?} ({value}), which may change the results and is not understood by `disco_models`; if it does not, remove it or ignore it (`generate --ignore-key {key}`)"
    )]
    UnknownKey {
        /// The key.
        key: String,
        /// Its value as JSON.
        value: String,
    },
    /// A value of the configuration is missing or has the wrong type.
    #[error("the configuration of the model can't be used: {key}: {why}")]
    Key {
        /// The key in the metadata or in `config.json`.
        key: String,
        /// The reason.
        why: String,
    },
    /// Values of the configuration contradict each other.
    #[error("the configuration of the model is inconsistent: {0}")]
    Inconsistent(String),
    /// The configuration file can't be read.
    #[error(
        "{path}: the configuration of the model can't be read: {why}; weights in safetensors files need their configuration in the same folder"
    )]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The number of tokens exceeds the context of the model.
    #[error(
        "the sequence would have {tokens} tokens, but the context of the model has {context}; shorten the prompt or generate fewer tokens"
    )]
    Context {
        /// Tokens of the prompt and of the text so far.
        tokens: usize,
        /// The most tokens that the model can process.
        context: usize,
    },
    /// A call with arguments that can't be computed.
    #[error("{0}")]
    Call(String),
    /// The weights can't be read.
    #[error(transparent)]
    Weights(Box<WeightsError>),
    /// A computation or a collective has failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl From<WeightsError> for ModelError {
    fn from(error: WeightsError) -> Self {
        Self::Weights(Box::new(error))
    }
}
