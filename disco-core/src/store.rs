//! Rendezvous of data planes: small values under names, shared by all workers.

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// A key-value store that every worker of a session reaches, also while a command runs.
///
/// # Errors
/// All methods: [`Error::Aborted`] once the session was aborted, [`Error::Lost`] where the way to the store is cut.
pub trait Store: Debug + Send + Sync {
    /// Puts `value` under `key`, over what was there.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// The value under `key`, if there is one now.
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>>;

    /// The value under `key`, as soon as there is one; [`Error::Deadline`] after `deadline`.
    fn wait(&self, key: &str, deadline: Duration) -> Result<Vec<u8>>;

    /// Adds to the number under `key` (an absent one is 0) and returns the sum, wrapping. Numbers are 8 bytes, little
    /// endian; other values are [`Error::Invalid`].
    fn add(&self, key: &str, amount: i64) -> Result<i64>;

    /// Puts `new` under `key` if the value there is `expected` (`None`: no value). Returns the value there afterwards.
    fn compare_and_set(&self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> Result<Vec<u8>>;

    /// Removes `key`; says whether it was there.
    fn delete(&self, key: &str) -> Result<bool>;
}

/// A store in this process's memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    epoch: u64,
    values: HashMap<String, Vec<u8>>,
    /// The abort that was signalled, and in which epoch.
    aborted: Option<(u64, Arc<str>)>,
    /// Who is to be told of keys.
    watchers: Vec<(String, Tell)>,
}

/// Takes the value under a key, or why there will be none.
type Tell = Box<dyn FnOnce(Result<Vec<u8>>) + Send>;

impl MemoryStore {
    /// Starts over, empty, unless `epoch` was begun already (each worker says so when it gets there).
    pub fn begin(&self, epoch: u64) {
        let mut state = self.lock();
        if epoch > state.epoch {
            let aborted = state.aborted.take().filter(|(of, _)| *of >= epoch);
            let old = std::mem::replace(&mut *state, State { epoch, aborted, ..State::default() });
            self.changed.notify_all();
            drop(state);
            old.watchers.into_iter().for_each(|(_, tell)| tell(Err(over())));
        }
    }

    /// Fails unless `epoch`, which is begun if it is new, is this one.
    ///
    /// # Errors
    /// [`Error::Aborted`].
    pub fn enter(&self, epoch: u64) -> Result<()> {
        self.begin(epoch);
        if self.lock().epoch == epoch { Ok(()) } else { Err(over()) }
    }

    /// [`Store::wait`] without a thread: tells the value under `key` once there is one, now if there is, on the thread that
    /// sets it; or of the abort. Forgotten with the store.
    pub fn watch(&self, key: &str, tell: impl FnOnce(Result<Vec<u8>>) + Send + 'static) {
        let mut state = self.lock();
        let now = match state.check() {
            Err(aborted) => Err(aborted),
            Ok(()) => match state.values.get(key) {
                Some(value) => Ok(value.clone()),
                None => return state.watchers.push((key.to_owned(), Box::new(tell))),
            },
        };
        drop(state);
        tell(now);
    }

    /// Puts a value there, and tells.
    fn put(&self, mut state: MutexGuard<'_, State>, key: &str, value: Vec<u8>) {
        let watchers: Vec<_> = state.watchers.extract_if(.., |(watched, _)| watched == key).collect();
        state.values.insert(key.to_owned(), value.clone());
        drop(state);
        self.changed.notify_all();
        watchers.into_iter().for_each(|(_, tell)| tell(Ok(value.clone())));
    }

    /// Fails all calls, waiting and to come, unless `epoch` is over.
    pub fn abort(&self, epoch: u64, cause: &Arc<str>) {
        let mut state = self.lock();
        if epoch >= state.epoch && state.aborted.as_ref().is_none_or(|(known, _)| *known < epoch) {
            state.aborted = Some((epoch, cause.clone()));
            let watchers = std::mem::take(&mut state.watchers);
            drop(state);
            self.changed.notify_all();
            watchers.into_iter().for_each(|(_, tell)| tell(Err(Error::Aborted { cause: cause.clone() })));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        state.check()?;
        Ok(state)
    }
}

impl State {
    fn check(&self) -> Result<()> {
        self.aborted.clone().map_or(Ok(()), |(_, cause)| Err(Error::Aborted { cause }))
    }
}

/// Of a wait that outlasted its epoch.
fn over() -> Error {
    Error::Aborted { cause: "the session failed and has recovered since".into() }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("epoch", &self.epoch).field("values", &self.values).finish_non_exhaustive()
    }
}

