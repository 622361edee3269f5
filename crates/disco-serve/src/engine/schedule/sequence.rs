//! A text that is being generated.

use std::sync::Arc;

use super::super::blocks::BLOCK_TOKENS;
use super::super::prefix::{Chain, Digest};
use super::super::request::Request;
use super::drafts::Drafts;
use super::step::Tokens;

/// What the scheduler needs of a request.
#[derive(Clone, Debug)]
pub struct Work {
    /// Tokens of the prompt, at least one.
    pub prompt: Arc<[u32]>,
    /// The most tokens to generate. 0 only evaluates the prompt.
    pub max_tokens: usize,
    /// Tokens that end the text.
    pub ends: Vec<u32>,
    /// An end does not count before the text has so many tokens, without the end itself.
    pub min_tokens: usize,
    /// Sequences with different salts share no blocks.
    pub salt: u64,
    /// Whether a token is chosen of some tokens only, which the text before decides: in a step of its own, once all of it is known.
    pub is_masked: bool,
    /// Whether blocks of earlier sequences may be used. Not if the client wants to know something of each token of the
    /// prompt.
    pub reads_cache: bool,
}

impl From<&Request> for Work {
    fn from(request: &Request) -> Self {
        Self {
            prompt: request.prompt.clone(),
            max_tokens: request.max_tokens,
            ends: request.params.ends.clone(),
            min_tokens: request.params.min_tokens as usize,
            salt: request.salt,
            is_masked: request.grammar.is_some(),
            reads_cache: request.params.prompt_logprobs.is_none(),
        }
    }
}

/// The tokens within which all texts are rotated alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstContext {
    /// Their number.
    pub tokens: usize,
    /// Whether a longer text is computed again from its begin. Otherwise its earlier tokens stay as they are, and those of a
    /// longer prompt depend on the length of the prompt.
    pub restarts: bool,
}

/// A sequence that has not ended.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Prompt and text so far.
    pub(super) tokens: Vec<u32>,
    pub(super) work: Work,
    pub(super) chain: Chain,
    /// The number of tokens that are known when the first one is computed.
    pub(super) known: usize,
    pub(super) incarnation: u32,
    pub(super) is_paused: bool,
    /// Where the rows of the last failure ended, until a later row has succeeded there.
    pub(super) failed_at: Option<usize>,
    /// It has failed again before it got past `failed_at`.
    pub(super) is_suspect: bool,
    /// Failures from outside, and where their rows ended, until a later row has succeeded there.
    pub(super) outside: (u32, usize),
    /// The most positions that were [computed](Resident::computed) so far.
    pub(super) reached: usize,
    /// `None`: it waits.
    pub(super) resident: Option<Resident>,
    /// What may follow.
    pub(super) drafts: Drafts,
}

/// What the workers have of a sequence, after all planned steps.
#[derive(Debug)]
pub(super) struct Resident {
    pub(super) slot: u32,
    /// Its blocks, in the order of its tokens.
    pub(super) table: Vec<u32>,
    /// Number of blocks whose digests are registered.
    pub(super) registered: usize,
    /// Number of positions that steps have been planned for.
    pub(super) planned: usize,
    /// Number of positions whose steps have been replied to: their keys and values are whole, and the hidden state of the last one is not
    /// needed any more.
    pub(super) computed: usize,
    /// Whether the slot has the sequence.
    pub(super) is_told: bool,
    /// Number of tokens that steps in flight choose.
    pub(super) pending: usize,
    /// Whether the last planned row keeps its hidden state, of which a token has yet to be chosen.
    pub(super) holds: bool,
    /// Whether a row with guesses is in flight.
    pub(super) is_drafted: bool,
    /// The states that steps in flight keep, with the numbers of tokens that they are behind.
    pub(super) keeping: Vec<(usize, u32)>,
    /// The kept state behind the text so far, by its digest. A later one replaces it.
    pub(super) kept: Option<Digest>,
}

