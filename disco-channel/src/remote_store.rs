//! The client of the controller's store and descriptors, used by worker processes and nodes.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use disco_core::store::{self, SharedStore};
use disco_core::wire::{Message, StoreCall};
use disco_core::{Error, Result, Value};

use crate::engine::pending_requests::PendingRequests;
use crate::reactor::{Connection, Descriptor};

/// Timeout for an answer that does not depend on another worker.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Sends requests to the controller over a connection, and passes the answers to the callers.
pub(crate) struct RemoteStore {
    connection: Arc<Connection>,
    requests: Mutex<PendingRequests<Tell>>,
}

/// Gets the answer to a request.
type Tell = Box<dyn FnOnce(Answer) + Send>;

/// An answer, with the descriptor that came with it.
pub(crate) type Answer = Result<(Value, Option<OwnedFd>)>;

impl RemoteStore {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self { connection, requests: Mutex::default() }
    }

    /// Passes an answer to the caller of request `id`.
    pub(crate) fn answer(&self, id: u64, answer: Answer) {
        let asked = self.lock().end(id);
        if let Some(tell) = asked {
            tell(answer);
        }
    }

    /// Sends a request, with a descriptor if given, and waits for the answer.
    ///
    /// # Errors
    /// The answer is an error; [`Error::Aborted`]; [`Error::Deadline`]; the connection is closed.
    pub(crate) fn ask(
        &self,
        fd: Option<OwnedFd>,
        operation: &str,
        deadline: Duration,
        question: impl FnOnce(u64) -> Message,
    ) -> Answer {
        let (tell, told) = mpsc::channel();
        let tell: Tell = Box::new(move |answer| _ = tell.send(answer));
        let asked = self.lock().ask(tell, deadline, Instant::now());
        let id = self.send(asked, fd, question);
        let answer = told.recv_timeout(deadline).unwrap_or_else(|_| {
            Err(Error::Deadline {
                operation: operation.to_owned(),
                after: deadline,
                state: "the controller has no answer".into(),
            })
        });
        _ = id.and_then(|id| self.lock().end(id));
        answer
    }

    /// Sends a request that was given an id. An error, also of sending, goes to the caller as the answer.
    fn send(
        &self,
        asked: Result<u64, (Tell, Error)>,
        fd: Option<OwnedFd>,
        question: impl FnOnce(u64) -> Message,
    ) -> Option<u64> {
        let id = match asked {
            Ok(id) => id,
            Err((tell, error)) => {
                tell(Err(error));
                return None;
            }
        };
        let sent = question(id)
            .encode()
            .and_then(|packet| self.connection.send(packet, fd.map(|fd| Arc::new(fd) as Descriptor)));
        if let Err(error) = sent {
            self.answer(id, Err(error));
        }
        Some(id)
    }

    fn lock(&self) -> MutexGuard<'_, PendingRequests<Tell>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedStore for RemoteStore {
    fn begin(&self, epoch: u64) {
        let ended = self.lock().begin(epoch);
        ended.into_iter().for_each(|tell| tell(Err(store::over())));
    }

    fn abort(&self, epoch: u64, cause: &Arc<str>) {
        let ended = self.lock().abort(epoch, cause);
        ended.into_iter().for_each(|tell| tell(Err(Error::Aborted { cause: cause.clone() })));
    }

    fn call(&self, epoch: u64, call: StoreCall, tell: Box<dyn FnOnce(Result<Value>) + Send>) {
        let deadline = if let StoreCall::Wait(_, deadline) = &call { *deadline } else { ANSWER_LIMIT };
        // The caller may be the first worker of this process in `epoch`.
        self.begin(epoch);
        let tell: Tell = Box::new(|answer| tell(answer.map(|(value, _)| value)));
        let asked = self.lock().ask_in(epoch, tell, deadline, Instant::now());
        self.send(asked, None, |id| Message::StoreRequest { id, epoch, call });
    }
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteStore").field("waiting", &self.lock().len()).finish_non_exhaustive()
    }
}
