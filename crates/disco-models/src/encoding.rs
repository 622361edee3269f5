//! Worker functions for models that make vectors of texts, or scores of pairs of texts.
//!
//! `disco.models.load_encoder` reads the model; its result, the worker's state, is the first argument of `disco.models.encode`, whose
//! second one is the tokens of texts ([`to_bytes`]). Rank 0 returns [`Vectors`]; other ranks return nothing.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use disco_candle::Comm;
use disco_candle::weights::{Shards, Weights};
use disco_core::activity::TimeLimit;
use disco_core::function::Json;
use disco_core::{Object, Opaque, WorkerContext};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bert::{self, Bert};
use crate::worker::Load;
use crate::{BLOCK, ModelError, Pool, Ragged, Transformer};

/// The tokens of one pass, padding included, unless one text has more.
const PASS: usize = 4096;

/// How a model makes vectors of texts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Encoding {
    kind: Kind,
    /// What becomes of the hidden states of a text's tokens.
    pooling: Pooling,
    /// Folders of matrices behind that.
    dense: Vec<PathBuf>,
    /// Whether vectors have the length 1.
    normalises: bool,
    /// The most tokens of a text.
    pub longest: usize,
    /// The number of different tokens.
    pub vocabulary: usize,
    /// Whether the model scores pairs of texts, with one number each.
    pub scores_pairs: bool,
    /// Whether that number is the score, instead of its sigmoid.
    pub is_raw: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
enum Kind {
    Bert,
    Decoder,
}

/// Which hidden states become the vector of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
enum Pooling {
    First,
    Mean,
    Last,
}

/// Vectors of texts, one for each, in their order.
pub type Vectors = Vec<Vec<f32>>;

/// The argument of `disco.models.load_encoder`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Encode {
    /// The model.
    pub load: Load,
    /// How it makes vectors.
    pub encoding: Encoding,
}

impl Encode {
    /// A model that makes vectors so.
    pub fn new(load: Load, encoding: Encoding) -> Self {
        Self { load, encoding }
    }
}

impl Encoding {
    /// How the model of a folder makes vectors, by the files of sentence-transformers (`modules.json`) or its architecture; `None`: it is
    /// another kind of model.
    ///
    /// # Errors
    /// A file is malformed, or asks for something that is not computed here.
    pub fn of_folder(folder: &Path) -> Result<Option<Self>, ModelError> {
        // A file of GGUF is another kind.
        if !folder.is_dir() {
            return Ok(None);
        }
        let Some(config) = read(&folder.join("config.json"))? else { return Ok(None) };
        let architecture = config["architectures"][0].as_str().unwrap_or_default();
        let is_bert = ["Bert", "Roberta", "XLMRoberta"].iter().any(|family| {
            architecture.strip_prefix(family).is_some_and(|kind| ["Model", "ForSequenceClassification"].contains(&kind))
        });
        let modules = read(&folder.join("modules.json"))?;
        if !is_bert && modules.is_none() {
            return Ok(None);
        }
        let scores_pairs = architecture.ends_with("ForSequenceClassification");
        if modules.is_none() && !scores_pairs {
            return Err(feature("a model of vectors without modules.json, which says how they are made".into()));
        }
        let mut encoding = Self {
            kind: if is_bert { Kind::Bert } else { Kind::Decoder },
            pooling: Pooling::First,
            dense: Vec::new(),
            normalises: false,
            longest: 0,
            vocabulary: config["vocab_size"].as_u64().unwrap_or(0) as usize,
            scores_pairs,
            is_raw: is_raw(&config)?,
        };
        if encoding.scores_pairs {
            // Two, if nothing is said.
            let labels = config["id2label"].as_object().map_or(2, serde_json::Map::len);
            if labels != 1 || architecture == "BertForSequenceClassification" {
                return Err(feature(format!("{architecture} with {labels} labels")));
            }
        }
        encoding.longest = match encoding.kind {
            Kind::Bert => {
                serde_json::from_value::<bert::Config>(config).map_err(|error| feature(error.to_string()))?.longest()
            }
            Kind::Decoder => config["max_position_embeddings"].as_u64().unwrap_or(0) as usize,
        };
        for module in modules.iter().flat_map(|modules| modules.as_array().into_iter().flatten()) {
            let (kind, path) =
                (module["type"].as_str().unwrap_or_default(), module["path"].as_str().unwrap_or_default());
            match kind.rsplit('.').next().unwrap_or_default() {
                "Transformer" => {}
                "Pooling" => encoding.pooling = pooling(&folder.join(path).join("config.json"))?,
                "Dense" => encoding.dense.push(folder.join(path)),
                "Normalize" => encoding.normalises = true,
                _ => return Err(feature(format!("the module {kind:?}"))),
            }
        }
        if encoding.kind == Kind::Decoder && encoding.pooling == Pooling::First {
            return Err(feature(format!("pooling {:?} of a decoder", encoding.pooling)));
        }
        if encoding.kind == Kind::Bert && encoding.pooling == Pooling::Last {
            return Err(feature("the last token of an encoder".into()));
        }
        let sentences = read(&folder.join("sentence_bert_config.json"))?.unwrap_or_default();
        let most = sentences["max_seq_length"].as_u64().map_or(usize::MAX, |most| most as usize);
        encoding.longest = encoding.longest.min(most);
        if encoding.longest == 0 || encoding.vocabulary == 0 {
            return Err(feature("a model without max_position_embeddings or vocab_size".into()));
        }
        let prompts = read(&folder.join("config_sentence_transformers.json"))?.unwrap_or_default();
        for (file, key) in [(&prompts, "default_prompt_name"), (&sentences, "do_lower_case")] {
            if ![Value::Null, Value::Bool(false)].contains(&file[key]) {
                return Err(feature(format!("{key} {}", file[key])));
            }
        }
        Ok(Some(encoding))
    }
}

