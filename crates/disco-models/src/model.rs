//! The model of one rank.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Module as _, Tensor};
use disco_candle::Comm;
use disco_candle::DeltaState;
#[cfg(feature = "cuda")]
use disco_candle::cuda;
use disco_candle::even_ranges;
use disco_candle::weights::Shards;
use disco_candle::{Argmax, Shelf, VocabParallelEmbedding, VocabParallelLogits};
use disco_core::WorkerContext;

use crate::attention::{Attention, View};
use crate::blocks::{Kept, Places};
use crate::delta::DeltaNet;
use crate::feed_forward::FeedForward;
use crate::latent::LatentAttention;
use crate::layer_inputs::{InputTable, LayerInput};
use crate::names::{Names, Role};
use crate::norm::Norm;
use crate::parts::{Parts, Precision};
use crate::rope::Rope;
use crate::states::Span;
use crate::{Adapter, Config, Layer, ModelError, Norms, Pool, Projections, Rotary, Sums, config, tensors};

/// The name of the files and plans that must be equal on all ranks, in errors.
const COMPARED: &str = "the files or the split plans of the model";

/// One rank's part of a model.
#[derive(Debug)]
pub struct Transformer {
    config: Config,
    embedding: VocabParallelEmbedding,
    layers: Vec<Block>,
    norm: Norm,
    logits: VocabParallelLogits,
    /// The kinds of layers: rotary embeddings and window.
    kinds: Vec<(Option<Rope>, Option<usize>)>,
    /// The kinds of heads: the query heads of each kv head on this rank.
    heads: Vec<Vec<Range<usize>>>,
    /// What this rank keeps of a token in the layers that have their own keys and values.
    memories: Vec<Kept>,
    inputs: Option<InputTable>,
    /// Learnt embeddings of positions, and the row of position 0.
    positions: Option<(Tensor, usize)>,
    comm: Comm,
    /// Of the weights and their plan; equal on all ranks.
    fingerprint: u64,
    dtype: DType,
    device: Device,
    bytes: usize,
    /// Replaced when other ranks take part: texts that began before can't go on.
    ranks: RefCell<Arc<()>>,
}

#[derive(Debug)]
struct Block {
    norms: Norms,
    attention_norm: Option<Norm>,
    mixer: Mixer,
    attention_post_norm: Option<Norm>,
    ffn_norm: Option<Norm>,
    feed_forward: FeedForward,
    ffn_post_norm: Option<Norm>,
    input: Option<LayerInput>,
    /// Of the hidden state behind the layer, `[1]`.
    scalar: Option<Tensor>,
}

/// How the tokens of a layer see each other.
#[derive(Debug)]
enum Mixer {
    Attention(Attention, Place),
    Latent(LatentAttention, Place),
    /// With its number among those of its kind.
    Delta(DeltaNet, usize),
}

/// What the layers of a pass have in common.
struct Pass<'a> {
    pool: &'a Pool,
    places: &'a Places<'a>,
    /// By the kinds of layers.
    views: Vec<View>,
    spans: &'a [Span],
}

impl Mixer {
    fn forward(&self, x: &Tensor, pass: &Pass<'_>) -> candle_core::Result<Tensor> {
        let memory = |place: &Place| pass.pool.memory(place.memory, place.heads, pass.places);
        match self {
            Self::Attention(attention, place) => attention.forward(x, &pass.views[place.kind], memory(place)),
            Self::Latent(attention, place) => attention.forward(x, &pass.views[place.kind], memory(place)),
            Self::Delta(net, number) => net.forward(x, *number, &pass.pool.states, pass.spans),
        }
    }
}

/// What the layers of a model have in common, as far as they are loaded.
#[derive(Default)]
struct Common {
    /// The kinds of layers: rotary embeddings and window.
    kinds: Vec<(Option<Rotary>, Option<usize>)>,
    /// The kinds of heads: the query heads of each kv head on this rank.
    heads: Vec<Vec<Range<usize>>>,
    /// What this rank keeps of a token in the layers that have their own keys and values.
    memories: Vec<Kept>,
    /// The number of the memory of each layer, if it has one.
    memory_of: Vec<Option<usize>>,
    deltas: usize,
}