impl Store for MemoryStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.put(self.live()?, key, value.to_owned());
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.live()?.values.get(key).cloned())
    }

    fn wait(&self, key: &str, deadline: Duration) -> Result<Vec<u8>> {
        let start = Instant::now();
        let mut state = self.live()?;
        let epoch = state.epoch;
        loop {
            if let Some(value) = state.values.get(key) {
                return Ok(value.clone());
            }
            let Some(left) = deadline.checked_sub(start.elapsed()) else {
                return Err(Error::Deadline {
                    operation: format!("store: wait for `{key}`"),
                    after: deadline,
                    state: "nobody has set it".into(),
                });
            };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.check()?;
            if state.epoch != epoch {
                // The abort was forgotten before this thread woke up to it.
                return Err(over());
            }
        }
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let state = self.live()?;
        let old =
            match state.values.get(key) {
                None => 0,
                Some(bytes) => i64::from_le_bytes(bytes.as_slice().try_into().map_err(|_| {
                    Error::invalid(format!("store: `{key}` has {} bytes and is no number", bytes.len()))
                })?),
            };
        let new = old.wrapping_add(amount);
        self.put(state, key, new.to_le_bytes().to_vec());
        Ok(new)
    }

    fn compare_and_set(&self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> Result<Vec<u8>> {
        let state = self.live()?;
        match state.values.get(key) {
            found if found.map(Vec::as_slice) == expected => {
                self.put(state, key, new.to_owned());
                Ok(new.to_owned())
            }
            found => Ok(found.cloned().unwrap_or_default()),
        }
    }

    fn delete(&self, key: &str) -> Result<bool> {
        Ok(self.live()?.values.remove(key).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_value_the_deadline_or_the_abort() {
        let store = Arc::new(MemoryStore::default());
        let waiting = {
            let store = store.clone();
            std::thread::spawn(move || store.wait("id", Duration::from_secs(60)))
        };
        store.set("id", b"x").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), b"x");

        let late = store.wait("other", Duration::from_millis(1)).unwrap_err();
        assert_eq!(late.to_string(), "store: wait for `other`: no end after 1ms: nobody has set it");

        let waiting = {
            let store = store.clone();
            std::thread::spawn(move || store.wait("never", Duration::from_secs(60)))
        };
        store.abort(0, &"worker 1 failed".into());
        let aborted = waiting.join().unwrap().unwrap_err();
        assert_eq!(aborted.to_string(), "aborted, because worker 1 failed");
        assert!(store.get("id").is_err(), "an aborted store stays aborted");
        store.begin(1);
        let waiting = {
            let store = store.clone();
            std::thread::spawn(move || store.wait("never", Duration::from_secs(60)))
        };
        store.begin(2);
        store.abort(2, &"later".into());
        assert!(waiting.join().unwrap().is_err(), "a wait ends with its epoch, however late it wakes");
        store.begin(3);
        assert_eq!(store.get("id").unwrap(), None);
    }

    #[test]
    fn a_watcher_is_told_of_the_value_or_of_the_abort() {
        let store = MemoryStore::default();
        let told = Arc::new(Mutex::new(Vec::new()));
        let watch = |key: &str| {
            let told = told.clone();
            store.watch(key, move |value| told.lock().unwrap().push(value.map_err(|error| error.to_string())));
        };
        store.set("there", b"1").unwrap();
        watch("there");
        watch("later");
        store.add("other", 1).unwrap();
        assert_eq!(*told.lock().unwrap(), [Ok(b"1".to_vec())]);
        store.compare_and_set("later", None, b"2").unwrap();
        watch("never");
        store.abort(0, &"worker 1 failed".into());
        watch("never");
        store.begin(1);
        watch("never");
        store.begin(2);
        let aborted = Err("aborted, because worker 1 failed".to_owned());
        let over = Err("aborted, because the session failed and has recovered since".to_owned());
        assert_eq!(told.lock().unwrap()[1..], [Ok(b"2".to_vec()), aborted.clone(), aborted, over]);
    }

    #[test]
    fn add_counts_and_compare_and_set_compares() {
        let store = MemoryStore::default();
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
