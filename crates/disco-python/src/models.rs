//! Language models: their files, and what the program makes of texts and tokens. The workers' part are the functions of
//! `disco_models::worker` and `encoding`, which `disco.models` calls.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use disco::Scope;
use disco_candle::weights::Weights;
use disco_core::sync;
use disco_models::encoding::{self, Encode, Encoding};
use disco_models::hub::{Hub, HubName};
use disco_models::text::{Chat, Decoder, Text};
use disco_models::worker::{Batch, Load};
use disco_models::{Adapter, Config, Precision, Sampler};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;

use crate::lock::detached;

/// The files of a model.
#[pyclass(frozen, module = "disco._disco")]
pub(crate) struct ModelFiles {
    load: Load,
    text: Arc<Text>,
    context: usize,
    /// How the model makes vectors or scores; none: it generates texts.
    encoding: Option<Encoding>,
}

fn failed(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(failed)
}

/// The type of weights that the program names.
fn precision(name: &str) -> PyResult<Precision> {
    Ok(match name {
        "file" => Precision::File,
        "float32" => Precision::F32,
        "float16" => Precision::F16,
        "bfloat16" => Precision::Bf16,
        other => {
            return Err(failed(format!("dtype={other:?}: it is file, float32, float16 or bfloat16")));
        }
    })
}

/// A file or a folder, or a name on a hub, which is downloaded.
fn found(name: &str) -> PyResult<PathBuf> {
    if Path::new(name).exists() {
        return Ok(name.into());
    }
    let hub: HubName =
        name.parse().map_err(|error| failed(format!("{name}: there is no such file or folder; {error}")))?;
    let fetched = Hub::from_env().fetch(&hub, |_| {});
    fetched.map_err(|error| failed(format!("there is no file or folder {name}, and the hub has not given it: {error}")))
}

impl ModelFiles {
    fn read(
        model: &str,
        adapter: Option<PathBuf>,
        dtype: &str,
        threads: usize,
        ignored_keys: Vec<String>,
    ) -> PyResult<Self> {
        let (path, adapter) = Adapter::resolve(found(model)?, adapter).map_err(failed)?;
        let weights = Weights::open(&path).map_err(failed)?;
        let text = Text::open(&weights).map_err(failed)?;
        let encoding = Encoding::of_folder(&path).map_err(failed)?;
        let mut load = Load::new(path, precision(dtype)?);
        (load.adapter, load.threads, load.ignored_keys, load.over) = (adapter, threads, ignored_keys, Scope::World);
        let context = match &encoding {
            Some(encoding) => encoding.longest,
            None => {
                let config = Config::open_ignoring(&weights, &load.ignored_keys).map_err(failed)?;
                if config.eos.is_empty() {
                    load.ends = text.ends().to_vec();
                }
                config.context
            }
        };
        Ok(Self { load, text: Arc::new(text), context, encoding })
    }
}

#[pymethods]
impl ModelFiles {
    #[new]
    fn new(
        py: Python<'_>,
        model: &str,
        adapter: Option<PathBuf>,
        dtype: &str,
        threads: usize,
        ignored_keys: Vec<String>,
    ) -> PyResult<Self> {
        detached(py, || Self::read(model, adapter, dtype, threads, ignored_keys))
    }

    /// The most tokens of a text.
    #[getter]
    fn context(&self) -> usize {
        self.context
    }

    /// Whether the model generates texts, makes vectors, or scores pairs of texts.
    #[getter]
    fn task(&self) -> &'static str {
        match &self.encoding {
            None => "generate",
            Some(encoding) if encoding.scores_pairs => "score",
            Some(_) => "embed",
        }
    }

    /// The argument of the worker function that loads the model.
    fn load(&self) -> PyResult<String> {
        match &self.encoding {
            Some(encoding) => json(&Encode::new(self.load.clone(), encoding.clone())),
            None => json(&self.load),
        }
    }

    /// The tokens of a text as it is.
    fn tokens(&self, text: &str) -> PyResult<Vec<u32>> {
        self.text.encode(text, true).map_err(failed)
    }

    /// The tokens of two texts whose relation is scored.
    fn pair(&self, first: &str, second: &str) -> PyResult<Vec<u32>> {
        self.text.encode_pair(first, second).map_err(failed)
    }

    /// The tokens of messages, as the model's template writes them.
    fn chat(&self, messages: &str) -> PyResult<Vec<u32>> {
        let messages = serde_json::from_str(messages).map_err(failed)?;
        self.text.chat(&Chat::new(messages)).map_err(failed)
    }

    /// The argument of the worker function that begins texts.
    fn batch(&self, prompts: Vec<Vec<u32>>, temperature: f64, top_p: f64, seed: u64) -> PyResult<String> {
        let is_valid = temperature.is_finite() && temperature >= 0.0 && (0.0..=1.0).contains(&top_p);
        if !is_valid {
            return Err(failed(format!(
                "temperature={temperature}, top_p={top_p}: temperature is at least 0, and top_p is from 0 to 1"
            )));
        }
        json(&Batch::new(prompts, Sampler::new(temperature, top_p, seed)))
    }

    /// The argument of the worker function that makes vectors.
    fn texts<'py>(&self, py: Python<'py>, texts: Vec<Vec<u32>>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &encoding::to_bytes(&texts).map_err(failed)?))
    }

    /// The vectors that this function returns.
    fn vectors(&self, bytes: &[u8]) -> PyResult<Vec<Vec<f32>>> {
        let vectors = encoding::from_bytes(bytes).map_err(failed)?;
        let is_raw = self.encoding.as_ref().is_none_or(|encoding| !encoding.scores_pairs || encoding.is_raw);
        let score = |number: f32| if is_raw { number } else { 1.0 / (1.0 + (-number).exp()) };
        Ok(vectors.into_iter().map(|vector| vector.into_iter().map(score).collect()).collect())
    }

    /// The text of tokens to come.
    fn decoder(&self) -> TextOfTokens {
        TextOfTokens(self.text.clone(), Mutex::default())
    }
}

/// The text of a growing sequence of tokens.
#[pyclass(frozen, module = "disco._disco")]
pub(crate) struct TextOfTokens(Arc<Text>, Mutex<Decoder>);

#[pymethods]
impl TextOfTokens {
    /// Adds a token. Returns the text that is complete with it.
    fn push(&self, token: u32) -> PyResult<String> {
        let pushed = sync::lock(&self.1).push(token, &self.0);
        pushed.map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// The rest of the text.
    fn finish(&self) -> PyResult<String> {
        let rest = sync::lock(&self.1).finish(&self.0);
        rest.map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }
}
