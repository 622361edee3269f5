//! Requests to the controller without an answer yet: their ids, deadlines and epochs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::Error;
use disco_core::abort::PerEpoch;

use super::fault::{self, Fault};

/// The pending requests of one member. `T` gets the answer.
#[derive(Debug)]
pub struct PendingRequests<T> {
    waiting: PerEpoch<Waiting<T>>,
    last: u64,
}

/// The deadline and caller of each request, by id.
type Waiting<T> = BTreeMap<u64, (Option<Instant>, T)>;

impl<T> Default for PendingRequests<T> {
    fn default() -> Self {
        Self { waiting: PerEpoch::default(), last: 0 }
    }
}

impl<T> PendingRequests<T> {
    /// Adds a request of the current epoch and returns its id. It is forgotten after `deadline`.
    ///
    /// # Errors
    /// The epoch was aborted. `asker` is returned.
    pub fn ask(&mut self, asker: T, deadline: Duration, now: Instant) -> Result<u64, (T, Error)> {
        self.ask_in(self.waiting.epoch(), asker, deadline, now)
    }

    /// Adds a request of a worker that is in `epoch`.
    ///
    /// # Errors
    /// As [`PendingRequests::ask`]; or the epoch is over or has not begun.
    pub fn ask_in(&mut self, epoch: u64, asker: T, deadline: Duration, now: Instant) -> Result<u64, (T, Error)> {
        let waiting = match self.waiting.admit(epoch) {
            Ok(waiting) => waiting,
            Err(refused) => return Err((asker, refused.into())),
        };
        waiting.retain(|_, (until, _)| until.is_none_or(|until| until > now));
        self.last += 1;
        waiting.insert(self.last, (now.checked_add(deadline), asker));
        Ok(self.last)
    }

    /// Removes a request and returns its caller; `None` if it has ended before.
    pub fn end(&mut self, id: u64) -> Option<T> {
        self.waiting.get_mut().remove(&id).map(|(_, asker)| asker)
    }

    /// Begins an epoch, which ends the requests of earlier epochs. Returns their callers.
    pub fn begin(&mut self, epoch: u64) -> Vec<T> {
        self.waiting.begin(epoch).map(askers).unwrap_or_default()
    }

    /// Aborts all current and future requests of `epoch`, unless it is over. Returns the callers of the ended requests.
    pub fn abort(&mut self, epoch: u64, cause: &Arc<str>) -> Vec<T> {
        let epoch = if fault::is_planted(Fault::OldAbort) { epoch.max(self.waiting.epoch()) } else { epoch };
        self.waiting
            .abort(epoch, &cause.clone().into())
            .map(|waiting| askers(std::mem::take(waiting)))
            .unwrap_or_default()
    }

    /// Number of pending requests.
    pub fn count(&self) -> usize {
        self.waiting.get().len()
    }
}

fn askers<T>(waiting: Waiting<T>) -> Vec<T> {
    waiting.into_values().map(|(_, asker)| asker).collect()
}

#[cfg(test)]
mod tests {
    use disco_core::abort::Refused;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(1);

    #[test]
    fn an_abort_or_a_new_epoch_ends_the_requests_of_earlier_epochs() {
        let (mut requests, now) = (PendingRequests::default(), Instant::now());
        assert_eq!(requests.ask_in(0, "a", DEADLINE, now).unwrap(), 1);
        assert_eq!(requests.ask_in(0, "b", DEADLINE, now).unwrap(), 2);
        assert_eq!((requests.end(2), requests.end(2)), (Some("b"), None));
        assert_eq!(requests.abort(0, &"first".into()), ["a"]);
        let (asker, error) = requests.ask_in(0, "c", DEADLINE, now).unwrap_err();
        assert_eq!((asker, error.to_string()), ("c", "aborted, because first".to_owned()));

        assert!(requests.begin(1).is_empty() && requests.abort(0, &"late".into()).is_empty());
        assert_eq!(requests.ask_in(1, "d", DEADLINE, now).unwrap(), 3);
        let (_, error) = requests.ask_in(0, "e", DEADLINE, now).unwrap_err();
        assert_eq!(error.to_string(), Error::from(Refused::Over).to_string());
        assert_eq!(requests.begin(2), ["d"]);
        // An abort may arrive before the command that begins its epoch.
        assert!(requests.abort(3, &"early".into()).is_empty() && requests.begin(3).is_empty());
        assert!(requests.ask_in(3, "f", DEADLINE, now).is_err());
    }

    #[test]
    fn a_request_is_forgotten_after_its_deadline() {
        let (mut requests, now) = (PendingRequests::default(), Instant::now());
        requests.ask("a", DEADLINE, now).unwrap();
        requests.ask("b", 2 * DEADLINE, now).unwrap();
        requests.ask("c", DEADLINE, now + DEADLINE).unwrap();
        assert_eq!(requests.count(), 2);
        assert_eq!(requests.end(1), None);
    }
}
