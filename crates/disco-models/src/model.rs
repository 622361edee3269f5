//! The model of one rank.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Module as _, Tensor};
use disco_candle::Comm;
use disco_candle::Matrix;
#[cfg(feature = "cuda")]
use disco_candle::cuda;
use disco_candle::weights::Shards;
use disco_candle::{Argmax, VocabParallelEmbedding, VocabParallelLogits};
use disco_candle::{HeadPlan, even_ranges};
use disco_core::WorkerContext;

use crate::attention::{Attention, Memory, View};
use crate::cache::{Slots, Slotted};
use crate::feed_forward::FeedForward;
use crate::heads::capped;
use crate::mask::mask;
use crate::names::{Names, Role};
use crate::norm::Norm;
use crate::parts::{Parts, Precision};
use crate::rope::Rope;
use crate::{Adapter, Cache, Config, Layer, ModelError, Norms, tensors};

/// The most tokens of each sequence that are processed together, which bounds the memory for attention.
const CHUNK: usize = 512;

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
    /// The number of the kind of layers.
    kind: usize,
    norms: Norms,
    attention_norm: Option<Norm>,
    attention: Attention,
    attention_post_norm: Option<Norm>,
    ffn_norm: Option<Norm>,
    feed_forward: FeedForward,
    ffn_post_norm: Option<Norm>,
}

/// What the tokens of a forward pass have in common.
pub(crate) struct Views {
    /// One for each kind of layers.
    kinds: Vec<View>,
    /// The embeddings of the tokens' positions, `[sequences or 1, tokens, dim]`.
    positions: Option<Tensor>,
}

impl Block {
    fn load(parts: &Parts<'_>, kind: usize, heads: &HeadPlan, layer: usize, comm: &Comm) -> Result<Self, ModelError> {
        let norms = parts.config.layers[layer].norms;
        let norm = |is_there: bool, role| is_there.then(|| parts.norm(&parts.names.layer(layer, role))).transpose();
        let is_behind = matches!(norms, Norms::After | Norms::Around);
        Ok(Self {
            kind,
            norms,
            attention_norm: norm(norms != Norms::After, Role::AttentionNorm)?,
            attention: Attention::load(parts, heads, layer, comm)?,
            attention_post_norm: norm(is_behind, Role::AttentionPostNorm)?,
            ffn_norm: norm(matches!(norms, Norms::Before | Norms::Around), Role::FfnNorm)?,
            feed_forward: FeedForward::load(parts, layer, comm)?,
            ffn_post_norm: norm(is_behind, Role::FfnPostNorm)?,
        })
    }

    /// The hidden states after this layer.
    fn forward(
        &self,
        x: Tensor,
        residual_factor: f64,
        views: &Views,
        memory: impl Memory,
    ) -> candle_core::Result<Tensor> {
        let input = normed(&self.attention_norm, x.clone())?;
        let y = self.attention.forward(&input, &views.kinds[self.kind], memory)?;
        let y = normed(&self.attention_post_norm, y)?;
        let x = (x + scaled(y, residual_factor)?)?;
        let input = if self.norms == Norms::Shared { input } else { normed(&self.ffn_norm, x.clone())? };
        let y = normed(&self.ffn_post_norm, self.feed_forward.forward(&input)?)?;
        x + scaled(y, residual_factor)?
    }
}

