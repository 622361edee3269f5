//! Questions to the controller: numbers, deadlines, and the epochs that end them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::epoch::Epoch;
use disco_core::{Error, store};

use super::fault::{self, Fault};

/// Questions of one member that have no answer yet. `T` takes the answer.
#[derive(Debug)]
pub(crate) struct Questions<T> {
    epoch: Epoch,
    last: u64,
    waiting: BTreeMap<u64, (Option<Instant>, T)>,
}

impl<T> Default for Questions<T> {
    fn default() -> Self {
        Self { epoch: Epoch::default(), last: 0, waiting: BTreeMap::new() }
    }
}

impl<T> Questions<T> {
    /// The number of a new question, whose answer `asker` takes until `deadline` has passed.
    ///
    /// # Errors
    /// The epoch was aborted: `asker`, and why.
    pub(crate) fn ask(&mut self, asker: T, deadline: Duration, now: Instant) -> Result<u64, (T, Error)> {
        if let Some(cause) = self.epoch.cause() {
            return Err((asker, Error::Aborted { cause: cause.clone() }));
        }
        self.waiting.retain(|_, (until, _)| until.is_none_or(|until| until > now));
        self.last += 1;
        self.waiting.insert(self.last, (now.checked_add(deadline), asker));
        Ok(self.last)
    }

    /// A new question of a worker that is in `epoch`.
    ///
    /// # Errors
    /// As [`Questions::ask`]; the epoch is over.
    pub(crate) fn ask_in(&mut self, epoch: u64, asker: T, deadline: Duration, now: Instant) -> Result<u64, (T, Error)> {
        match epoch < self.epoch.number() {
            true => Err((asker, store::over())),
            false => self.ask(asker, deadline, now),
        }
    }

    /// Ends a question, with its answer or without. None: it has ended before.
    pub(crate) fn end(&mut self, id: u64) -> Option<T> {
        self.waiting.remove(&id).map(|(_, asker)| asker)
    }

    /// Begins an epoch. Returns the askers of earlier epochs, whose questions have [ended](store::over).
    pub(crate) fn begin(&mut self, epoch: u64) -> Vec<T> {
        match self.epoch.begin(epoch) {
            true => self.end_all(),
            false => Vec::new(),
        }
    }

    /// Aborts all questions, now and to come, unless `epoch` is over. Returns the askers whose questions have ended.
    pub(crate) fn abort(&mut self, epoch: u64, cause: &Arc<str>) -> Vec<T> {
        let epoch = if fault::is_planted(Fault::OldAbort) { epoch.max(self.epoch.number()) } else { epoch };
        match self.epoch.abort(epoch, cause) {
            true => self.end_all(),
            false => Vec::new(),
        }
    }

    /// Number of questions without an answer.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    fn end_all(&mut self) -> Vec<T> {
        std::mem::take(&mut self.waiting).into_values().map(|(_, asker)| asker).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    #[test]
    fn an_abort_or_a_new_epoch_ends_the_questions_of_the_epochs_before() {
        let (mut questions, now) = (Questions::default(), Instant::now());
        assert_eq!(questions.ask_in(0, "a", LIMIT, now).unwrap(), 1);
        assert_eq!(questions.ask_in(0, "b", LIMIT, now).unwrap(), 2);
        assert_eq!((questions.end(2), questions.end(2)), (Some("b"), None));
        assert_eq!(questions.abort(0, &"first".into()), ["a"]);
        let (asker, error) = questions.ask_in(0, "c", LIMIT, now).unwrap_err();
        assert_eq!((asker, error.to_string()), ("c", "aborted, because first".to_owned()));

        assert!(questions.begin(1).is_empty() && questions.abort(0, &"late".into()).is_empty());
        assert_eq!(questions.ask_in(1, "d", LIMIT, now).unwrap(), 3);
        let (_, error) = questions.ask_in(0, "e", LIMIT, now).unwrap_err();
        assert_eq!(error.to_string(), store::over().to_string());
        assert_eq!(questions.begin(2), ["d"]);
        // Ahead of the command that begins epoch 3.
        assert!(questions.abort(3, &"early".into()).is_empty() && questions.begin(3).is_empty());
        assert!(questions.ask_in(3, "f", LIMIT, now).is_err());
    }

    #[test]
    fn a_question_is_forgotten_after_its_deadline() {
        let (mut questions, now) = (Questions::default(), Instant::now());
        questions.ask("a", LIMIT, now).unwrap();
        questions.ask("b", 2 * LIMIT, now).unwrap();
        questions.ask("c", LIMIT, now + LIMIT).unwrap();
        assert_eq!(questions.len(), 2);
        assert_eq!(questions.end(1), None);
    }
}
