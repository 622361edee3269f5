//! A batch of texts in blocks of their own: prompts, and steps of one token each.

use candle_core::{Result, Tensor};
use disco_candle::paged::{BLOCK, Run};

use crate::blocks::Places;
use crate::states::{RunState, Span};
use crate::{ModelError, Pool, Transformer};

/// Blocks of a new cache for each sequence, unless the prompts need more.
const FIRST_BLOCKS: usize = 4;

/// The most tokens of each sequence that are processed together, which bounds the memory of a prompt.
const CHUNK: usize = 512;

/// Keys and values of a batch of sequences for the kv heads of one rank.
///
/// They are in blocks of 16 tokens. The number of blocks doubles when all are used, up to what the context needs, so that a
/// text of n tokens copies less than n of them in total.
#[derive(Debug)]
pub struct Cache {
    pool: Pool,
    /// The number of blocks that sequences have, and that they can have at most.
    used: usize,
    most: usize,
    /// The number of tokens of each sequence so far.
    lengths: Vec<usize>,
    /// The next token of each sequence. One that fills the context stays at its last position, and its results are not used.
    next: Vec<Run>,
    /// The tokens so far of each sequence that may have to be computed again, in parts.
    histories: Vec<Option<Vec<Tensor>>>,
    /// The memory of the places of steps, if graphs read them.
    numbers: Option<Tensor>,
}

impl Cache {
    fn new(pool: Pool, sequences: usize, context: usize) -> Self {
        Self {
            pool,
            used: 0,
            most: sequences.saturating_mul(context.div_ceil(BLOCK)),
            lengths: vec![0; sequences],
            next: vec![Run::new(0, 1, Vec::new()); sequences],
            histories: vec![None; sequences],
            numbers: None,
        }
    }

    /// Number of sequences.
    pub fn sequences(&self) -> usize {
        self.lengths.len()
    }

    /// Number of tokens of a sequence so far.
    pub fn len(&self, sequence: usize) -> usize {
        self.lengths.get(sequence).copied().unwrap_or(0)
    }

    /// Number of tokens of each sequence so far.
    pub(crate) fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Whether no token has been processed.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Size in bytes of the memory for keys and values on this rank.
    pub fn bytes(&self) -> usize {
        self.pool.bytes()
    }

    /// Counts the tokens of a step.
    pub(crate) fn count_step(&mut self) {
        self.lengths.iter_mut().for_each(|length| *length += 1);
    }

    /// Gives a sequence the blocks of `tokens` tokens. Returns whether the memory stays the same.
    fn reserve(&mut self, sequence: usize, tokens: usize) -> Result<bool> {
        let table = &mut self.next[sequence].table;
        let missing = tokens.div_ceil(BLOCK).saturating_sub(table.len());
        table.extend((self.used..self.used + missing).map(|block| block as u32));
        self.used += missing;
        let stays = self.used <= self.pool.blocks();
        if !stays {
            self.pool.grow(self.used.max(self.most.min(2 * self.pool.blocks())))?;
            self.numbers = None;
        }
        Ok(stays)
    }
}

/// The tokens of a sequence from its begin on, u32 `[tokens]` on the model's device, and the number that it is known to get.
struct Text {
    sequence: usize,
    tokens: Tensor,
    length: usize,
}

impl Transformer {
    /// Processes a batch of prompts. Returns their cache, and the hidden states of their last tokens,
    /// `[sequences, dim]`.
    ///
    /// # Errors
    /// There is no prompt, a prompt is empty or too long, or has a token outside of the vocabulary; a collective fails.
    pub fn prompt(&self, prompts: &[Vec<u32>]) -> std::result::Result<(Cache, Tensor), ModelError> {
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        if prompts.iter().any(Vec::is_empty) || longest == 0 {
            return Err(ModelError::Call(
                "a batch needs at least one prompt, and each prompt at least one token".into(),
            ));
        }
        self.check_room(longest)?;
        let vocabulary = self.config().vocabulary;
        if let Some(token) = prompts.iter().flatten().find(|token| **token as usize >= vocabulary) {
            return Err(ModelError::Call(format!("token {token} of {vocabulary}")));
        }
        let blocks = prompts.iter().map(|prompt| prompt.len().div_ceil(BLOCK).max(FIRST_BLOCKS)).sum();
        let mut cache = Cache::new(self.pool(blocks)?, prompts.len(), self.config().context);
        let text = |(sequence, prompt): (usize, &Vec<u32>)| {
            Ok(Text { sequence, tokens: Tensor::new(&prompt[..], self.device())?, length: prompt.len() })
        };
        let texts = prompts.iter().enumerate().map(text).collect::<Result<Vec<_>>>()?;
        for text in &texts {
            if self.ropes().any(|rope| rope.may_restart(text.length)) {
                cache.histories[text.sequence] = Some(vec![text.tokens.clone()]);
            }
        }
        let hidden = self.fill(&mut cache, &texts)?;
        cache.lengths = texts.iter().map(|text| text.length).collect();
        Ok((cache, hidden))
    }

