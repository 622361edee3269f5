//! Registry of abort listeners of one worker.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::{Abort, AbortCause, PerEpoch};
use crate::sync;

/// The abort listeners of one worker, and the abort signalled in its epoch.
///
/// Each worker's [`Link`](crate::link::Link) has a registry: `Link::on_abort` registers a listener, and the lane calls
/// `Link::abort`. A signal of an epoch that is over does nothing, so a late signal can't break the communicators that
/// were made after recovery.
#[derive(Default)]
pub struct AbortRegistry(Mutex<PerEpoch<Vec<Weak<dyn Abort>>>>);

impl AbortRegistry {
    /// Registers `listener` for the next abort; calls it at once if the epoch is aborted already. The registry holds
    /// the listener weakly: dropping the listener unregisters it.
    pub fn listen(&self, listener: &Arc<dyn Abort>) {
        let mut state = self.state();
        let listeners = state.get_mut();
        listeners.retain(|weak| weak.strong_count() > 0);
        listeners.push(Arc::downgrade(listener));
        let cause = state.cause().cloned();
        drop(state);
        if let Some(cause) = cause {
            listener.abort(&cause);
        }
    }

    /// Aborts all present and later listeners of `epoch`. Does nothing once `epoch` is over.
    pub fn abort(&self, epoch: u64, cause: &AbortCause) {
        let mut state = self.state();
        let Some(listeners) = state.abort(epoch, cause) else { return };
        let listeners: Vec<_> = listeners.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        listeners.iter().for_each(|listener| listener.abort(cause));
    }

    /// Aborts all present listeners. Later ones are not concerned.
    pub fn end_operations(&self, cause: &AbortCause) {
        let listeners: Vec<_> = self.state().get().iter().filter_map(Weak::upgrade).collect();
        listeners.iter().for_each(|listener| listener.abort(cause));
    }

    /// Number of registered listeners.
    pub fn listeners(&self) -> usize {
        self.state().get_mut().iter().filter(|weak| weak.strong_count() > 0).count()
    }

    /// Starts an epoch: forgets the aborts and listeners of earlier epochs, and keeps an abort of this epoch that
    /// arrived early.
    pub fn reset(&self, epoch: u64) {
        self.state().begin(epoch);
    }

    /// Whether the epoch is aborted.
    pub fn is_aborted(&self) -> bool {
        self.state().cause().is_some()
    }

    /// Why the epoch is aborted, if it is.
    pub(crate) fn cause(&self) -> Option<AbortCause> {
        self.state().cause().cloned()
    }

    /// The epoch that this worker is in.
    pub fn epoch(&self) -> u64 {
        self.state().epoch()
    }

    fn state(&self) -> MutexGuard<'_, PerEpoch<Vec<Weak<dyn Abort>>>> {
        sync::lock(&self.0)
    }
}

impl fmt::Debug for AbortRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listeners = self.listeners();
        let state = self.state();
        write!(f, "<epoch {}, {listeners} listeners, {:?}>", state.epoch(), state.cause())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The causes that a listener has heard.
    #[derive(Default)]
    pub(crate) struct Heard(pub(crate) Mutex<Vec<AbortCause>>);

    impl Abort for Heard {
        fn abort(&self, cause: &AbortCause) {
            self.0.lock().unwrap().push(cause.clone());
        }
    }

    #[test]
    fn early_and_late_listeners_get_the_first_cause_only() {
        let registry = AbortRegistry::default();
        let (early, late) = (Arc::new(Heard::default()), Arc::new(Heard::default()));
        registry.listen(&(early.clone() as Arc<dyn Abort>));
        registry.abort(0, &"first".into());
        registry.abort(0, &"second".into());
        registry.listen(&(late.clone() as Arc<dyn Abort>));
        assert_eq!(*early.0.lock().unwrap(), ["first".into()]);
        assert_eq!(*late.0.lock().unwrap(), ["first".into()]);
    }

    #[test]
    fn dropped_listeners_are_not_counted() {
        let registry = AbortRegistry::default();
        let [kept, dropped] = [(); 2].map(|()| Arc::new(Heard::default()) as Arc<dyn Abort>);
        registry.listen(&kept);
        registry.listen(&dropped);
        assert_eq!(registry.listeners(), 2);
        drop(dropped);
        assert_eq!(registry.listeners(), 1);
    }

    #[test]
    fn a_signal_that_overtakes_the_reset_is_kept() {
        let registry = AbortRegistry::default();
        registry.abort(0, &"first".into());
        registry.abort(1, &"second".into());
        registry.reset(1);
        let heard = Arc::new(Heard::default());
        registry.listen(&(heard.clone() as Arc<dyn Abort>));
        assert_eq!(*heard.0.lock().unwrap(), ["second".into()]);
    }

    #[test]
    fn a_signal_of_an_epoch_that_is_over_does_nothing() {
        let registry = AbortRegistry::default();
        registry.reset(2);
        let heard = Arc::new(Heard::default());
        registry.listen(&(heard.clone() as Arc<dyn Abort>));
        registry.abort(1, &"old".into());
        assert!(heard.0.lock().unwrap().is_empty());
        registry.abort(2, &"new".into());
        assert_eq!(*heard.0.lock().unwrap(), ["new".into()]);
    }
}
