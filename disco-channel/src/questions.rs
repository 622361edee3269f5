//! Questions to the controller, of a worker or of a node: the store, descriptors.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use disco_core::store::{self, SharedStore};
use disco_core::wire::{Message, StoreCall};
use disco_core::{Error, Result, Value};

use crate::connection::Connection;

/// How long an answer may take that waits for nobody.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Questions under way: the store, to whom it is elsewhere.
pub(crate) struct Questions {
    connection: Arc<Connection>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    epoch: u64,
    last: u64,
    waiting: HashMap<u64, Waiting>,
    /// Why there are no answers, and since which epoch: it may be ahead of this worker.
    aborted: Option<(u64, Arc<str>)>,
}

/// Whoever waits for an answer.
struct Waiting {
    /// When it does no more.
    until: Option<Instant>,
    tell: Tell,
}

/// Takes an answer.
type Tell = Box<dyn FnOnce(Answer) + Send>;

/// An answer, and what came along.
pub(crate) type Answer = Result<(Value, Option<OwnedFd>)>;

impl Questions {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self { connection, state: Mutex::default() }
    }

    /// Passes an answer on to whoever asked.
    pub(crate) fn answer(&self, id: u64, answer: Answer) {
        let asked = self.lock().waiting.remove(&id);
        if let Some(asked) = asked {
            (asked.tell)(answer);
        }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The answer's own; [`Error::Aborted`]; [`Error::Deadline`]; the connection is cut.
    pub(crate) fn ask(&self, operation: &str, deadline: Duration, question: impl FnOnce(u64) -> Message) -> Answer {
        self.ask_with(None, operation, deadline, question)
    }

    /// The same, with a descriptor that goes along.
    pub(crate) fn ask_with(
        &self,
        fd: Option<OwnedFd>,
        operation: &str,
        deadline: Duration,
        question: impl FnOnce(u64) -> Message,
    ) -> Answer {
        let (tell, told) = mpsc::channel();
        // Whoever asked may have given up.
        let asked = self.put(fd, deadline, question, Box::new(move |answer| _ = tell.send(answer)));
        let answer = told.recv_timeout(deadline).unwrap_or_else(|_| {
            Err(Error::Deadline {
                operation: operation.to_owned(),
                after: deadline,
                state: "the controller has no answer".into(),
            })
        });
        if let Some(id) = asked {
            self.lock().waiting.remove(&id);
        }
        answer
    }

    /// Asks, and returns the number of the question; `tell` takes the answer, or why there is none.
    fn put(
        &self,
        fd: Option<OwnedFd>,
        deadline: Duration,
        question: impl FnOnce(u64) -> Message,
        tell: Tell,
    ) -> Option<u64> {
        let now = Instant::now();
        let mut state = self.lock();
        if let Some((_, cause)) = &state.aborted {
            let aborted = Error::Aborted { cause: cause.clone() };
            drop(state);
            tell(Err(aborted));
            return None;
        }
        state.waiting.retain(|_, waiting| waiting.until.is_none_or(|until| until > now));
        state.last += 1;
        let id = state.last;
        state.waiting.insert(id, Waiting { until: now.checked_add(deadline), tell });
        drop(state);
        let sent = question(id).encode().and_then(|packet| self.connection.send(packet, fd));
        if let Err(error) = sent {
            self.answer(id, Err(error));
        }
        Some(id)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedStore for Questions {
    fn begin(&self, epoch: u64) {
        let mut state = self.lock();
        if epoch > state.epoch {
            let aborted = state.aborted.take().filter(|(of, _)| *of >= epoch);
            let waiting = std::mem::take(&mut state.waiting);
            (state.epoch, state.aborted) = (epoch, aborted);
            drop(state);
            waiting.into_values().for_each(|asked| (asked.tell)(Err(store::over())));
        }
    }

    fn abort(&self, epoch: u64, cause: &Arc<str>) {
        let waiting = {
            let mut state = self.lock();
            if epoch < state.epoch || state.aborted.as_ref().is_some_and(|(known, _)| *known >= epoch) {
                return;
            }
            state.aborted = Some((epoch, cause.clone()));
            std::mem::take(&mut state.waiting)
        };
        for asked in waiting.into_values() {
            (asked.tell)(Err(Error::Aborted { cause: cause.clone() }));
        }
    }

    fn call(&self, epoch: u64, call: StoreCall, tell: Box<dyn FnOnce(Result<Value>) + Send>) {
        let deadline = if let StoreCall::Wait(_, deadline) = &call { *deadline } else { LIMIT };
        // The caller may be the first worker of this process in `epoch`.
        self.begin(epoch);
        if epoch < self.lock().epoch {
            return tell(Err(store::over()));
        }
        let question = |id| Message::Ask { id, epoch, call };
        self.put(None, deadline, question, Box::new(|answer| tell(answer.map(|(value, _)| value))));
    }
}

impl fmt::Debug for Questions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Questions").field("waiting", &self.lock().waiting.len()).finish_non_exhaustive()
    }
}