impl Common {
    fn mixer(&mut self, parts: &Parts<'_>, layer: usize, comm: &Comm) -> Result<Mixer, ModelError> {
        let config = match &parts.config.layers[layer].mixer {
            config::Mixer::Delta(delta) => {
                self.memory_of.push(None);
                self.deltas += 1;
                return Ok(Mixer::Delta(DeltaNet::load(parts, delta, layer, comm)?, self.deltas - 1));
            }
            config::Mixer::Attention(attention) => attention,
        };
        let plan = parts.config.sums.heads(config, comm.size())?;
        let groups = plan.groups(comm.rank());
        let memory = match config.projections {
            Projections::Shared { layer } if let Some(memory) = self.memory_of[layer] => memory,
            projections => {
                let has_values = projections.latent().is_none();
                self.memories.push(Kept { kv_heads: groups.len(), head_dim: config.head_dim, has_values });
                self.memories.len() - 1
            }
        };
        self.memory_of.push(Some(memory));
        let place = Place {
            kind: number_of(&mut self.kinds, (config.rotary.clone(), config.window)),
            heads: number_of(&mut self.heads, groups),
            memory,
        };
        Ok(match config.projections.latent() {
            Some(widths) => Mixer::Latent(LatentAttention::load(parts, (config, widths), &plan, layer, comm)?, place),
            None => Mixer::Attention(Attention::load(parts, config, &plan, layer, comm)?, place),
        })
    }
}

/// What a layer has in common with others.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The numbers of the kind of layers, and of the kind of heads.
    kind: usize,
    heads: usize,
    /// The number of the memory of keys and values.
    memory: usize,
}

impl Block {
    fn load(parts: &Parts<'_>, mixer: Mixer, layer: usize, comm: &Comm) -> Result<Self, ModelError> {
        let Layer { norms, scalar, .. } = parts.config.layers[layer];
        let norm = |is_there: bool, role| is_there.then(|| parts.norm(&parts.names.layer(layer, role))).transpose();
        let is_behind = matches!(norms, Norms::After | Norms::Around);
        Ok(Self {
            norms,
            attention_norm: norm(norms != Norms::After, Role::AttentionNorm)?,
            mixer,
            attention_post_norm: norm(is_behind, Role::AttentionPostNorm)?,
            ffn_norm: norm(matches!(norms, Norms::Before | Norms::Around), Role::FfnNorm)?,
            feed_forward: FeedForward::load(parts, layer, comm)?,
            ffn_post_norm: norm(is_behind, Role::FfnPostNorm)?,
            input: parts.config.layer_inputs.map(|it| LayerInput::load(parts, it.activation, layer)).transpose()?,
            scalar: scalar.then(|| parts.tensor(&parts.names.layer(layer, Role::Scalar))).transpose()?,
        })
    }

    /// The hidden states after this layer.
    fn forward(
        &self,
        x: Tensor,
        residual_factor: f64,
        pass: &Pass<'_>,
        inputs: Option<&Tensor>,
    ) -> candle_core::Result<Tensor> {
        let input = normed(&self.attention_norm, x.clone())?;
        let y = self.mixer.forward(&input, pass)?;
        let y = normed(&self.attention_post_norm, y)?;
        let x = (x + scaled(y, residual_factor)?)?;
        let input = if self.norms == Norms::Shared { input } else { normed(&self.ffn_norm, x.clone())? };
        let y = normed(&self.ffn_post_norm, self.feed_forward.forward(&input, &x)?)?;
        let mut x = (x + scaled(y, residual_factor)?)?;
        if let (Some(input), Some(inputs)) = (&self.input, inputs) {
            x = (&x + input.forward(&x, inputs)?)?;
        }
        self.scalar.iter().try_fold(x, |x, scalar| x.broadcast_mul(scalar))
    }
}

