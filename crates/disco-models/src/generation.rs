//! Texts that grow token by token.

use std::sync::Arc;

#[cfg(feature = "cuda")]
use candle_core::{CudaDevice, Device};
use candle_core::{DType, Tensor};
#[cfg(feature = "cuda")]
use disco_candle::cuda;
use disco_candle::{Argmax, not_finite};
use disco_candle::{Reader, Reading};
use disco_core::Queue;

use crate::{Cache, ModelError, Sampler, Transformer};

/// A batch of texts under way: their cache, and the choice of their tokens. Every rank calls [`Generation::next`] with equal
/// arguments, and gets the same tokens.
///
/// Tokens stay on the device. With the [greedy](Sampler::is_greedy) sampler on a device other than the host, the next step
/// is enqueued before the host waits for the tokens of the last one, so the device computes without a pause; one small copy
/// to the host is all that the host waits for. Other samplers choose on the host, from one copy of the logits.
///
/// On a CUDA device of [`device`](disco_candle::device()), a step with the greedy sampler is captured once, with its
/// collectives, and replayed as a graph, so that a token costs one small copy to the device and one launch, until the cache gets
/// larger memory; not with
/// [`Comm::measure_waits`](disco_candle::Comm::measure_waits), whose barriers a graph can't have.
#[derive(Debug)]
pub struct Generation {
    cache: Cache,
    sampler: Sampler,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only CUDA has graphs"))]
    uses_graphs: bool,
    /// The hidden states of the last tokens of the prompts, before the first choice.
    hidden: Option<Tensor>,
    chosen: Chosen,
    reader: Reader,
    /// The copy of the next tokens, which the device computes while the program handles the current ones.
    ahead: Option<Reading>,
    /// The model with the ranks that began the texts.
    ranks: Arc<()>,
    /// Whether a token could not be computed.
    has_failed: bool,
    #[cfg(feature = "cuda")]
    graph: Option<cuda::Captured>,
}

/// The last choice, in memory that stays the same.
#[derive(Debug)]
struct Chosen {
    /// The last token of each sequence, u32 `[sequences]`.
    tokens: Tensor,
    /// The values of an [`Argmax`].
    values: Tensor,
}

impl Transformer {
    /// Begins texts: processes a batch of prompts.
    ///
    /// # Errors
    /// As [`Transformer::prompt`].
    pub fn generate(&self, prompts: &[Vec<u32>], sampler: Sampler) -> Result<Generation, ModelError> {
        let (cache, hidden) = self.prompt(prompts)?;
        let chosen = Chosen {
            tokens: Tensor::zeros(prompts.len(), DType::U32, self.device())?,
            values: Tensor::zeros((2, prompts.len()), DType::F64, self.device())?,
        };
        Ok(Generation {
            cache,
            sampler,
            uses_graphs: true,
            hidden: Some(hidden),
            chosen,
            reader: Reader::default(),
            ahead: None,
            ranks: self.ranks(),
            has_failed: false,
            #[cfg(feature = "cuda")]
            graph: None,
        })
    }
}

impl Generation {
    /// The texts without graphs.
    #[must_use]
    pub fn without_graphs(self) -> Self {
        Self { uses_graphs: false, ..self }
    }

    /// The keys and values so far.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The next token of each sequence; none for a sequence whose last token did not fit in the context. `queue` is that of
    /// the worker.
    ///
    /// # Errors
    /// A logit is NaN or infinite, all sequences have used the context up, or a collective fails. After an error, and after a
    /// [`rejoin`](Transformer::rejoin) of the model, the texts can't go on.
    pub fn next(&mut self, model: &Transformer, queue: &mut dyn Queue) -> Result<Vec<Option<u32>>, ModelError> {
        if !Arc::ptr_eq(&self.ranks, &model.ranks()) {
            let text = "the texts were begun by another model, or before other ranks took part; begin them again";
            return Err(ModelError::Call(text.into()));
        }
        if self.has_failed {
            return Err(ModelError::Call("a token could not be computed before; begin the texts again".into()));
        }
        let tokens = self.compute_next(model, queue);
        self.has_failed = tokens.is_err();
        tokens
    }

    fn compute_next(&mut self, model: &Transformer, queue: &mut dyn Queue) -> Result<Vec<Option<u32>>, ModelError> {
        let current = match self.ahead.take() {
            Some(current) => current,
            None => self.enqueue(model, queue)?,
        };
        let context = model.config().context;
        let lengths = self.cache.lengths().to_vec();
        let tokens = if self.sampler.is_greedy() {
            if !model.device().is_cpu() && self.shortest() < context {
                self.ahead = Some(self.enqueue(model, queue)?);
            }
            Argmax::checked(&self.reader.finish::<f64>(current, model.comm(), queue)?)?
        } else {
            let logits = self.reader.finish(current, model.comm(), queue)?;
            self.choose(model, &logits)?
        };
        let tokens = tokens.into_iter().zip(lengths);
        Ok(tokens.map(|(token, length)| (length <= context).then_some(token)).collect())
    }