    /// Processes texts from their first tokens on. Returns the hidden states of the last ones, `[texts, dim]`.
    fn fill(&self, cache: &mut Cache, texts: &[Text]) -> std::result::Result<Tensor, ModelError> {
        let counts = texts.iter().map(|text| text.tokens.dim(0)).collect::<Result<Vec<_>>>()?;
        for (text, count) in texts.iter().zip(&counts) {
            cache.reserve(text.sequence, *count)?;
        }
        let mut hidden = vec![None; texts.len()];
        for from in (0..counts.iter().copied().max().unwrap_or(0)).step_by(CHUNK) {
            let (mut tokens, mut runs, mut spans) = (Vec::new(), Vec::new(), Vec::new());
            // The last tokens of texts: the number of the text, and the place among all tokens.
            let (mut ended, mut last, mut place) = (Vec::new(), Vec::new(), 0);
            for (number, (text, all)) in texts.iter().zip(&counts).enumerate().filter(|(_, (_, all))| **all > from) {
                let count = CHUNK.min(all - from);
                tokens.push(text.tokens.narrow(0, from, count)?);
                runs.push(Run::new(from, count, cache.next[text.sequence].table.clone()));
                let state = RunState::new(text.sequence as u32);
                spans.push(Span { first: from, count, length: text.length, state });
                place += count;
                if from + count == *all {
                    ended.push(number);
                    last.push(place as u32 - 1);
                }
            }
            let places = Places::new(&runs, self.heads(), None, self.device())?;
            let x = self.pass(&cache.pool, &Tensor::cat(&tokens, 0)?, &places, &spans)?;
            if !last.is_empty() {
                let states = self.last_norm(&x.index_select(&Tensor::new(last, self.device())?, 0)?)?;
                for (row, number) in ended.into_iter().enumerate() {
                    hidden[number] = Some(states.narrow(0, row, 1)?);
                }
            }
        }
        let hidden: Vec<_> = hidden.into_iter().flatten().collect();
        Ok(Tensor::cat(&hidden, 0)?)
    }

    /// Processes one more token of each sequence, u32 `[sequences]` on the model's device. Returns its hidden states,
    /// `[sequences, dim]`. The host waits for nothing.
    ///
    /// # Errors
    /// The number of tokens is not the number of sequences, a sequence fills the context, or a collective fails.
    pub fn step(&self, cache: &mut Cache, tokens: &Tensor) -> std::result::Result<Tensor, ModelError> {
        self.check_room(cache.lengths.iter().copied().max().unwrap_or(0) + 1)?;
        self.prepare_step(cache)?;
        let hidden = self.compute_step(cache, &self.places(cache)?, tokens)?;
        self.note_step(cache, tokens)?;
        cache.count_step();
        Ok(hidden)
    }

    /// Makes room for a step. Returns whether the step needs the same work of the host as the last one, in the same memory.
    ///
    /// Where the next token makes a sequence a long one, which is rotated in another way, it is computed again.
    pub(crate) fn prepare_step(&self, cache: &mut Cache) -> std::result::Result<bool, ModelError> {
        let mut texts = Vec::new();
        for (sequence, history) in cache.histories.iter().enumerate() {
            let length = cache.lengths[sequence];
            if self.ropes().any(|rope| rope.restarts(length))
                && let Some(parts) = history
            {
                texts.push(Text { sequence, tokens: Tensor::cat(parts, 0)?, length: length + 1 });
            }
        }
        if !texts.is_empty() {
            self.fill(cache, &texts)?;
        }
        // Without a history, a text is a long one, also after a step that failed.
        texts.iter().for_each(|text| cache.histories[text.sequence] = None);
        let (last, mut stays) = (self.config().context - 1, texts.is_empty());
        for sequence in 0..cache.sequences() {
            let first = cache.lengths[sequence].min(last);
            cache.next[sequence].first = first;
            stays &= cache.reserve(sequence, first + 1)?;
        }
        let changes = cache.next.iter().any(|run| self.ropes().any(|rope| rope.changes(run.first + 1)));
        Ok(stays && !changes)
    }

    /// Gives steps memory for their places that stays the same until the cache gets larger memory. Returns whether it was
    /// there.
    #[cfg(feature = "cuda")]
    pub(crate) fn fix_places(&self, cache: &mut Cache) -> Result<bool> {
        let was_there = cache.numbers.is_some();
        if !was_there {
            let count = Places::numbers(cache.sequences(), self.heads(), cache.pool.blocks());
            cache.numbers = Some(Tensor::zeros(count, candle_core::DType::U32, self.device())?);
        }
        Ok(was_there)
    }

    /// The places of a step, after [`Transformer::prepare_step`].
    pub(crate) fn places<'a>(&'a self, cache: &'a Cache) -> Result<Places<'a>> {
        let memory = cache.numbers.as_ref().map(|numbers| (numbers, cache.pool.blocks()));
        Places::new(&cache.next, self.heads(), memory, self.device())
    }

    /// A step at the places of its tokens. All that it reads and writes is on the device.
    pub(crate) fn compute_step(
        &self,
        cache: &Cache,
        places: &Places<'_>,
        tokens: &Tensor,
    ) -> std::result::Result<Tensor, ModelError> {
        let sequences = cache.sequences();
        if tokens.dims() != [sequences] {
            let text = format!("a step got tokens {:?} for a cache of {sequences} sequences", tokens.shape());
            return Err(ModelError::Call(text));
        }
        let span = |(run, number): (&Run, u32)| Span {
            first: run.first,
            count: 1,
            length: run.first + 1,
            state: RunState::new(number),
        };
        let spans: Vec<_> = cache.next.iter().zip(0..).map(span).collect();
        self.last_norm(&self.pass(&cache.pool, tokens, places, &spans)?)
    }

    /// Keeps the tokens of a step that may have to be computed again.
    pub(crate) fn note_step(&self, cache: &mut Cache, tokens: &Tensor) -> Result<()> {
        for (sequence, history) in cache.histories.iter_mut().enumerate() {
            if !self.ropes().any(|rope| rope.may_restart(cache.lengths[sequence] + 1)) {
                *history = None;
            } else if let Some(parts) = history {
                // A copy: the tokens of the next step may have the same memory.
                parts.push(tokens.narrow(0, sequence, 1)?.copy()?);
            }
        }
        Ok(())
    }
}