/// Whether sentence-transformers takes a score as it is.
fn is_raw(config: &Value) -> Result<bool, ModelError> {
    let old = &config["sbert_ce_default_activation_function"];
    let activation = config["sentence_transformers"]["activation_fn"].as_str().or_else(|| old.as_str());
    match activation.map(|name| name.rsplit('.').next().unwrap_or_default()) {
        None | Some("Sigmoid") => Ok(false),
        Some("Identity") => Ok(true),
        Some(name) => Err(feature(format!("the activation {name:?} of scores"))),
    }
}

fn feature(feature: String) -> ModelError {
    ModelError::Feature { feature }
}

fn read(file: &Path) -> Result<Option<Value>, ModelError> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(ModelError::Inconsistent(format!("{}: {error}", file.display()))),
    };
    let value = serde_json::from_str(&text);
    value.map(Some).map_err(|error| ModelError::Inconsistent(format!("{}: {error}", file.display())))
}

fn pooling(file: &Path) -> Result<Pooling, ModelError> {
    let config = read(file)?.unwrap_or_default();
    let is = |mode: &str| config[format!("pooling_mode_{mode}")] == true;
    let modes = config.as_object().into_iter().flatten();
    let count = modes.filter(|(key, value)| key.starts_with("pooling_mode_") && **value == true).count();
    match count {
        1 if is("cls_token") => Ok(Pooling::First),
        1 if is("mean_tokens") => Ok(Pooling::Mean),
        1 if is("lasttoken") => Ok(Pooling::Last),
        _ => Err(feature(format!("the pooling of {}", file.display()))),
    }
}

/// The argument of `disco.models.encode`: tokens of texts.
///
/// # Errors
/// There is not enough memory.
pub fn to_bytes(texts: &[Vec<u32>]) -> Result<Vec<u8>, String> {
    postcard::to_allocvec(texts).map_err(|error| format!("the tokens of texts: {error}"))
}

/// The result of `disco.models.encode`.
///
/// # Errors
/// The bytes are no vectors.
pub fn from_bytes(bytes: &[u8]) -> Result<Vectors, String> {
    postcard::from_bytes(bytes).map_err(|error| format!("the vectors of texts: {error}"))
}