    /// Enqueues the next choice, and the copy of what the host needs: the tokens, or the logits to choose from.
    fn enqueue(&mut self, model: &Transformer, queue: &mut dyn Queue) -> Result<Reading, ModelError> {
        let hidden = self.hidden.take();
        if self.sampler.is_greedy() {
            match hidden {
                Some(hidden) => self.chosen.take_best(model, &hidden)?,
                None => self.greedy_step(model, queue)?,
            }
            return Ok(self.reader.begin::<f64>(&self.chosen.values, model.comm(), queue)?);
        }
        let hidden = hidden.map_or_else(|| self.step(model), Ok)?;
        Ok(self.reader.begin::<f32>(&model.logits(&hidden)?.contiguous()?, model.comm(), queue)?)
    }

    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only graphs need the queue"))]
    fn greedy_step(&mut self, model: &Transformer, queue: &mut dyn Queue) -> Result<(), ModelError> {
        #[cfg(feature = "cuda")]
        if let (true, Device::Cuda(device)) = (self.uses_graphs, model.device())
            && !model.comm().measures_waits().map_err(disco_candle::to_candle)?
        {
            return self.replay(model, device, queue);
        }
        let hidden = self.step(model)?;
        self.chosen.take_best(model, &hidden)
    }

    /// Number of tokens of the shortest sequence so far.
    fn shortest(&self) -> usize {
        self.cache.lengths().iter().copied().min().unwrap_or(0)
    }

    /// Makes room for the last tokens, as [`Transformer::prepare_step`].
    ///
    /// # Errors
    /// No sequence has a place for its last token.
    fn prepare_step(&mut self, model: &Transformer) -> Result<bool, ModelError> {
        model.check_room(self.shortest() + 1)?;
        model.prepare_step(&mut self.cache)
    }

    /// Processes the last tokens. Returns their hidden states.
    fn step(&mut self, model: &Transformer) -> Result<Tensor, ModelError> {
        self.prepare_step(model)?;
        let places = model.places(&self.cache)?;
        let hidden = model.compute_step(&self.cache, &places, &self.chosen.tokens)?;
        model.note_step(&mut self.cache, &self.chosen.tokens)?;
        self.cache.count_step();
        Ok(hidden)
    }

    /// A step with its choice, as a graph. The first step in new memory runs without one: it loads kernels and fills candle's
    /// cache of the kernels' arguments, neither of which a capture can do.
    #[cfg(feature = "cuda")]
    #[allow(unsafe_code, reason = "a graph uses the memory of this value")]
    fn replay(&mut self, model: &Transformer, device: &CudaDevice, queue: &mut dyn Queue) -> Result<(), ModelError> {
        let is_same = self.prepare_step(model)?;
        let has_memory = model.fix_places(&mut self.cache)?;
        // Before the choice, which replaces the tokens. That, and the copy of the places to the device, are no part of the graph.
        model.note_step(&mut self.cache, &self.chosen.tokens)?;
        let places = model.places(&self.cache)?;
        let _arguments = device.enable_cuda_graph_htod_cache();
        let (cache, chosen) = (&self.cache, &self.chosen);
        let step = || {
            let hidden = model.compute_step(cache, &places, &chosen.tokens)?;
            chosen.take_best(model, &hidden)
        };
        match (&self.graph, is_same && has_memory) {
            (Some(graph), true) => graph.launch()?,
            (_, false) => {
                self.graph = None;
                step()?;
            }
            (None, true) => {
                // SAFETY: this value has the cache and the last choice as long as the graph, and launches it with the same
                // model only, which has the weights.
                let graph = unsafe { cuda::capture(model.comm(), queue, device, step) }?;
                self.graph.insert(graph).launch()?;
            }
        }
        drop(places);
        self.cache.count_step();
        Ok(())
    }

    /// Chooses from the logits of all sequences.
    fn choose(&mut self, model: &Transformer, logits: &[f32]) -> Result<Vec<u32>, ModelError> {
        if logits.iter().any(|logit| !logit.is_finite()) {
            return Err(not_finite().into());
        }
        let rows = logits.chunks_exact(logits.len() / self.cache.sequences());
        let choose = |(sequence, logits)| self.sampler.choose(logits, sequence, self.cache.len(sequence));
        let tokens: Vec<u32> = rows.enumerate().map(choose).collect();
        self.chosen.tokens = Tensor::new(&tokens[..], model.device())?;
        Ok(tokens)
    }
}

impl Chosen {
    /// The most probable tokens for hidden states.
    fn take_best(&self, model: &Transformer, hidden: &Tensor) -> Result<(), ModelError> {
        let best = model.most_probable(hidden)?;
        self.tokens.slice_set(&best.tokens()?, 0, 0)?;
        Ok(self.values.slice_set(best.values(), 0, 0)?)
    }
}