impl Transformer {
    /// Reads this rank's part of a model. `shards` is split as [`plan`](crate::plan()) says, and has the element type of
    /// `precision`.
    ///
    /// # Errors
    /// The weights can't be read, or lack a tensor. On devices, several ranks have other sums than [`Sums::Parts`].
    pub fn load(config: Config, shards: &Shards, precision: Precision, comm: Comm) -> Result<Self, ModelError> {
        Self::read(config, shards, (None, None), precision, comm)
    }

    /// As [`load`](Self::load), with an adapter merged into the weights. Quantised matrices that it changes become dense.
    ///
    /// # Errors
    /// As [`load`](Self::load); the adapter does not fit the model.
    pub fn load_adapted(
        config: Config,
        shards: &Shards,
        adapter: Option<&Adapter>,
        precision: Precision,
        comm: Comm,
    ) -> Result<Self, ModelError> {
        Self::read(config, shards, (adapter, None), precision, comm)
    }

    /// As [`load_adapted`](Self::load_adapted), with matrices on a shelf.
    pub(crate) fn read(
        mut config: Config,
        shards: &Shards,
        (adapter, shelf): (Option<&Adapter>, Option<&Shelf>),
        precision: Precision,
        comm: Comm,
    ) -> Result<Self, ModelError> {
        let of_adapter = adapter.map_or(0, |adapter| adapter.fingerprint().rotate_left(1));
        let fingerprint = shards.fingerprint() ^ of_adapter;
        comm.require_same(COMPARED, fingerprint, shards.device()).map_err(disco_candle::to_candle)?;
        if !shards.device().is_cpu() {
            if comm.size() > 1 && config.sums != Sums::Parts {
                return Err(ModelError::Feature { feature: format!("{:?} sums of ranks on devices", config.sums) });
            }
            config.sums = Sums::Parts;
        }
        let names = Names::of(config.names, shards.weights());
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = shards.device() {
            let widths = config.attentions().map(|attention| attention.head_dim);
            if let Some(width) = widths.max().filter(|width| *width > disco_candle::paged::WIDEST) {
                return Err(ModelError::Feature { feature: format!("heads of {width} elements on CUDA devices") });
            }
            cuda::require_memory(device, crate::memory_bytes(&config, shards, precision))
                .map_err(disco_candle::to_candle)?;
        }
        let shapes = tensors::matrix_shapes(&config, shards.weights());
        let embedding_name = names.embedding_in(shards.weights(), config.tied);
        if let Some(adapter) = adapter {
            if names.is_transposed() {
                let feature = "an adapter of a model whose matrices are stored as inputs × outputs".into();
                return Err(ModelError::Feature { feature });
            }
            adapter.check(&shapes, config.tied.then_some(&embedding_name))?;
        }
        let parts = Parts { shards, names, config: &config, precision, shapes, adapter, shelf, bytes: Cell::new(0) };
        let embedding = parts.table(&embedding_name)?;
        let rows: Vec<_> = even_ranges(config.vocabulary, comm.size()).collect();
        let device = shards.device().clone();
        let logits = match config.tied {
            false => parts.matrix(names.logits())?,
            // Only the host looks up rows of blocks.
            true if !device.is_cpu() && parts.is_quantized(&embedding_name)? => parts.matrix(&embedding_name)?,
            true => embedding.clone(),
        };
        let mut common = Common::default();
        let mut layers = Vec::new();
        for number in 0..config.layers.len() {
            let mixer = common.mixer(&parts, number, &comm)?;
            layers.push(Block::load(&parts, mixer, number, &comm)?);
        }
        let Common { kinds, heads, memories, .. } = common;
        let dtype = precision.dtype();
        let kinds = kinds.into_iter().map(|(rotary, window)| {
            let rope = rotary.map(|rotary| {
                let divisors = rotary.scaling.tensors().iter().map(|name| parts.wide(name));
                Ok::<_, ModelError>(Rope::new(
                    &rotary,
                    config.context,
                    &divisors.collect::<Result<Vec<_>, _>>()?,
                    dtype,
                    &device,
                )?)
            });
            Ok((rope.transpose()?, window))
        });
        let kinds = kinds.collect::<Result<Vec<_>, ModelError>>()?;
        let positions = config.positions.map(|it| Ok::<_, ModelError>((parts.tensor(&names.positions())?, it.first)));
        let (positions, norm) = (positions.transpose()?, parts.norm(&names.norm())?);
        let model = Self {
            norm,
            kinds,
            heads,
            memories,
            inputs: config.layer_inputs.map(|inputs| InputTable::load(&parts, inputs, &comm)).transpose()?,
            positions,
            embedding: VocabParallelEmbedding::new(embedding, rows[comm.rank()].clone(), comm.clone())?,
            logits: VocabParallelLogits::new(logits, rows.iter().map(Range::len).collect(), comm.clone())?,
            layers,
            comm,
            fingerprint,
            dtype,
            device,
            bytes: parts.bytes.get(),
            ranks: RefCell::default(),
            config,
        };
        if !model.device.is_cpu() {
            model.warm_up()?;
        }
        Ok(model)
    }

