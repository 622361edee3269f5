//! Ending what waits, from outside.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::epoch::Epoch;

/// Something that waits on peers and can be told to stop.
pub trait Abort: Send + Sync {
    /// Makes whatever waits return [`Error::Aborted`](crate::Error::Aborted) with this cause, now and from now on.
    /// Callable from any thread, any number of times; the first cause stays. Never blocks for ever.
    fn abort(&self, cause: &Arc<str>);
}

/// The aborts of one worker: what is to be told, and what was told already.
///
/// A lane owns one for each worker and serves [`Link::on_abort`](crate::link::Link::on_abort) with it. A signal of an
/// [epoch](Epoch) that is over does nothing.
#[derive(Default)]
pub struct Switchboard(Mutex<State>);

#[derive(Default)]
struct State {
    epoch: Epoch,
    listeners: Vec<Weak<dyn Abort>>,
}

impl Switchboard {
    /// Tells `listener` of the abort to come, or at once of the one that was. Held weakly: dropping it unregisters.
    pub fn listen(&self, listener: &Arc<dyn Abort>) {
        let mut state = self.state();
        state.listeners.retain(|weak| weak.strong_count() > 0);
        state.listeners.push(Arc::downgrade(listener));
        let cause = state.epoch.cause().cloned();
        drop(state);
        if let Some(cause) = cause {
            listener.abort(&cause);
        }
    }

    /// Aborts all listeners, now and to come, unless `epoch` is over.
    pub fn abort(&self, epoch: u64, cause: &Arc<str>) {
        let mut state = self.state();
        if !state.epoch.abort(epoch, cause) {
            return;
        }
        let listeners: Vec<_> = state.listeners.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        listeners.iter().for_each(|listener| listener.abort(cause));
    }

    /// Starts an epoch: forgets the aborts of earlier ones and who listened to them. An abort of this epoch that came before
    /// this worker did is kept.
    pub fn reset(&self, epoch: u64) {
        let mut state = self.state();
        if state.epoch.begin(epoch) {
            state.listeners.clear();
        }
    }

    /// The epoch that this worker is in.
    pub fn epoch(&self) -> u64 {
        self.state().epoch.number()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Switchboard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        write!(f, "<{:?}, {} listeners>", state.epoch, state.listeners.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<Arc<str>>>);

    impl Abort for Heard {
        fn abort(&self, cause: &Arc<str>) {
            self.0.lock().unwrap().push(cause.clone());
        }
    }

    #[test]
    fn early_and_late_listeners_hear_the_first_cause_only() {
        let board = Switchboard::default();
        let (early, late) = (Arc::new(Heard::default()), Arc::new(Heard::default()));
        board.listen(&(early.clone() as Arc<dyn Abort>));
        board.abort(0, &"first".into());
        board.abort(0, &"second".into());
        board.listen(&(late.clone() as Arc<dyn Abort>));
        assert_eq!(*early.0.lock().unwrap(), ["first".into()]);
        assert_eq!(*late.0.lock().unwrap(), ["first".into()]);
    }

    #[test]
    fn a_signal_that_overtakes_the_reset_is_kept() {
        let board = Switchboard::default();
        board.abort(0, &"first".into());
        board.abort(1, &"second".into());
        board.reset(1);
        let heard = Arc::new(Heard::default());
        board.listen(&(heard.clone() as Arc<dyn Abort>));
        assert_eq!(*heard.0.lock().unwrap(), ["second".into()]);
    }

    #[test]
    fn a_signal_of_an_epoch_that_is_over_does_nothing() {
        let board = Switchboard::default();
        board.reset(2);
        let heard = Arc::new(Heard::default());
        board.listen(&(heard.clone() as Arc<dyn Abort>));
        board.abort(1, &"old".into());
        assert!(heard.0.lock().unwrap().is_empty());
        board.abort(2, &"new".into());
        assert_eq!(*heard.0.lock().unwrap(), ["new".into()]);
    }
}
