//! A store in the memory of this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::{SharedStore, StoreCall, over};
use crate::abort::PerEpoch;
use crate::error::{Error, Result};
use crate::sync;
use crate::value::Value;

/// A store in the memory of this process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<PerEpoch<Values>>,
}

#[derive(Default)]
struct Values {
    values: HashMap<String, Vec<u8>>,
    /// Callbacks that wait for keys.
    watchers: Vec<Watcher>,
}

struct Watcher {
    key: String,
    /// Deadline of the wait; none if it has no deadline.
    until: Option<Instant>,
    tell: Tell,
}

/// A callback with the value of a key, or the error that ends the wait.
type Tell = Box<dyn FnOnce(Result<Vec<u8>>) + Send>;

impl MemoryStore {
    /// Locks the store for a call of a worker in `epoch`, which begins if it is new.
    ///
    /// # Errors
    /// [`Error::Aborted`]: the epoch is over, or was aborted.
    fn enter(&self, epoch: u64) -> Result<Entered<'_>> {
        self.begin(epoch);
        let mut state = self.lock();
        state.admit(epoch)?;
        Ok(Entered { state })
    }

    fn lock(&self) -> MutexGuard<'_, PerEpoch<Values>> {
        sync::lock(&self.state)
    }
}

impl SharedStore for MemoryStore {
    /// Starts the epoch with an empty store.
    fn begin(&self, epoch: u64) {
        let old = self.lock().begin(epoch);
        for watcher in old.into_iter().flat_map(|old| old.watchers) {
            (watcher.tell)(Err(over()));
        }
    }

    fn abort(&self, epoch: u64, cause: &Arc<str>) {
        let watchers = self.lock().abort(epoch, &cause.clone().into()).map(|state| std::mem::take(&mut state.watchers));
        for watcher in watchers.into_iter().flatten() {
            (watcher.tell)(Err(Error::Aborted { cause: cause.clone().into() }));
        }
    }

    fn call(&self, epoch: u64, call: StoreCall, tell: Box<dyn FnOnce(Result<Value>) + Send>) {
        let store = match self.enter(epoch) {
            Ok(store) => store,
            Err(over) => return tell(Err(over)),
        };
        let result = match call {
            StoreCall::Set(key, value) => {
                store.set(&key, &value);
                Ok(Value::None)
            }
            StoreCall::Get(key) => Ok(store.get(&key).map_or(Value::None, Value::from)),
            StoreCall::Add(key, amount) => store.add(&key, amount).map(Value::Int),
            StoreCall::CompareAndSet(key, expected, new) => {
                Ok(store.compare_and_set(&key, expected.as_deref(), &new).into())
            }
            StoreCall::Delete(key) => Ok(Value::Bool(store.delete(&key))),
            StoreCall::Wait(key, deadline) => {
                return store.watch(&key, deadline, move |value| tell(value.map(Value::from)));
            }
        };
        tell(result);
    }
}

/// Exclusive access to a [`MemoryStore`] for one call.
#[derive(Debug)]
struct Entered<'a> {
    state: MutexGuard<'a, PerEpoch<Values>>,
}

