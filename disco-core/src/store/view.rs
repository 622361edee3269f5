//! A view of a shared store in one epoch.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::{MemoryStore, SharedStore, Store, StoreCall};
use crate::error::{Error, Result};
use crate::value::Value;

/// Limit for an answer that does not depend on other workers.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A view of a [`SharedStore`] in one epoch. Once a worker has begun the next epoch, all calls on the view fail, so
/// late calls can't change the values of the next epoch.
#[derive(Clone, Debug)]
pub struct View {
    store: Arc<dyn SharedStore>,
    epoch: u64,
}

impl Default for View {
    /// A view of a new [`MemoryStore`].
    fn default() -> Self {
        Self::new(Arc::new(MemoryStore::default()), 0)
    }
}

impl View {
    /// A view of `store` in `epoch`.
    pub fn new(store: Arc<dyn SharedStore>, epoch: u64) -> Self {
        Self { store, epoch }
    }

    /// Calls the store and waits for the answer; none if `limit` passes first.
    fn call(&self, call: StoreCall, limit: Duration) -> Result<Option<Value>> {
        let (tell, told) = mpsc::channel();
        // The send fails if the caller has reached its limit.
        self.store.call(self.epoch, call, Box::new(move |answer| _ = tell.send(answer)));
        told.recv_timeout(limit).ok().transpose()
    }

    /// The answer of a call that does not depend on other workers.
    fn answer(&self, operation: &str, key: &str, call: StoreCall) -> Result<Value> {
        let late = || Error::Deadline {
            operation: format!("store: {operation} `{key}`"),
            after: ANSWER_LIMIT,
            state: "the controller has no answer".into(),
        };
        self.call(call, ANSWER_LIMIT)?.ok_or_else(late)
    }
}

impl Store for View {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.answer("set", key, StoreCall::Set(key.into(), value.into())).map(drop)
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        match self.answer("get", key, StoreCall::Get(key.into()))? {
            Value::None => Ok(None),
            other => bytes(other).map(Some),
        }
    }

    fn wait(&self, key: &str, deadline: Duration) -> Result<Vec<u8>> {
        let late = || Error::Deadline {
            operation: format!("store: wait for `{key}`"),
            after: deadline,
            state: "nobody has set it".into(),
        };
        bytes(self.call(StoreCall::Wait(key.into(), deadline), deadline)?.ok_or_else(late)?)
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        match self.answer("add to", key, StoreCall::Add(key.into(), amount))? {
            Value::Int(sum) => Ok(sum),
            other => Err(strange(&other)),
        }
    }

    fn compare_and_set(&self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> Result<Vec<u8>> {
        let call = StoreCall::CompareAndSet(key.into(), expected.map(Into::into), new.into());
        bytes(self.answer("compare and set", key, call)?)
    }

    fn delete(&self, key: &str) -> Result<bool> {
        match self.answer("delete", key, StoreCall::Delete(key.into()))? {
            Value::Bool(was_there) => Ok(was_there),
            other => Err(strange(&other)),
        }
    }
}

fn bytes(value: Value) -> Result<Vec<u8>> {
    match value {
        Value::Bytes(bytes) => Ok(bytes.to_vec()),
        other => Err(strange(&other)),
    }
}

fn strange(value: &Value) -> Error {
    Error::protocol(format!("store: the controller answered with {}", value.kind()))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LONG_TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn a_wait_ends_with_the_value_the_deadline_the_abort_or_the_epoch() {
        let shared = Arc::new(MemoryStore::default());
        let waiting = |epoch: u64, key: &'static str| {
            let view = View::new(shared.clone(), epoch);
            thread::spawn(move || view.wait(key, LONG_TIMEOUT))
        };
        let view = View::new(shared.clone(), 0);
        let wait = waiting(0, "id");
        view.set("id", b"x").unwrap();
        assert_eq!(wait.join().unwrap().unwrap(), b"x");

        let late = view.wait("other", Duration::from_millis(1)).unwrap_err();
        assert_eq!(late.to_string(), "store: wait for `other`: no end after 1ms: nobody has set it");

        let wait = waiting(0, "never");
        shared.abort(0, &"worker 1 failed".into());
        let aborted = wait.join().unwrap().unwrap_err();
        assert_eq!(aborted.to_string(), "aborted, because worker 1 failed");
        assert!(view.get("id").is_err(), "an aborted store stays aborted");

        let wait = waiting(1, "never");
        shared.begin(2);
        shared.abort(2, &"later".into());
        assert!(wait.join().unwrap().is_err(), "a wait ends with its epoch, however late it wakes");
        assert_eq!(View::new(shared, 3).get("id").unwrap(), None);
    }

    #[test]
    fn calls_on_a_view_of_a_past_epoch_are_errors() {
        let shared = Arc::new(MemoryStore::default());
        let (late, now) = (View::new(shared.clone(), 0), View::new(shared, 1));
        late.add("count", 1).unwrap();
        assert_eq!(now.add("count", 1).unwrap(), 1, "an epoch starts empty");
        let over = [
            late.set("count", b"").err(),
            late.get("count").err(),
            late.wait("count", LONG_TIMEOUT).err(),
            late.add("count", 1).err(),
            late.compare_and_set("other", None, b"").err(),
            late.delete("count").err(),
        ];
        for error in over {
            assert_eq!(error.unwrap().to_string(), super::super::over().to_string());
        }
        assert_eq!(now.add("count", 1).unwrap(), 2);
        assert_eq!(now.get("other").unwrap(), None);
    }
}
