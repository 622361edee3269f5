//! The states of sequences in layers of linear attention. Each has a number, which programs give to sequences.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use candle_core::{Error, Result};
use disco_candle::{DeltaState, to_candle};
use disco_core::Tensor as HostTensor;

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
    outliving: Option<Outliving>,
}

/// Memory of kept states that outlives the worker: all states from a number on.
#[derive(Debug)]
struct Outliving {
    first: u32,
    /// f32 `[states, layers and their numbers]`.
    numbers: HostTensor,
}

impl States {
    /// `start`: the states of layers before the first token.
    pub(crate) fn new(start: Vec<DeltaState>) -> Self {
        Self { start, all: RefCell::default(), outliving: None }
    }

    /// Whether sequences have states, also on ranks without heads.
    pub(crate) fn is_needed(&self) -> bool {
        !self.start.is_empty()
    }

    /// The numbers of a state of all layers.
    pub(crate) fn count(&self) -> usize {
        self.start.iter().map(DeltaState::count).sum()
    }

    /// Keeps the states with the numbers from `first` on in this memory, [`count`](Self::count) elements each, as they are there.
    pub(crate) fn within(self, first: u32, numbers: HostTensor) -> Self {
        Self { outliving: Some(Outliving { first, numbers }), ..self }
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let outliving = self.outliving.as_ref().map_or(0, |it| it.numbers.byte_len());
        size_of::<f32>() * self.all.borrow().values().flatten().map(DeltaState::count).sum::<usize>() + outliving
    }

    /// A kept state.
    fn kept(&self, all: &HashMap<u32, Vec<DeltaState>>, kept: u32) -> Result<Vec<DeltaState>> {
        let Some(memory) = &self.outliving else { return all.get(&kept).cloned().ok_or_else(|| missing(kept)) };
        let (mut states, mut at) = (self.start.clone(), 0);
        let numbers = memory.of(kept, self.count())?;
        let numbers = numbers.view::<f32>().map_err(to_candle)?;
        for state in &mut states {
            state.restore(&numbers[at..at + state.count()]);
            at += state.count();
        }
        Ok(states)
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
                Some(kept) => Some(self.kept(&all, kept)?),
                None => None,
            };
            if let Some(begins) = begins {
                all.insert(state.number, begins);
            }
            if !all.contains_key(&state.number) {
                return Err(missing(state.number));
            }
            if let Some((_, kept)) = state.keeps.filter(|_| self.outliving.is_none()) {
                all.entry(kept).or_insert_with(|| self.start.clone());
            }
        }
        Ok(())
    }

    /// Changes the states of a layer: `compute` gets a state, and the tokens, of all of the pass, that change it.
    ///
    /// # Errors
    /// The memory has no room for a kept state.
    pub(crate) fn change(
        &self,
        layer: usize,
        spans: &[Span],
        mut compute: impl FnMut(&mut DeltaState, Range<usize>),
    ) -> Result<()> {
        let (mut all, mut from) = (self.all.borrow_mut(), 0);
        for Span { count, state, .. } in spans {
            let (mut place, end) = (from, from + count);
            if let Some((tokens, kept)) = state.keeps {
                let before = place;
                place += (tokens as usize).min(*count);
                match (&self.outliving, all.get_disjoint_mut([&state.number, &kept])) {
                    (Some(memory), [Some(own), _]) => {
                        compute(&mut own[layer], before..place);
                        let numbers = memory.of(kept, self.count())?;
                        let mut numbers = numbers.view_mut::<f32>().map_err(to_candle)?;
                        let at: usize = self.start[..layer].iter().map(DeltaState::count).sum();
                        own[layer].save(&mut numbers[at..at + own[layer].count()]);
                    }
                    (None, [Some(own), Some(kept)]) => {
                        compute(&mut own[layer], before..place);
                        kept[layer].clone_from(&own[layer]);
                    }
                    _ => place = before,
                }
            }
            if let Some(own) = all.get_mut(&state.number) {
                compute(&mut own[layer], place..end);
            }
            from = end;
        }
        Ok(())
    }
}

impl Outliving {
    /// The numbers of a state.
    fn of(&self, number: u32, count: usize) -> Result<HostTensor> {
        let place = number.checked_sub(self.first).ok_or_else(|| missing(number))?;
        self.numbers.window(place as usize * count, [count]).map_err(to_candle)
    }
}

fn missing(number: u32) -> Error {
    Error::Msg(format!("state {number} of linear attention is missing: no tokens have begun it"))
}