/// Texts that are computed together, one group after the other.
pub fn passes(texts: &[Vec<u32>]) -> impl Iterator<Item = &[Vec<u32>]> {
    let mut rest = texts;
    std::iter::from_fn(move || {
        let mut longest = rest.first()?.len();
        let mut count = 1;
        while count < rest.len() && longest.max(rest[count].len()) * (count + 1) <= PASS {
            longest = longest.max(rest[count].len());
            count += 1;
        }
        let (pass, others) = rest.split_at(count);
        rest = others;
        Some(pass)
    })
}

/// The state of one worker.
struct Encoder {
    model: Model,
    pooling: Pooling,
    /// Matrices, `[outputs, inputs]`, and biases behind the pooling.
    dense: Vec<Layer>,
    /// Scores instead of vectors.
    head: Option<[Layer; 2]>,
    normalises: bool,
    comm: Comm,
}

struct Layer {
    weight: Tensor,
    bias: Option<Tensor>,
    has_tanh: bool,
}

enum Model {
    Bert(Bert),
    Decoder(Box<Transformer>),
}

impl Layer {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let mut y = x.matmul(&self.weight.t()?)?;
        if let Some(bias) = &self.bias {
            y = y.broadcast_add(bias)?;
        }
        if self.has_tanh { y.tanh() } else { Ok(y) }
    }
}

impl Encoder {
    fn open(ctx: &mut WorkerContext, Encode { load, encoding }: &Encode) -> Result<Self, ModelError> {
        let (model, head, comm) = match encoding.kind {
            Kind::Decoder => {
                let (model, _) = crate::worker::open(ctx, load, None::<fn(u64, u64)>, false)?;
                let comm = model.comm().clone();
                (Model::Decoder(Box::new(model)), None, comm)
            }
            Kind::Bert => {
                disco_candle::compute_threads(load.threads).map_err(disco_candle::to_candle)?;
                let comm = Comm::over(ctx, &load.over).map_err(disco_candle::to_candle)?;
                let weights = Arc::new(Weights::open(&load.model)?);
                let config = read(&load.model.join("config.json"))?.unwrap_or_default();
                let config: bert::Config =
                    serde_json::from_value(config).map_err(|error| feature(error.to_string()))?;
                let device = disco_candle::device(ctx, DType::F32).map_err(disco_candle::to_candle)?;
                let plan = bert::plan(&config, comm.size())?;
                let shards = Shards::new(weights, plan, comm.rank(), comm.size(), DType::F32, device);
                let layer = |name: &str, has_tanh| {
                    let [weight, bias] =
                        ["weight", "bias"].map(|part| shards.tensor(&format!("classifier.{name}.{part}")));
                    Ok::<_, ModelError>(Layer { weight: weight?, bias: Some(bias?), has_tanh })
                };
                let head = || Ok::<_, ModelError>([layer("dense", true)?, layer("out_proj", false)?]);
                let head = encoding.scores_pairs.then(head).transpose()?;
                (Model::Bert(Bert::load(&config, &shards, &comm)?), head, comm)
            }
        };
        let device = disco_candle::device(ctx, DType::F32).map_err(disco_candle::to_candle)?;
        let dense = encoding.dense.iter().map(|folder| {
            let config = read(&folder.join("config.json"))?.unwrap_or_default();
            let activation =
                config["activation_function"].as_str().unwrap_or_default().rsplit('.').next().unwrap_or_default();
            if !["Identity", "Tanh"].contains(&activation) {
                return Err(feature(format!("the activation {activation:?} behind the pooling")));
            }
            let weights = Weights::open(folder)?;
            let tensor = |name: &str| weights.read(name, &disco_candle::weights::Part::Whole, DType::F32, &device);
            let bias = weights.contains("linear.bias").then(|| tensor("linear.bias")).transpose()?;
            Ok(Layer { weight: tensor("linear.weight")?, bias, has_tanh: activation == "Tanh" })
        });
        let dense = dense.collect::<Result<_, _>>()?;
        Ok(Self { model, pooling: encoding.pooling, dense, head, normalises: encoding.normalises, comm })
    }

