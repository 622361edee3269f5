//! The generated texts on standard output.

use std::io::{self, Write as _};

use anyhow::Result;
use disco_models::text::{Decoder, Text};

/// Prints the text of one sequence while it grows, and those of a batch one after the other: the first sequence that
/// has not ended is printed as it grows, and later ones wait.
pub(crate) struct Output {
    sequences: Vec<Sequence>,
    /// The sequence that is printed as it grows.
    shown: usize,
    has_begun: bool,
}

struct Sequence {
    prompt: String,
    decoder: Decoder,
    /// Text that is not printed yet.
    waiting: String,
    has_ended: bool,
}

impl Output {
    pub(crate) fn new(prompts: Vec<String>) -> Self {
        let sequence =
            |prompt| Sequence { prompt, decoder: Decoder::default(), waiting: String::new(), has_ended: false };
        let sequences: Vec<_> = prompts.into_iter().map(sequence).collect();
        Self { sequences, shown: 0, has_begun: false }
    }

    /// Prints the first title, once.
    ///
    /// # Errors
    /// Standard output is closed.
    pub(crate) fn begin(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.has_begun, true) { Ok(()) } else { self.print_title() }
    }

    /// Adds a token to a sequence.
    ///
    /// # Errors
    /// The token can't be decoded, or standard output is closed.
    pub(crate) fn push(&mut self, sequence: usize, token: u32, text: &Text) -> Result<()> {
        let sequence = &mut self.sequences[sequence];
        let new = sequence.decoder.push(token, text)?;
        sequence.waiting.push_str(&new);
        self.print()
    }

    /// Ends a sequence.
    ///
    /// # Errors
    /// As [`Output::push`].
    pub(crate) fn end(&mut self, sequence: usize, text: &Text) -> Result<()> {
        let sequence = &mut self.sequences[sequence];
        if !sequence.has_ended {
            sequence.has_ended = true;
            let rest = sequence.decoder.finish(text)?;
            sequence.waiting.push_str(&rest);
        }
        self.print()
    }

    /// Ends all sequences.
    ///
    /// # Errors
    /// As [`Output::push`].
    pub(crate) fn finish(&mut self, text: &Text) -> Result<()> {
        (0..self.sequences.len()).try_for_each(|sequence| self.end(sequence, text))
    }

    fn print(&mut self) -> Result<()> {
        let mut out = io::stdout().lock();
        while let Some(sequence) = self.sequences.get_mut(self.shown) {
            out.write_all(sequence.waiting.as_bytes())?;
            sequence.waiting.clear();
            if !sequence.has_ended {
                break;
            }
            writeln!(out)?;
            self.shown += 1;
            self.print_title()?;
        }
        Ok(out.flush()?)
    }

    /// The prompt of the shown sequence of a batch.
    fn print_title(&self) -> Result<()> {
        match self.sequences.get(self.shown) {
            Some(sequence) if self.sequences.len() > 1 => {
                Ok(writeln!(io::stdout(), "[{}] {}", self.shown + 1, sequence.prompt)?)
            }
            _ => Ok(()),
        }
    }
}
