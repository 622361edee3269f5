//! A worker's questions to its controller: the store, descriptors.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use disco_core::store::Store;
use disco_core::wire::{Message, StoreCall};
use disco_core::{Error, Result, Value};

use crate::processes::connection::Connection;

/// How long an answer may take that waits for nobody.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// Questions under way, and the worker's [`Store`].
#[derive(Debug)]
pub(super) struct Questions {
    connection: Arc<Connection>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    epoch: u64,
    last: u64,
    waiting: HashMap<u64, Sender<Answer>>,
    /// Why there are no answers, and since which epoch: it may be ahead of this worker.
    aborted: Option<(u64, Arc<str>)>,
}

/// An answer, and what came along.
pub(super) type Answer = Result<(Value, Option<OwnedFd>)>;

impl Questions {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { connection, state: Mutex::default() }
    }

    /// Starts an epoch: aborts of earlier ones are forgotten.
    pub(super) fn reset(&self, epoch: u64) {
        let mut state = self.lock();
        if epoch > state.epoch {
            let aborted = state.aborted.take().filter(|(of, _)| *of >= epoch);
            *state = State { epoch, last: state.last, aborted, ..State::default() };
        }
    }

    /// Passes an answer on to whoever asked.
    pub(super) fn answer(&self, id: u64, answer: Answer) {
        let asked = self.lock().waiting.remove(&id);
        // Whoever asked may have given up.
        _ = asked.map(|asked| asked.send(answer));
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The answer's own; [`Error::Aborted`]; [`Error::Deadline`]; the connection is cut.
    pub(super) fn ask(
        &self,
        operation: &str,
        deadline: Duration,
        question: impl FnOnce(u64, u64) -> Message,
    ) -> Answer {
        self.ask_with(None, operation, deadline, question)
    }

    /// The same, with a descriptor that goes along.
    pub(super) fn ask_with(
        &self,
        fd: Option<OwnedFd>,
        operation: &str,
        deadline: Duration,
        question: impl FnOnce(u64, u64) -> Message,
    ) -> Answer {
        let (tell, told) = mpsc::channel();
        let (id, epoch) = {
            let mut state = self.lock();
            if let Some((_, cause)) = &state.aborted {
                return Err(Error::Aborted { cause: cause.clone() });
            }
            state.last += 1;
            let id = state.last;
            state.waiting.insert(id, tell);
            (id, state.epoch)
        };
        let sent = question(id, epoch).encode().and_then(|packet| self.connection.send(packet, fd));
        let answer = match sent {
            Err(error) => Err(error),
            Ok(()) => told.recv_timeout(deadline).unwrap_or_else(|why| {
                Err(match why {
                    RecvTimeoutError::Timeout => Error::Deadline {
                        operation: operation.to_owned(),
                        after: deadline,
                        state: "the controller has no answer".into(),
                    },
                    // A new epoch has dropped the question.
                    RecvTimeoutError::Disconnected => {
                        Error::Aborted { cause: "the session failed and has recovered since".into() }
                    }
                })
            }),
        };
        self.lock().waiting.remove(&id);
        answer
    }

    fn call(&self, call: StoreCall) -> Result<Value> {
        self.ask("store", LIMIT, |id, epoch| Message::Ask { id, epoch, call }).map(|(value, _)| value)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Questions {
    /// Fails all questions, waiting and to come, unless `epoch` is over.
    pub(super) fn abort(&self, epoch: u64, cause: &Arc<str>) {
        let waiting = {
            let mut state = self.lock();
            if epoch < state.epoch || state.aborted.as_ref().is_some_and(|(known, _)| *known >= epoch) {
                return;
            }
            state.aborted = Some((epoch, cause.clone()));
            std::mem::take(&mut state.waiting)
        };
        for asked in waiting.into_values() {
            _ = asked.send(Err(Error::Aborted { cause: cause.clone() }));
        }
    }
}

impl Store for Questions {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.call(StoreCall::Set(key.into(), value.into())).map(drop)
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        match self.call(StoreCall::Get(key.into()))? {
            Value::None => Ok(None),
            other => bytes(other).map(Some),
        }
    }

    fn wait(&self, key: &str, deadline: Duration) -> Result<Vec<u8>> {
        let operation = format!("store: wait for `{key}`");
        let call = StoreCall::Wait(key.into(), deadline);
        let answer = self.ask(&operation, deadline, |id, epoch| Message::Ask { id, epoch, call });
        match answer {
            Ok((value, _)) => bytes(value),
            Err(Error::Deadline { operation, after, .. }) => {
                Err(Error::Deadline { operation, after, state: "nobody has set it".into() })
            }
            Err(error) => Err(error),
        }
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        match self.call(StoreCall::Add(key.into(), amount))? {
            Value::Int(sum) => Ok(sum),
            other => Err(strange(&other)),
        }
    }

    fn compare_and_set(&self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> Result<Vec<u8>> {
        bytes(self.call(StoreCall::CompareAndSet(key.into(), expected.map(Into::into), new.into()))?)
    }

    fn delete(&self, key: &str) -> Result<bool> {
        match self.call(StoreCall::Delete(key.into()))? {
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
    Error::invalid(format!("store: the controller answered with {}", value.kind()))
}