impl Transformer {
    /// Reads this rank's part of a model. `shards` is split as [`plan`](crate::plan()) says, and has the element type of
    /// `precision`.
    ///
    /// # Errors
    /// The weights can't be read, or lack a tensor.
    pub fn load(config: Config, shards: &Shards, precision: Precision, comm: Comm) -> Result<Self, ModelError> {
        Self::load_adapted(config, shards, None, precision, comm)
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
        let of_adapter = adapter.map_or(0, |adapter| adapter.fingerprint().rotate_left(1));
        let fingerprint = shards.fingerprint() ^ of_adapter;
        comm.require_same(COMPARED, fingerprint, shards.device()).map_err(disco_candle::to_candle)?;
        let names = Names::of(config.names, shards.weights());
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = shards.device() {
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
        let parts = Parts { shards, names, config: &config, precision, shapes, adapter, bytes: Cell::new(0) };
        let embedding = parts.tensor(&embedding_name)?;
        let device = embedding.device().clone();
        let rows: Vec<_> = even_ranges(config.vocabulary, comm.size()).collect();
        let logits = if !config.tied {
            parts.matrix(names.logits())?
        } else if !parts.is_quantized(&embedding_name)? {
            Matrix::dense(embedding.clone())
        } else {
            parts.matrix(&embedding_name)?
        };
        let mut kinds = Vec::new();
        let kind_of = |layer: &Layer| (layer.attention.rotary.clone(), layer.attention.window);
        let mut layers = Vec::new();
        for (number, layer) in config.layers.iter().enumerate() {
            let kind = kind_of(layer);
            let place = kinds.iter().position(|known| *known == kind).unwrap_or(kinds.len());
            if place == kinds.len() {
                kinds.push(kind);
            }
            let heads = HeadPlan::new(layer.attention.heads, layer.attention.kv_heads, comm.size())?;
            layers.push(Block::load(&parts, place, &heads, number, &comm)?);
        }
        let dtype = precision.dtype();
        let kinds = kinds.into_iter().map(|(rotary, window)| {
            let rope = rotary.map(|rotary| {
                let divisors = rotary.scaling.tensors().iter().map(|name| parts.tensor(name));
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

    /// Processes a batch of prompts. Returns their cache, and the hidden states of their last tokens,
    /// `[sequences, dim]`.
    ///
    /// # Errors
    /// There is no prompt, a prompt is empty or too long, or has a token outside of the vocabulary; a collective fails.
    pub fn prompt(&self, prompts: &[Vec<u32>]) -> Result<(Cache, Tensor), ModelError> {
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        if prompts.iter().any(Vec::is_empty) || longest == 0 {
            return Err(ModelError::Call(
                "a batch needs at least one prompt, and each prompt at least one token".into(),
            ));
        }
        self.check_room(longest)?;
        let starts: Vec<usize> = prompts.iter().map(|prompt| longest - prompt.len()).collect();
        let padded = prompts
            .iter()
            .zip(&starts)
            .flat_map(|(prompt, start)| vec![0; *start].into_iter().chain(prompt.iter().copied()));
        let tokens = Tensor::from_iter(padded, &self.device)?.reshape((prompts.len(), longest))?;
        let mut cache = Cache::new(starts, self.layers.len());
        let last = self.fill(&mut cache, &tokens, longest)?;
        Ok((cache, last))
    }

    /// Processes the tokens `[sequences, count]` of an empty cache, of sequences that will fill `slots` slots. Returns the
    /// hidden states of the last ones.
    fn fill(&self, cache: &mut Cache, tokens: &Tensor, slots: usize) -> Result<Tensor, ModelError> {
        let (_, count) = tokens.dims2()?;
        let lengths = cache.lengths(slots);
        if self.ropes().any(|rope| rope.may_restart(&lengths)) {
            cache.history.push(tokens.clone());
        }
        let mut last = None;
        for from in (0..count).step_by(CHUNK) {
            let chunk = tokens.narrow(1, from, CHUNK.min(count - from))?;
            last = Some(self.prefill(cache, &chunk, &lengths)?);
        }
        last.ok_or_else(|| ModelError::Call("no prompt".into()))
    }

    /// Processes one more token of each sequence, u32 `[sequences]` on the model's device. Returns its hidden states,
    /// `[sequences, dim]`. The host waits for nothing.
    ///
    /// # Errors
    /// The number of tokens is not the number of sequences, a sequence fills the context, or a collective fails.
    pub fn step(&self, cache: &mut Cache, tokens: &Tensor) -> Result<Tensor, ModelError> {
        self.check_room(cache.longest() + 1)?;
        self.prepare_step(cache)?;
        let step = self.compute_step(cache, tokens, cache.used + 1);
        cache.finish_step(step)
    }

    /// Makes room for a step. Returns whether the host does for it what it did for the last one, in the same memory.
    ///
    /// Where the next token makes a sequence a long one, which is rotated in another way, the cache is computed again.
    pub(crate) fn prepare_step(&self, cache: &mut Cache) -> Result<bool, ModelError> {
        // Without a history, it has been computed again before a step that failed.
        if !cache.history.is_empty() && self.ropes().any(|rope| rope.restarts(&cache.lengths(cache.used))) {
            let tokens = Tensor::cat(&cache.history, 1)?;
            let mut new = Cache::new(cache.starts.clone(), self.layers.len());
            self.fill(&mut new, &tokens, cache.used + 1)?;
            *cache = new;
        }
        let is_same = cache.make_room(self.dtype, &self.device)?;
        let lengths = cache.lengths(cache.used + 1);
        Ok(is_same && !self.ropes().any(|rope| rope.changes(&lengths)))
    }

    /// A step, whose tokens attend to the first `width` slots. All that it reads and writes is on the device: with the
    /// same `width` and memory, the host does the same for each token.
    pub(crate) fn compute_step(&self, cache: &mut Cache, tokens: &Tensor, width: usize) -> Result<Tensor, ModelError> {
        let sequences = cache.sequences();
        if tokens.dims() != [sequences] {
            let text = format!("a step got tokens {:?} for a cache of {sequences} sequences", tokens.shape());
            return Err(ModelError::Call(text));
        }
        let lengths = cache.lengths(cache.used + 1);
        let cursor = cache.cursor()?;
        let mask = cursor.open(width)?;
        // A token attends to all slots, unless prompts have padding, or slots are not used yet.
        let is_open = width == cache.used + 1 && cache.starts.iter().all(|start| *start == 0);
        let kinds = self.kinds.iter().map(|(rope, window)| {
            let mask = match window.filter(|window| *window < width) {
                Some(window) => Some(cursor.windowed(&mask, window)?),
                None => (!is_open).then(|| mask.clone()),
            };
            let rotation = rope.as_ref().map(|rope| rope.rotation_at(&cursor.positions, &lengths)).transpose()?;
            Ok(View { rotation, mask, window: *window })
        });
        let views = self.views(kinds, || cursor.positions.unsqueeze(1))?;
        let shape = self.layers.first().map_or([sequences, 0, 1, 0], |block| block.attention.shape(sequences));
        let slots = Slots::At { index: cursor.index(&shape)?, width };
        cursor.advance()?;
        let hidden = self.forward(cache, &tokens.unsqueeze(1)?, &views, &slots)?;
        if self.ropes().any(|rope| rope.may_restart(&lengths)) {
            // A copy: the tokens of the next step may have the same memory.
            cache.history.push(tokens.unsqueeze(1)?.copy()?);
        }
        Ok(hidden)
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

    /// Processes tokens `[sequences, count]` of prompts, from the first free slot on. The sequences have `lengths` tokens in all.
    fn prefill(&self, cache: &mut Cache, tokens: &Tensor, lengths: &[usize]) -> Result<Tensor, ModelError> {
        let (_, count) = tokens.dims2()?;
        let slots = cache.used + count;
        let (starts, used) = (&cache.starts, cache.used);
        let kinds = self.kinds.iter().map(|(rope, window)| {
            let mask = mask(starts, used, count, *window, (self.dtype, &self.device))?;
            let rotation = rope.as_ref().map(|rope| rope.rotation(starts, used, count, lengths)).transpose()?;
            Ok(View { rotation, mask, window: *window })
        });
        let views = self.views(kinds, || {
            let of = |start: &usize| {
                let start = *start;
                (used..slots).map(move |slot| slot.saturating_sub(start) as i64)
            };
            Tensor::from_iter(starts.iter().flat_map(of), &self.device)?.reshape((starts.len(), count))
        })?;
        let hidden = self.forward(cache, tokens, &views, &Slots::From(used))?;
        cache.fill(slots);
        Ok(hidden)
    }

    /// What tokens have in common: a view for each kind of layers, and the embeddings of `positions`, i64 `[.., tokens]`.
    pub(crate) fn views(
        &self,
        kinds: impl Iterator<Item = candle_core::Result<View>>,
        positions: impl FnOnce() -> candle_core::Result<Tensor>,
    ) -> candle_core::Result<Views> {
        let embedded = self.positions.as_ref().map(|(table, first)| {
            let rows = (positions()? + *first as f64)?;
            let shape = [rows.dims(), &[self.config.dim]].concat();
            table.index_select(&rows.flatten_all()?, 0)?.reshape(shape)
        });
        Ok(Views { kinds: kinds.collect::<candle_core::Result<_>>()?, positions: embedded.transpose()? })
    }

    /// The kinds of layers: rotary embeddings and window.
    pub(crate) fn kinds(&self) -> &[(Option<Rope>, Option<usize>)] {
        &self.kinds
    }

    fn ropes(&self) -> impl Iterator<Item = &Rope> {
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

    /// Processes tokens `[sequences, count]`. Returns the hidden states of the last ones.
    fn forward(&self, cache: &mut Cache, tokens: &Tensor, views: &Views, slots: &Slots) -> Result<Tensor, ModelError> {
        let memories = cache.layers.iter_mut().map(|layer| Slotted { layer, slots });
        let x = self.compute(tokens, views, memories)?;
        let (_, count) = tokens.dims2()?;
        let last = x.narrow(1, count - 1, 1)?.squeeze(1)?.contiguous()?;
        Ok(self.norm.forward(&last)?)
    }

    /// Processes tokens `[sequences, count]` with the memory of each layer. Returns `[sequences, count, dim]`, before the
    /// last norm.
    pub(crate) fn compute(
        &self,
        tokens: &Tensor,
        views: &Views,
        memories: impl Iterator<Item = impl Memory>,
    ) -> Result<Tensor, ModelError> {
        let mut x = scaled(self.embedding.forward(tokens)?, self.config.embedding_factor)?;
        if let Some(positions) = &views.positions {
            x = x.broadcast_add(positions)?;
        }
        for (block, memory) in self.layers.iter().zip(memories) {
            x = block.forward(x, self.config.residual_factor, views, memory)?;
        }
        Ok(x)
    }

    /// The hidden states that [`logits`](Self::logits) takes.
    pub(crate) fn last_norm(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.norm.forward(x)
    }

    /// The shape of keys and values of one token on this rank, in each layer: kv heads, and elements of a head.
    pub(crate) fn kv_shape(&self) -> [usize; 2] {
        self.layers.first().map_or([0, 0], |block| {
            let [_, heads, _, width] = block.attention.shape(1);
            [heads, width]
        })
    }

    /// The query heads of each kv head on this rank, in each layer.
    pub(crate) fn groups(&self) -> &[Range<usize>] {
        self.layers.first().map_or(&[], |block| block.attention.groups())
    }
}

fn normed(norm: &Option<Norm>, x: Tensor) -> candle_core::Result<Tensor> {
    norm.iter().try_fold(x, |x, norm| norm.forward(&x))
}

fn scaled(x: Tensor, factor: f64) -> candle_core::Result<Tensor> {
    if factor == 1.0 { Ok(x) } else { x * factor }
}
