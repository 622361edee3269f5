//! The plan of a step, and its reply.

use serde::{Deserialize, Serialize};

use crate::Sampler;

/// A step: the next tokens of some sequences. All workers get the same one.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// Number of the step, which the reply repeats.
    pub step: u64,
    /// The sequences, each at most once.
    pub rows: Vec<Row>,
}

/// The next tokens of one sequence.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// The place of the sequence on the workers.
    pub slot: u32,
    /// For a new sequence, whose slot forgets the last one.
    pub starts: Option<Box<Start>>,
    /// Position of the first token.
    pub first: u32,
    /// The tokens.
    pub tokens: Tokens,
    /// New blocks of the sequence, behind its earlier ones.
    pub blocks: Vec<u32>,
    /// Whether a token is chosen after them.
    pub samples: bool,
    /// Whether the hidden state of the last one is kept, of which a [later row](Tokens::Held) chooses a token.
    pub holds: bool,
    /// The tokens of which one is chosen; `None`: of all.
    pub mask: Option<Mask>,
    /// The token of the prompt behind these ones, if its logprob is wanted.
    pub next: Option<u32>,
    /// The number of the kept state with which a new sequence of a [recurrent](crate::Config::is_recurrent) model begins: it needs
    /// one behind position 0. As many states can be kept as there are slots, with the numbers behind those of slots.
    pub resumes: Option<u32>,
    /// A number of tokens of the row, behind which the state is kept, and the number that it is kept with.
    pub keeps: Option<(u32, u32)>,
    /// So many of the last tokens are guesses, of a row that samples: a token is chosen behind the one before them, and behind each guess as long as the guesses
    /// were right. Models that are recurrent can't have any.
    pub drafted: u32,
}

/// The tokens of a row.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub enum Tokens {
    /// These ones.
    Given(Vec<u32>),
    /// The token that was chosen last, which the controller need not know yet.
    Last,
    /// None: a token is chosen of the hidden state that the sequence's last row has kept.
    Held,
}

/// A set of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Mask(Vec<u8>);

impl Mask {
    /// The tokens whose bits are set: that of token 0 is the lowest one of the first byte.
    pub fn of_bits(bits: Vec<u8>) -> Self {
        Self(bits)
    }

    /// Whether it has a token.
    pub fn has(&self, token: u32) -> bool {
        self.0.get(token as usize / 8).is_some_and(|byte| byte >> (token % 8) & 1 == 1)
    }

    /// Whether it has tokens beside `others`, each of them listed once.
    pub(super) fn has_beside(&self, others: &[u32]) -> bool {
        let shared = others.iter().filter(|token| self.has(**token)).count();
        self.0.iter().map(|byte| byte.count_ones() as usize).sum::<usize>() > shared
    }
}

/// The begin of a sequence.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Start {
    /// How its tokens are chosen.
    pub params: Params,
    /// Number of tokens of the prompt; those behind are the text.
    pub prompt: u32,
    /// Number of tokens that are known when the first one is computed: the prompt, or more in a model that
    /// [restarts](crate::Config::restarts).
    pub known: u32,
    /// The first tokens of the sequence, whose keys and values are in its blocks already. Only penalties need them.
    pub cached: Vec<u32>,
}

/// The choice of a sequence's tokens, and the logprobs of the reply.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Params {
    /// How tokens are chosen.
    pub sampler: Sampler,
    /// Number of the sequence among those with the same seed.
    pub choice: u32,
    /// Subtracted from the logits of tokens that the text has.
    pub presence_penalty: f64,
    /// Subtracted from the logits of a token for each time that the text has it.
    pub frequency_penalty: f64,
    /// Divides positive logits, and multiplies negative ones, of tokens that prompt or text have; 1 changes nothing.
    pub repetition_penalty: f64,
    /// Added to logits, by token.
    pub bias: Vec<(u32, f32)>,
    /// Tokens that are not chosen before the text has `min_tokens`.
    pub ends: Vec<u32>,
    /// As `ends` says.
    pub min_tokens: u32,
    /// Tell the logprobs of each chosen token and of so many of the most probable ones.
    pub logprobs: Option<u32>,
    /// The same for the tokens of the prompt.
    pub prompt_logprobs: Option<u32>,
    /// Tell the [digest](super::Digests::digests) of the logits of each token.
    pub digests_logits: bool,
}

impl Start {
    /// A sequence whose prompt has so many tokens, and no blocks yet.
    pub fn new(params: Params, prompt: usize) -> Self {
        Self { params, prompt: prompt as u32, known: prompt as u32, cached: Vec::new() }
    }
}

impl Params {
    /// Parameters without penalties, biases and logprobs.
    pub fn new(sampler: Sampler) -> Self {
        Self {
            sampler,
            choice: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            bias: Vec::new(),
            ends: Vec::new(),
            min_tokens: 0,
            logprobs: None,
            prompt_logprobs: None,
            digests_logits: false,
        }
    }

    /// Whether earlier tokens change the logits.
    pub fn has_penalties(&self) -> bool {
        (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)
    }
}

impl Row {
    /// The next tokens of a sequence that goes on.
    pub fn new(slot: u32, first: u32, tokens: Tokens) -> Self {
        Self {
            slot,
            starts: None,
            first,
            tokens,
            blocks: Vec::new(),
            samples: false,
            holds: false,
            mask: None,
            next: None,
            resumes: None,
            keeps: None,
            drafted: 0,
        }
    }
}

impl Plan {
    /// A step without rows.
    pub fn new(step: u64) -> Self {
        Self { step, rows: Vec::new() }
    }

    /// The argument of `disco.models.step`.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        postcard::to_allocvec(self).map_err(|error| format!("the plan of a step: {error}"))
    }

    /// # Errors
    /// The bytes are no plan.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        postcard::from_bytes(bytes).map_err(|error| format!("the plan of a step: {error}"))
    }
}

/// What rank 0 says of a step.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Reply {
    /// Number of the step.
    pub step: u64,
    /// One for each row of the plan, in its order.
    pub rows: Vec<Replied>,
}

/// What rank 0 says of a row.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Replied {
    /// The guesses that were right, as they were chosen.
    pub accepted: Vec<Chosen>,
    /// The chosen token, if the row samples: that behind the guesses that were right.
    pub sampled: Option<Sampled>,
    /// The tokens of the prompt behind those of the row, the first one the second of the row.
    pub prompt: Vec<Chosen>,
}

/// The choice of a token.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub enum Sampled {
    /// This one.
    Token(Chosen),
    /// A logit is NaN or infinite.
    NotFinite,
}

/// A token, and the logarithms of probabilities before temperature and penalties.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Chosen {
    /// Its number in the vocabulary.
    pub id: u32,
    /// The logarithm of its probability; NaN if that is not wanted.
    pub logprob: f32,
    /// The most probable tokens and their logprobs, the most probable first.
    pub top: Vec<(u32, f32)>,
    /// The digest of its logits, if that [is wanted](Params::digests_logits).
    pub digest: u64,
}

impl Chosen {
    /// A token of which nothing else is wanted.
    pub(super) fn new(id: u32) -> Self {
        Self { id, logprob: f32::NAN, top: Vec::new(), digest: 0 }
    }
}

impl Reply {
    /// # Errors
    /// The bytes are no reply.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        postcard::from_bytes(bytes).map_err(|error| format!("the reply of a step: {error}"))
    }
}