    /// Computes short prompts and steps, without collectives. A device loads a kernel when it is first needed, which may wait
    /// for other kernels of the process: of ranks that share a device, one may be in a collective that waits for this rank.
    /// Products of long prompts may still need other kernels. [`Transformer::load`] calls it on a device other than the host.
    ///
    /// # Errors
    /// Errors of candle, such as a device with too little memory; an earlier collective has failed.
    pub fn warm_up(&self) -> Result<(), ModelError> {
        self.comm.synchronize().map_err(disco_candle::to_candle)?;
        let compute = || {
            for prompts in [vec![vec![0, 0]], vec![vec![0], vec![0, 0]]] {
                let (mut cache, hidden) = self.prompt(&prompts)?;
                self.logits(&hidden)?;
                let hidden = self.step(&mut cache, &self.most_probable(&hidden)?.tokens()?)?;
                self.most_probable(&hidden)?;
            }
            Ok::<_, ModelError>(())
        };
        self.comm.silently(compute).map_err(disco_candle::to_candle)??;
        Ok(self.device.synchronize()?)
    }

    /// Goes on after lost workers were replaced and `init_ccl` was called: the communicator becomes a
    /// [new one](Comm::rejoin). Collective: workers that replaced lost ones call [`Comm::over`] and [`Transformer::load`], which
    /// compare their model with this one. New workers have no caches, so prompts have to be computed
    /// again.
    ///
    /// # Errors
    /// Errors of [`Comm::rejoin`]; another rank has loaded another model.
    pub fn rejoin(&self, ctx: &mut WorkerContext) -> Result<(), ModelError> {
        let joined =
            self.comm.rejoin(ctx).and_then(|()| self.comm.require_same(COMPARED, self.fingerprint, &self.device));
        *self.ranks.borrow_mut() = Arc::default();
        Ok(joined.map_err(disco_candle::to_candle)?)
    }

    /// An identity of this model with its present ranks.
    pub(crate) fn ranks(&self) -> Arc<()> {
        self.ranks.borrow().clone()
    }

    /// The communicator of the ranks that compute the model, with its [statistics](Comm::take_stats).
    pub fn comm(&self) -> &Comm {
        &self.comm
    }

