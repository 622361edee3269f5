//! Compiling of grammars.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock, PoisonError};

use disco_models::text::Text;
use llguidance::api::ParserLimits;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};

use super::tokens::environment;
use super::words::plain;
use super::{Constraint, Grammar};

/// Grammars that are kept compiled.
const KEPT: usize = 64;

/// The work and the memory that a grammar can take. A mask of the last two takes some 5 ms at most.
pub(crate) const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 2000,
    initial_lexer_fuel: 1_000_000,
    step_lexer_fuel: 70_000,
    step_max_items: 50_000,
    // Up to 2 kB each, for each text.
    max_lexer_states: 10_000,
    max_grammar_size: 200_000,
    precompute_large_lexemes: true,
    // They would show tokens of the text.
    verbose_errors: false,
};

/// Why a grammar can't be used, which completes a sentence that begins with its name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("can't hold: no token of the model ends a text")]
    NoEnd,
    #[error("can't be compiled: {0}")]
    Grammar(String),
}

/// Compiles grammars for the tokens of a model.
#[derive(Default)]
pub(crate) struct Grammars {
    /// Made for the first grammar. `None`: the model's texts have no end.
    factory: OnceLock<Option<ParserFactory>>,
    /// The last ones, the newest first. Texts get deep copies: what a text adds to the lexer's states would stay.
    compiled: Mutex<VecDeque<(Grammar, Matcher)>>,
}

impl Grammars {
    /// Makes what all grammars of a model share, at the first call. Blocks the thread for some tenths of a second.
    pub(crate) fn prepare(&self, text: &Text, ends: &[u32], vocabulary: usize) -> Option<&ParserFactory> {
        self.factory.get_or_init(|| factory(text, ends, vocabulary)).as_ref()
    }

    /// A constraint at the begin of a text. Blocks the thread for up to some seconds.
    ///
    /// # Errors
    /// The grammar is not understood, or takes too much work.
    pub(crate) fn compile(
        &self,
        grammar: &Grammar,
        text: &Text,
        ends: &[u32],
        vocabulary: usize,
    ) -> Result<Constraint, Unusable> {
        grammar.check_size().map_err(Unusable::Grammar)?;
        let factory = self.prepare(text, ends, vocabulary).ok_or(Unusable::NoEnd)?;
        let compilable = grammar.compilable().map_err(|error| Unusable::Grammar(plain(&error.to_string())))?;
        let mut matcher = Matcher::new(factory.create_parser(compilable));
        let why = matcher.get_error().or_else(|| matcher.grammar_warnings().into_iter().next());
        if let Some(why) = why {
            return Err(Unusable::Grammar(plain(&why)));
        }
        let copy = matcher.deep_clone();
        // The first tokens take the longest, and a grammar may have no text.
        Constraint::new(matcher.deep_clone()).mask().map_err(Unusable::Grammar)?;
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        compiled.push_front((grammar.clone(), matcher));
        compiled.truncate(KEPT);
        Ok(Constraint::new(copy))
    }

    /// A constraint of a grammar that was compiled before, which becomes the newest.
    pub(crate) fn known(&self, grammar: &Grammar) -> Option<Constraint> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let place = compiled.iter().position(|(known, _)| known == grammar)?;
        let entry = compiled.remove(place)?;
        let copy = entry.1.deep_clone();
        compiled.push_front(entry);
        Some(Constraint::new(copy))
    }
}

fn factory(text: &Text, ends: &[u32], vocabulary: usize) -> Option<ParserFactory> {
    let tokens = environment(text, ends, vocabulary)?;
    // Slices of the vocabulary are precomputed for the strings of JSON.
    let slices = llguidance::earley::SlicedBiasComputer::general_slices();
    let mut factory = ParserFactory::new(&tokens, InferenceCapabilities::default(), &slices).ok()?;
    *factory.limits_mut() = LIMITS;
    factory.quiet();
    Some(factory)
}