    /// The vectors of texts, or their scores, which have one number each.
    #[expect(clippy::disallowed_methods, reason = "the result of the function")]
    fn encode(&self, texts: &[Vec<u32>]) -> Result<Vectors, ModelError> {
        let mut all = Vec::with_capacity(texts.len());
        for pass in passes(texts) {
            let mut x = match &self.model {
                Model::Bert(bert) => bert.pool(pass, self.pooling == Pooling::Mean)?,
                Model::Decoder(model) => pooled(model, pass, self.pooling == Pooling::Mean)?,
            };
            for layer in self.dense.iter().chain(self.head.iter().flatten()) {
                x = layer.forward(&x)?;
            }
            if self.normalises {
                x = x.broadcast_div(&x.sqr()?.sum_keepdim(1)?.sqrt()?)?;
            }
            self.comm.synchronize().map_err(disco_candle::to_candle)?;
            all.extend(x.to_vec2::<f32>()?);
        }
        Ok(all)
    }
}

/// The hidden states of the last tokens of texts, or the means of all tokens, `[texts, dim]`.
fn pooled(model: &Transformer, texts: &[Vec<u32>], is_mean: bool) -> Result<Tensor, ModelError> {
    let (mut batch, mut blocks) = (Ragged::default(), 0);
    for text in texts {
        if text.is_empty() {
            return Err(ModelError::Call("a text has no tokens".into()));
        }
        let count = text.len().div_ceil(BLOCK);
        let table = (blocks..blocks + count).map(|block| block as u32).collect();
        blocks += count;
        let end = batch.push(text, 0, table);
        let first = end + 1 - text.len() as u32;
        batch.wanted.extend(if is_mean { first..end + 1 } else { end..end + 1 });
        batch.lengths.push(text.len());
        batch.states.push(crate::RunState::new(0));
    }
    let mut pool: Pool = model.pool(blocks)?;
    let states = model.batch(&mut pool, &batch)?.to_dtype(DType::F32)?;
    if !is_mean {
        return Ok(states);
    }
    let mut first = 0;
    let means = texts.iter().map(|text| {
        first += text.len();
        states.narrow(0, first - text.len(), text.len())?.mean(0)
    });
    Ok(Tensor::stack(&means.collect::<candle_core::Result<Vec<_>>>()?, 0)?)
}

/// Worker function: reads this worker's part of a model and returns the worker's state. Collective. `kept` is the state that an earlier
/// call has returned: a worker that has one goes on with the model.
fn load_encoder(ctx: &mut WorkerContext, Json(encode): Json<Encode>, kept: Object) -> Result<Object, ModelError> {
    if let Object::Opaque(state) = &kept
        && let Some(encoder) = state.downcast::<RefCell<Encoder>>()
    {
        let encoder = &mut *encoder.borrow_mut();
        match &mut encoder.model {
            Model::Decoder(model) => model.rejoin(ctx)?,
            Model::Bert(_) => encoder.comm.rejoin(ctx).map_err(disco_candle::to_candle)?,
        }
        return Ok(kept);
    }
    Ok(Object::Opaque(Opaque::new(RefCell::new(Encoder::open(ctx, &encode)?))))
}

/// Worker function: the vectors of texts.
fn encode(
    _: &mut WorkerContext,
    encoder: Rc<RefCell<Encoder>>,
    texts: Arc<[u8]>,
) -> Result<Option<Vec<u8>>, ModelError> {
    let texts: Vec<Vec<u32>> = postcard::from_bytes(&texts).map_err(|error| ModelError::Call(error.to_string()))?;
    let encoder = encoder.borrow();
    let vectors = encoder.encode(&texts)?;
    if encoder.comm.rank() != 0 {
        return Ok(None);
    }
    let bytes = postcard::to_allocvec(&vectors);
    bytes.map(Some).map_err(|error| ModelError::Call(format!("the vectors of texts: {error}")))
}

disco_core::register_function!("disco.models.load_encoder", load_encoder, limit: TimeLimit::Own);
disco_core::register_function!("disco.models.encode", encode);