    /// The hyperparameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Size in bytes of this rank's weights in memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The logits of all tokens of the vocabulary for hidden states, `[sequences, vocabulary]`.
    ///
    /// # Errors
    /// A collective fails.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, ModelError> {
        let logits = self.logits.forward(hidden)?.to_dtype(DType::F32)?;
        let logits = scaled(logits, self.config.logits_factor)?;
        Ok(self.config.logits_softcap.map_or(Ok(logits.clone()), |cap| capped(&logits, cap))?)
    }

    /// The most probable token of each sequence for hidden states, `[sequences, dim]`. All ranks get the same tokens, which
    /// stay on the device.
    ///
    /// # Errors
    /// A collective fails.
    pub fn most_probable(&self, hidden: &Tensor) -> Result<Argmax, ModelError> {
        Ok(self.logits.argmax(hidden)?)
    }

    /// The type of hidden states, keys and values.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device of the weights.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The rotary embeddings of all kinds of layers.
    pub(crate) fn ropes(&self) -> impl Iterator<Item = &Rope> {
        self.kinds.iter().filter_map(|(rope, _)| rope.as_ref())
    }

    /// # Errors
    /// A sequence of `tokens` tokens exceeds the context.
    pub(crate) fn check_room(&self, tokens: usize) -> Result<(), ModelError> {
        if tokens > self.config.context {
            Err(ModelError::Context { tokens, context: self.config.context })
        } else {
            Ok(())
        }
    }

    /// Processes tokens of several sequences, u32 `[tokens]` on the model's device. Returns `[tokens, dim]`, before the last
    /// norm.
    pub(crate) fn pass(
        &self,
        pool: &Pool,
        tokens: &Tensor,
        places: &Places<'_>,
        spans: &[Span],
    ) -> Result<Tensor, ModelError> {
        let views = self.kinds.iter().map(|(rope, window)| {
            let rotation = rope.as_ref().map(|rope| rope.rotation(&places.positions, spans)).transpose()?;
            Ok(View { rotation, window: *window })
        });
        let views = views.collect::<candle_core::Result<Vec<_>>>()?;
        let tokens = tokens.unsqueeze(0)?;
        let mut x = scaled(self.embedding.forward(&tokens)?.to_dtype(self.dtype)?, self.config.embedding_factor)?;
        let inputs = self.inputs.as_ref().map(|inputs| inputs.forward(&tokens, &x)).transpose()?;
        if let Some((table, first)) = &self.positions {
            let rows = (places.positions.to_dtype(DType::I64)? + *first as f64)?;
            x = x.broadcast_add(&table.index_select(&rows, 0)?)?;
        }
        pool.states.begin(spans)?;
        let pass = Pass { pool, places, views, spans };
        for block in &self.layers {
            x = block.forward(x, self.config.residual_factor, &pass, inputs.as_ref())?;
        }
        Ok(x.squeeze(0)?)
    }

    /// The hidden states that [`logits`](Self::logits) takes.
    pub(crate) fn last_norm(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        Ok(self.norm.forward(x)?)
    }

    /// What this rank keeps of a token in each layer with keys and values of its own.
    pub(crate) fn memories(&self) -> &[Kept] {
        &self.memories
    }

    /// The states of linear attention before the first token.
    pub(crate) fn start_states(&self) -> Vec<DeltaState> {
        let start = |block: &Block| if let Mixer::Delta(net, _) = &block.mixer { Some(net.start()) } else { None };
        self.layers.iter().filter_map(start).collect()
    }

    /// The kinds of heads: the query heads of each kv head on this rank.
    pub(crate) fn heads(&self) -> &[Vec<Range<usize>>] {
        &self.heads
    }
}

/// The number of `one` among all that differ so far.
fn number_of<T: PartialEq>(all: &mut Vec<T>, one: T) -> usize {
    all.iter().position(|known| *known == one).unwrap_or_else(|| {
        all.push(one);
        all.len() - 1
    })
}

/// `x` between `cap` and its negative.
fn capped(x: &Tensor, cap: f64) -> candle_core::Result<Tensor> {
    disco_candle::tanh(&(x / cap)?)? * cap
}

fn normed(norm: &Option<Norm>, x: Tensor) -> candle_core::Result<Tensor> {
    norm.iter().try_fold(x, |x, norm| norm.forward(&x))
}

fn scaled(x: Tensor, factor: f64) -> candle_core::Result<Tensor> {
    if factor == 1.0 { Ok(x) } else { x * factor }
}
