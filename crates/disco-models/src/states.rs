//! The states of sequences in layers of linear attention. Each has a number, which programs give to sequences.

use std::cell::RefCell;
use std::ops::Range;

use candle_core::{Error, Result};
use disco_candle::DeltaState;

use crate::blocks::Span;

/// The state that tokens of a sequence go on with, in models whose sequences have one ([`Config::is_recurrent`]).
///
/// [`Config::is_recurrent`]: crate::Config::is_recurrent
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunState {
    /// Its number. Tokens at position 0 begin it anew.
    pub number: u32,
    /// The number of a state that was kept, with which the sequence begins behind position 0.
    pub resumes: Option<u32>,
    /// The state is kept behind so many of the tokens, with this number.
    pub keeps: Option<(u32, u32)>,
}

impl RunState {
    /// The state with this number, which goes on.
    pub fn new(number: u32) -> Self {
        Self { number, ..Self::default() }
    }
}

/// The states by their numbers; each has one for each layer.
#[derive(Debug)]
pub(crate) struct States {
    start: Vec<DeltaState>,
    all: RefCell<Vec<Option<Vec<DeltaState>>>>,
}

impl States {
    /// `start`: the states of layers before the first token.
    pub(crate) fn new(start: &[DeltaState]) -> Self {
        Self { start: start.to_vec(), all: RefCell::default() }
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.all.borrow().iter().flatten().flatten().map(DeltaState::bytes).sum()
    }

    /// Prepares the states of a pass.
    ///
    /// # Errors
    /// A sequence goes on without a state.
    pub(crate) fn begin(&self, spans: &[Span]) -> Result<()> {
        if self.start.is_empty() {
            return Ok(());
        }
        let mut all = self.all.borrow_mut();
        for Span { first, state, .. } in spans {
            let numbers = [Some(state.number), state.keeps.map(|(_, number)| number)];
            let most = numbers.into_iter().flatten().max().unwrap_or(0) as usize;
            if most >= all.len() {
                all.resize(most + 1, None);
            }
            let begins = match state.resumes {
                _ if *first == 0 => Some(self.start.clone()),
                Some(kept) => Some(all.get(kept as usize).cloned().flatten().ok_or_else(|| missing(kept))?),
                None => None,
            };
            let own = &mut all[state.number as usize];
            *own = begins.or(own.take());
            if own.is_none() {
                return Err(missing(state.number));
            }
            if let Some((_, kept)) = state.keeps {
                all[kept as usize].get_or_insert_with(|| self.start.clone());
            }
        }
        Ok(())
    }

    /// Changes the states of a layer: `compute` gets a state, and the tokens, of all of the pass, that change it.
    pub(crate) fn change(&self, layer: usize, spans: &[Span], mut compute: impl FnMut(&mut DeltaState, Range<usize>)) {
        let (mut all, mut from) = (self.all.borrow_mut(), 0);
        for Span { count, state, .. } in spans {
            let (mut place, end) = (from, from + count);
            if let Some((tokens, kept)) = state.keeps {
                place += (tokens as usize).min(*count);
                if let Some(own) = &mut all[state.number as usize] {
                    compute(&mut own[layer], from..place);
                    let copy = own[layer].clone();
                    all[kept as usize].iter_mut().for_each(|kept| kept[layer] = copy.clone());
                }
            }
            if let Some(own) = &mut all[state.number as usize] {
                compute(&mut own[layer], place..end);
            }
            from = end;
        }
    }
}

fn missing(number: u32) -> Error {
    Error::Msg(format!("state {number} of linear attention is missing: no tokens have begun it"))
}