impl Entered<'_> {
    /// [`Store::set`].
    fn set(self, key: &str, value: &[u8]) {
        self.put(key, value.to_owned());
    }

    /// [`Store::get`].
    fn get(self, key: &str) -> Option<Vec<u8>> {
        self.state.get().values.get(key).cloned()
    }

    /// Waits for `key` without a thread: calls `tell` with the value, at once or on the thread that sets the key, or
    /// with the error of an abort. The wait is dropped at the end of the epoch and after `deadline`.
    fn watch(mut self, key: &str, deadline: Duration, tell: impl FnOnce(Result<Vec<u8>>) + Send + 'static) {
        if let Some(value) = self.state.get().values.get(key).cloned() {
            drop(self);
            return tell(Ok(value));
        }
        let now = Instant::now();
        self.state.get_mut().watchers.retain(|watcher| watcher.until.is_none_or(|until| until > now));
        let (key, until) = (key.to_owned(), now.checked_add(deadline));
        self.state.get_mut().watchers.push(Watcher { key, until, tell: Box::new(tell) });
    }

    /// [`Store::add`].
    ///
    /// # Errors
    /// [`Error::Invalid`].
    fn add(self, key: &str, amount: i64) -> Result<i64> {
        let old =
            match self.state.get().values.get(key) {
                None => 0,
                Some(bytes) => i64::from_le_bytes(bytes.as_slice().try_into().map_err(|_| {
                    Error::invalid(format!("store: `{key}` has {} bytes and is no number", bytes.len()))
                })?),
            };
        let new = old.wrapping_add(amount);
        self.put(key, new.to_le_bytes().to_vec());
        Ok(new)
    }

    /// [`Store::compare_and_set`].
    fn compare_and_set(self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> Vec<u8> {
        match self.state.get().values.get(key) {
            found if found.map(Vec::as_slice) == expected => {
                self.put(key, new.to_owned());
                new.to_owned()
            }
            found => found.cloned().unwrap_or_default(),
        }
    }

    /// [`Store::delete`].
    fn delete(mut self, key: &str) -> bool {
        self.state.get_mut().values.remove(key).is_some()
    }

    /// Sets a value and calls its waiting callbacks.
    fn put(self, key: &str, value: Vec<u8>) {
        let Self { mut state } = self;
        let watchers: Vec<_> = state.get_mut().watchers.extract_if(.., |watcher| watcher.key == key).collect();
        state.get_mut().values.insert(key.to_owned(), value.clone());
        drop(state);
        watchers.into_iter().for_each(|watcher| (watcher.tell)(Ok(value.clone())));
    }
}

crate::format_as!(Debug for Values, |it| "Values {{ values: {:?}, .. }}", it.values);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Store as _, View};

    #[test]
    fn a_watcher_gets_the_value_or_the_abort() {
        let store = MemoryStore::default();
        let told = Arc::new(Mutex::new(Vec::new()));
        let watch = |epoch: u64, key: &str, deadline: u64| {
            let told = told.clone();
            let tell = move |value: Result<_>| told.lock().unwrap().push(value.map_err(|error| error.to_string()));
            store.enter(epoch).unwrap().watch(key, Duration::from_secs(deadline), tell);
        };
        let now = || store.enter(0).unwrap();
        now().set("there", b"1");
        watch(0, "there", 60);
        watch(0, "late", 0);
        watch(0, "later", 60);
        now().set("late", b"0");
        now().add("other", 1).unwrap();
        assert_eq!(*told.lock().unwrap(), [Ok(b"1".to_vec())], "nobody waits for `late` any more");
        now().compare_and_set("later", None, b"2");
        watch(0, "never", 60);
        store.abort(0, &"worker 1 failed".into());
        watch(1, "never", 60);
        store.begin(2);
        let aborted = Err("aborted, because worker 1 failed".to_owned());
        let over = Err("aborted, because the session failed and has recovered since".to_owned());
        assert_eq!(told.lock().unwrap()[1..], [Ok(b"2".to_vec()), aborted, over]);
        assert!(store.enter(1).is_err(), "that epoch is over");
    }

    #[test]
    fn add_returns_the_sum_and_compare_and_set_replaces_only_the_expected_value() {
        let store = View::default();
        assert_eq!(store.add("n", 2).unwrap(), 2);
        assert_eq!(store.add("n", -5).unwrap(), -3);
        store.set("text", b"abc").unwrap();
        assert!(store.add("text", 1).unwrap_err().to_string().contains("is no number"));

        assert_eq!(store.compare_and_set("leader", None, b"0").unwrap(), b"0");
        assert_eq!(store.compare_and_set("leader", None, b"1").unwrap(), b"0", "taken");
        assert_eq!(store.compare_and_set("leader", Some(b"0"), b"2").unwrap(), b"2");
        assert!(store.delete("leader").unwrap());
        assert!(!store.delete("leader").unwrap());
    }
}
