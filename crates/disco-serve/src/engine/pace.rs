//! How many tokens a step has, so that it ends long before its deadline.

use std::time::Duration;

/// A step that takes longer than this part of the deadline makes the next ones smaller.
const SLOW_PART: u32 = 4;
/// A full step that takes less than this part makes them larger.
const QUICK_PART: u32 = 8;

/// The number of tokens of a step, which follows the speed of the workers (slow start): it begins with one token for each
/// sequence, after each failure again, and is doubled and halved.
///
/// After a failure, all sequences are computed again at once. Steps of the greatest size would then hang by their deadline
/// on workers that a busy machine slows down, and would be computed again and again.
#[derive(Debug)]
pub(super) struct Pace {
    least: usize,
    most: usize,
    tokens: usize,
    deadline: Duration,
}

impl Pace {
    /// Steps of `sequences` to `most` tokens, which take at most `deadline`.
    pub(super) fn new(sequences: u32, most: usize, deadline: Duration) -> Self {
        let least = (sequences as usize).min(most);
        Self { least, most, tokens: least, deadline }
    }

    /// The most tokens of the next step.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Begins again, with workers whose speed is not known.
    pub(super) fn restart(&mut self) {
        self.tokens = self.least;
    }

    /// A step of so many tokens has taken so long.
    pub(super) fn took(&mut self, tokens: usize, time: Duration) {
        if time > self.deadline / SLOW_PART {
            self.tokens = (self.tokens / 2).max(self.least);
        } else if time < self.deadline / QUICK_PART && tokens >= self.tokens {
            self.tokens = (self.tokens * 2).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn steps_grow_while_full_ones_are_quick_and_shrink_after_slow_ones() {
        let mut pace = Pace::new(32, 200, 16 * SECOND);
        let mut after = |tokens, time| {
            pace.took(tokens, time);
            pace.tokens()
        };
        assert_eq!(after(31, SECOND / 2), 32);
        assert_eq!([32, 64, 128, 200].map(|tokens| after(tokens, SECOND / 2)), [64, 128, 200, 200]);
        assert_eq!(after(200, 4 * SECOND), 200);
        assert_eq!([200, 100, 50, 32].map(|tokens| after(tokens, 5 * SECOND)), [100, 50, 32, 32]);
    }

    #[test]
    fn after_a_failure_steps_begin_small_again() {
        let mut pace = Pace::new(4, 64, 16 * SECOND);
        pace.took(4, Duration::ZERO);
        assert_eq!(pace.tokens(), 8);
        pace.restart();
        assert_eq!(pace.tokens(), 4);
        assert_eq!(Pace::new(100, 64, SECOND).tokens(), 64);
    }
}