impl Sequence {
    pub(super) fn new(work: Work, first: Option<FirstContext>) -> Self {
        let known = work.prompt.len();
        Self {
            tokens: work.prompt.to_vec(),
            chain: chain(&work, known, first),
            known,
            work,
            incarnation: 0,
            is_paused: false,
            failed_at: None,
            is_suspect: false,
            outside: (0, 0),
            reached: 0,
            resident: None,
            drafts: Drafts::default(),
        }
    }

    /// Whether it has outgrown the first context, and is computed again with its next token.
    pub(super) fn restarts(&self, first: Option<FirstContext>) -> bool {
        first.is_some_and(|first| first.restarts && (self.known..self.tokens.len()).contains(&first.tokens))
    }

    /// Whether it [restarts](Self::restarts) now, or with a token that only the workers know yet.
    pub(super) fn will_restart(&self, first: Option<FirstContext>) -> bool {
        let tokens = self.tokens.len() + self.resident.as_ref().map_or(0, |resident| resident.pending);
        first.is_some_and(|first| first.restarts && (self.known..tokens).contains(&first.tokens))
    }

    /// Begins the sequence anew, as a long one.
    pub(super) fn restart(&mut self, first: Option<FirstContext>) {
        self.known = self.tokens.len();
        self.chain = chain(&self.work, self.known, first);
    }

    /// Number of generated tokens.
    pub(super) fn generated(&self) -> usize {
        self.tokens.len() - self.work.prompt.len()
    }

    /// The digests of the blocks that it may share: at least the last token is computed, because it chooses the next one.
    pub(super) fn shareable(&mut self) -> &[Digest] {
        if !self.work.reads_cache {
            return &[];
        }
        self.chain.extend(&self.tokens);
        &self.chain.digests()[..(self.tokens.len() - 1) / BLOCK_TOKENS]
    }

    /// Number of positions that can be planned now.
    pub(super) fn left(&self) -> usize {
        match &self.resident {
            None => self.tokens.len(),
            Some(resident) if resident.holds || resident.is_drafted => 0,
            Some(resident) if resident.pending == 0 => self.tokens.len() - resident.planned,
            // The last token is on the workers. The one that reaches `max_tokens` need not be computed.
            Some(resident) => usize::from(self.generated() + resident.pending < self.work.max_tokens),
        }
    }

    /// Whether the next tokens are to be guessed. Not where a failure is looked into.
    pub(super) fn wants_draft(&self) -> bool {
        let can = !self.work.is_masked && !self.is_paused && self.failed_at.is_none() && self.resident.is_some();
        can && self.drafts.is_ready()
    }

    /// The most guesses behind the last token: each may be followed by a token, and all are rotated as that one.
    pub(super) fn most_guesses(&self, first: Option<FirstContext>) -> usize {
        let length = self.work.max_tokens.saturating_sub(self.generated() + 1);
        let first = first.filter(|first| first.restarts && self.known <= first.tokens);
        first.map_or(length, |first| length.min(first.tokens.saturating_sub(self.tokens.len())))
    }

    /// The next `count` tokens, of those that are left.
    pub(super) fn next(&self, count: usize) -> Tokens {
        match &self.resident {
            Some(resident) if resident.pending > 0 => Tokens::Continue,
            resident => {
                let start = resident.as_ref().map_or(0, |resident| resident.planned);
                Tokens::Given(self.tokens[start..start + count].to_vec())
            }
        }
    }
}

/// The digests of a sequence with so many known tokens: those of long ones that are rotated in another way are other ones.
fn chain(work: &Work, known: usize, first: Option<FirstContext>) -> Chain {
    match first.filter(|first| known > first.tokens) {
        None => Chain::new(work.salt, 0),
        Some(FirstContext { restarts: true, .. }) => Chain::new(work.salt, 1),
        Some(_) => Chain::new(work.salt, known),
    }
}
