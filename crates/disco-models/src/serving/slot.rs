//! The state of one sequence on a worker, and the choice of its tokens.

use std::collections::{HashMap, HashSet};

use candle_core::Tensor;

use super::digests::digest;
use super::plan::{Chosen, Mask, Params, Sampled, Start};
use crate::sampler::largest;

/// A sequence.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) params: Params,
    /// Number of tokens of the prompt.
    pub(super) prompt_len: usize,
    /// Number of tokens that were known when the first one was computed.
    pub(super) known: usize,
    pub(super) table: Vec<u32>,
    /// Number of tokens whose keys and values are in the blocks.
    pub(super) len: usize,
    /// The token that was chosen last.
    pub(super) last: u32,
    /// The hidden state of the last token, `[1, dim]`, of which a token is to be chosen.
    pub(super) held: Option<Tensor>,
    /// The tokens of which the next one is chosen.
    pub(super) mask: Option<Mask>,
    /// Tokens of the prompt, and those of the text with their numbers; kept if penalties need them.
    prompt: HashSet<u32>,
    text: HashMap<u32, u32>,
}

impl Slot {
    pub(super) fn new(start: Start, first: usize) -> Self {
        let (params, prompt_len, known) = (start.params, start.prompt as usize, start.known as usize);
        let (prompt, text) = (HashSet::new(), HashMap::new());
        let (table, held, mask) = (Vec::new(), None, None);
        let mut slot = Self { params, prompt_len, known, table, len: first, last: 0, held, mask, prompt, text };
        slot.see(&start.cached, 0);
        slot
    }

    /// Whether only the most probable token matters.
    pub(super) fn is_plain(&self) -> bool {
        let params = &self.params;
        let forbids = params.min_tokens > 0 && !params.ends.is_empty();
        params.sampler.is_greedy()
            && self.mask.is_none()
            && params.logprobs.is_none()
            && !params.digests_logits
            && params.bias.is_empty()
            && !forbids
            && !params.has_penalties()
    }

    /// Notes tokens from position `first` on.
    pub(super) fn see(&mut self, tokens: &[u32], first: usize) {
        if !self.params.has_penalties() {
            return;
        }
        for (position, token) in (first..).zip(tokens) {
            if position < self.prompt_len {
                self.prompt.insert(*token);
            } else {
                *self.text.entry(*token).or_default() += 1;
            }
        }
    }

    /// Chooses the token behind those so far. `logits` are those of all tokens, and are changed.
    pub(super) fn choose(&mut self, logits: &mut [f32]) -> Sampled {
        if logits.iter().any(|logit| !logit.is_finite()) {
            return Sampled::NotFinite;
        }
        let raw = self.params.logprobs.map(|count| Logprobs::new(logits, count as usize));
        let digest = if self.params.digests_logits { digest(logits) } else { 0 };
        let mask = self.mask.take();
        self.adjust(logits, mask.as_ref());
        let id = self.params.sampler.choose(logits, self.params.choice as usize, self.len);
        let chosen = raw.map_or_else(|| Chosen::new(id), |raw| raw.of(id));
        Sampled::Token(Chosen { digest, ..chosen })
    }

    /// Bias, penalties, ends that come too early, and the mask, in the order of vLLM. An end that is all that the mask has does not
    /// come too early.
    fn adjust(&self, logits: &mut [f32], mask: Option<&Mask>) {
        let params = &self.params;
        let penalised: HashSet<u32> = self.prompt.iter().chain(self.text.keys()).copied().collect();
        for (token, bias) in &params.bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        let has_others = mask.is_none_or(|mask| mask.has_beside(&params.ends));
        if has_others && self.len < self.prompt_len + params.min_tokens as usize {
            for end in &params.ends {
                if let Some(logit) = logits.get_mut(*end as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        let factor = params.repetition_penalty as f32;
        for token in penalised {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = if *logit > 0.0 { *logit / factor } else { *logit * factor };
            }
        }
        for (token, count) in &self.text {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit -= (params.frequency_penalty * f64::from(*count) + params.presence_penalty) as f32;
            }
        }
        if let Some(mask) = mask {
            for (_, logit) in (0..).zip(logits).filter(|(token, _)| !mask.has(*token)) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

/// Logarithms of probabilities.
pub(super) struct Logprobs {
    /// The logarithm of the sum of all exponentials, which makes a logit a logprob.
    total: f64,
    logits: Vec<f32>,
    top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Those of the softmax of `logits`, and the `count` largest.
    pub(super) fn new(logits: &[f32], count: usize) -> Self {
        let highest = largest(logits).map_or(0.0, |best| f64::from(logits[best]));
        let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - highest).exp()).sum();
        let total = highest + sum.ln();
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if count < order.len() {
            order.select_nth_unstable_by(count, by_logit);
            order.truncate(count);
        }
        order.sort_unstable_by(by_logit);
        let top = order.iter().map(|token| (*token, (f64::from(logits[*token as usize]) - total) as f32));
        Self { total, top: top.collect(), logits: logits.to_vec() }
    }

    /// A token with its logprob and the largest ones.
    pub(super) fn of(self, id: u32) -> Chosen {
        let logprob = self.logits.get(id as usize).map_or(f32::NAN, |logit| (f64::from(*logit) - self.total) as f32);
        Chosen { logprob, top: self.top, ..Chosen::new(id) }
    }
}
