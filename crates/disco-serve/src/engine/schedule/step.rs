//! What a step computes.

use std::fmt;

/// Names a sequence; a later one has a greater number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}", self.0)
    }
}

/// One pass of the model over new tokens of several sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Counts up by one from step to step.
    pub number: u64,
    /// At least one row; at most one for each slot.
    pub rows: Vec<Row>,
}

/// New tokens of one sequence, at positions that follow those of its row before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The sequence.
    pub id: SequenceId,
    /// How often the sequence had lost its blocks before. A row of an earlier incarnation than the sequence's is void.
    pub incarnation: u32,
    /// Where the workers keep the sequence.
    pub slot: u32,
    /// Position of the first token.
    pub start: usize,
    /// The tokens.
    pub tokens: Tokens,
    /// Blocks to append to the slot's table, so that it covers all tokens. In a first row, the table begins with blocks
    /// that hold the tokens before `start` already.
    pub blocks: Vec<u32>,
    /// The slot's table is emptied first, and the slot gets the sequence's sampling parameters: the sequence is new, or the workers have
    /// lost its slot.
    pub is_first: bool,
    /// The number of tokens that are known when the sequence's first one is computed.
    pub known: usize,
    /// Whether the workers choose the token that follows the last one of this row.
    pub samples: bool,
    /// Whether they keep the hidden state of the last one, of which a later row [chooses](Tokens::Held).
    pub holds: bool,
    /// In a first row: the number of the kept state behind the tokens before `start`.
    pub resumes: Option<u32>,
    /// The state behind so many tokens of the row is kept, with this number.
    pub keeps: Option<(usize, u32)>,
    /// So many of the last tokens are guesses. The workers choose a token behind the one before them and behind each guess that they have
    /// chosen themselves.
    pub drafted: usize,
}

/// The tokens of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// These, at least one.
    Given(Vec<u32>),
    /// The one that the slot's last row chose.
    Continue,
    /// None: the token that follows is chosen of the hidden state that the slot's last row has kept.
    Held,
}

impl Row {
    /// Number of tokens.
    pub fn count(&self) -> usize {
        match &self.tokens {
            Tokens::Given(tokens) => tokens.len(),
            Tokens::Continue => 1,
            Tokens::Held => 0,
        }
    }

    /// The position after the last token.
    pub fn end(&self) -> usize {
        self.start + self.count()
    }
}

impl Step {
    /// Number of tokens of all rows.
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(Row::count).sum()
    }

    /// Whether it computes no tokens, and only chooses some.
    pub fn is_choice(&self) -> bool {
        self.tokens() == 0
    }
}

/// A step whose reply has not arrived.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) number: u64,
    pub(super) is_choice: bool,
    pub(super) rows: Vec<FlightRow>,
}

/// What the reply of a row is checked against.
#[derive(Debug)]
pub(super) struct FlightRow {
    pub(super) id: SequenceId,
    pub(super) incarnation: u32,
    pub(super) slot: u32,
    pub(super) start: usize,
    /// Without guesses.
    pub(super) end: usize,
    pub(super) drafted: usize,
    /// The position that a sequence has to get past if the row fails: a choice is behind the forward pass of its last token.
    pub(super) fails_at: usize,
    pub(super) samples: bool,
    pub(super) holds: bool,
}

impl Flight {
    pub(super) fn of(step: &Step) -> Self {
        let rows = step.rows.iter().map(|row| FlightRow {
            id: row.id,
            incarnation: row.incarnation,
            slot: row.slot,
            start: row.start,
            end: row.end() - row.drafted,
            drafted: row.drafted,
            fails_at: row.end() + usize::from(row.tokens == Tokens::Held),
            samples: row.samples,
            holds: row.holds,
        });
        Self { number: step.number, is_choice: step.is_choice(), rows: rows.collect() }
    }
}
