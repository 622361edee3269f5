//! State that belongs to one epoch of a session.

use super::AbortCause;
use crate::error::Error;

/// State that starts over with each epoch of a session and can be aborted.
///
/// An abort may arrive before its epoch has begun here. It is then kept until that epoch is over.
#[derive(Debug, Default)]
pub struct PerEpoch<T> {
    epoch: u64,
    abort: Option<(u64, AbortCause)>,
    state: T,
}

/// Why [`PerEpoch::admit`] refuses a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The caller's epoch is over.
    Over,
    /// The state was aborted, for this cause.
    Aborted(AbortCause),
    /// The caller's epoch has not begun here.
    Ahead,
}

impl<T: Default> PerEpoch<T> {
    /// Begins `epoch`: resets the state, forgets aborts of earlier epochs and returns the state of the epoch that ends.
    /// Does nothing if `epoch` has begun already.
    pub fn begin(&mut self, epoch: u64) -> Option<T> {
        if epoch <= self.epoch {
            return None;
        }
        self.epoch = epoch;
        self.abort.take_if(|(of, _)| *of < epoch);
        Some(std::mem::take(&mut self.state))
    }
}

impl<T> PerEpoch<T> {
    /// Aborts `epoch` and the epochs before it. Returns the state, or `None` if `epoch` is over or is aborted already.
    pub fn abort(&mut self, epoch: u64, cause: &AbortCause) -> Option<&mut T> {
        if epoch < self.epoch || self.abort.as_ref().is_some_and(|(known, _)| *known >= epoch) {
            return None;
        }
        self.abort = Some((epoch, cause.clone()));
        Some(&mut self.state)
    }

    /// The state, for a caller in `epoch`.
    ///
    /// # Errors
    /// The epoch is over or has not begun, or the state is aborted.
    pub fn admit(&mut self, epoch: u64) -> Result<&mut T, Refused> {
        match &self.abort {
            _ if epoch < self.epoch => Err(Refused::Over),
            Some((_, cause)) => Err(Refused::Aborted(cause.clone())),
            None if epoch > self.epoch => Err(Refused::Ahead),
            None => Ok(&mut self.state),
        }
    }

    /// The epoch of the state.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Why the state is aborted, if it is.
    pub fn cause(&self) -> Option<&AbortCause> {
        self.abort.as_ref().map(|(_, cause)| cause)
    }

    /// The state, whether it is aborted or not.
    pub fn get(&self) -> &T {
        &self.state
    }

    /// As [`PerEpoch::get`], mutably.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.state
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        let cause = match refused {
            Refused::Aborted(cause) => cause,
            Refused::Over => "the session failed and has recovered since".into(),
            Refused::Ahead => "the session has not begun that epoch".into(),
        };
        Error::Aborted { cause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_proceeds_only_in_the_current_epoch() {
        let mut state = PerEpoch::<Vec<u8>>::default();
        state.admit(0).unwrap().push(1);
        assert_eq!(state.admit(1), Err(Refused::Ahead));
        assert_eq!(state.begin(1), Some(vec![1]));
        assert_eq!(state.begin(1), None, "it was begun before");
        assert_eq!(state.admit(0), Err(Refused::Over));
        assert_eq!(state.admit(1), Ok(&mut Vec::new()));
    }

    #[test]
    fn only_the_first_abort_of_an_epoch_returns_the_state() {
        let mut state = PerEpoch::<()>::default();
        assert!(state.abort(0, &"first".into()).is_some());
        assert!(state.abort(0, &"second".into()).is_none());
        assert_eq!(state.admit(0), Err(Refused::Aborted("first".into())));
        state.begin(1);
        assert_eq!(state.admit(1), Ok(&mut ()), "an abort ends with its epoch");
        assert!(state.abort(0, &"late".into()).is_none());
        assert_eq!(state.cause(), None);
    }

    #[test]
    fn an_abort_ahead_of_the_state_is_kept_for_its_epoch() {
        let mut state = PerEpoch::<()>::default();
        assert!(state.abort(2, &"early".into()).is_some());
        state.begin(1);
        assert_eq!(state.cause(), Some(&"early".into()));
        state.begin(2);
        assert_eq!(state.admit(2), Err(Refused::Aborted("early".into())));
        state.begin(3);
        assert_eq!(state.admit(3), Ok(&mut ()));
    }
}
