//! The states of sequences in layers of linear attention. Each has a number, which programs give to sequences.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use candle_core::{Error, Result};
use disco_candle::DeltaState;

/// The state that tokens of a sequence go on with, in models whose sequences have one ([`Config::is_recurrent`]).
///
/// [`Config::is_recurrent`]: crate::Config::is_recurrent
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunState {
    /// The number of the sequence's state. Tokens at position 0 begin it anew.
    pub number: u32,
    /// The number of a kept state that is copied before the first token: for a new sequence whose run begins behind position 0.
    pub resumes: Option<u32>,
    /// A number of tokens and the number of a state: the sequence's state behind so many tokens of the run is copied there.
    pub keeps: Option<(u32, u32)>,
}

impl RunState {
    /// The state with this number, which goes on.
    pub fn new(number: u32) -> Self {
        Self { number, ..Self::default() }
    }
}

/// Tokens of a pass that follow each other in one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// The position of the first one.
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// The number of tokens that the sequence is known to get.
    pub(crate) length: usize,
    pub(crate) state: RunState,
}

/// The states by their numbers; each has one for each layer.
#[derive(Debug)]
pub(crate) struct States {
    start: Vec<DeltaState>,
    all: RefCell<HashMap<u32, Vec<DeltaState>>>,
}

impl States {
    /// `start`: the states of layers before the first token.
    pub(crate) fn new(start: Vec<DeltaState>) -> Self {
        Self { start, all: RefCell::default() }
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.all.borrow().values().flatten().map(DeltaState::bytes).sum()
    }

    /// Prepares the states of a pass.
    ///
    /// # Errors
    /// A sequence goes on without a state. Then, and if the pass fails, no state can be used any more.
    pub(crate) fn begin(&self, spans: &[Span]) -> Result<()> {
        if self.start.is_empty() {
            return Ok(());
        }
        let mut all = self.all.borrow_mut();
        for Span { first, state, .. } in spans {
            let begins = match state.resumes {
                _ if *first == 0 => Some(self.start.clone()),
                Some(kept) => Some(all.get(&kept).cloned().ok_or_else(|| missing(kept))?),
                None => None,
            };
            if let Some(begins) = begins {
                all.insert(state.number, begins);
            }
            if !all.contains_key(&state.number) {
                return Err(missing(state.number));
            }
            if let Some((_, kept)) = state.keeps {
                all.entry(kept).or_insert_with(|| self.start.clone());
            }
        }
        Ok(())
    }

    /// Changes the states of a layer: `compute` gets a state, and the tokens, of all of the pass, that change it.
    pub(crate) fn change(&self, layer: usize, spans: &[Span], mut compute: impl FnMut(&mut DeltaState, Range<usize>)) {
        let (mut all, mut from) = (self.all.borrow_mut(), 0);
        for Span { count, state, .. } in spans {
            let (mut place, end) = (from, from + count);
            if let Some((tokens, kept)) = state.keeps
                && let [Some(own), Some(kept)] = all.get_disjoint_mut([&state.number, &kept])
            {
                place += (tokens as usize).min(*count);
                compute(&mut own[layer], from..place);
                kept[layer].clone_from(&own[layer]);
            }
            if let Some(own) = all.get_mut(&state.number) {
                compute(&mut own[layer], place..end);
            }
            from = end;
        }
    }
}

fn missing(number: u32) -> Error {
    Error::Msg(format!("state {number} of linear attention is missing: no tokens have begun it"))
}
