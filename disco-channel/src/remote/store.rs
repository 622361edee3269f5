//! The client of the controller's store and descriptors, used by worker processes and nodes.

use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use disco_core::store::{self, SharedStore};
use disco_core::wire::{Message, StoreCall};
use disco_core::{Error, Result, Value};
use disco_engine::pending_requests::PendingRequests;

use crate::remote::reactor::{Connection, Descriptor};

/// Timeout for an answer that does not depend on another worker.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Sends requests to the controller over a connection, and passes the answers to the callers.
pub(crate) struct RemoteStore {
    connection: Arc<Connection>,
    requests: Mutex<PendingRequests<Callback>>,
}

/// Gets the answer to a request.
type Callback = Box<dyn FnOnce(Answer) + Send>;

/// An answer, with the descriptor that came with it.
pub(crate) type Answer = Result<(Value, Option<OwnedFd>)>;

impl RemoteStore {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self { connection, requests: Mutex::default() }
    }

    /// Passes an answer to the caller of request `id`.
    pub(crate) fn answer(&self, id: u64, answer: Answer) {
        let request = self.lock().end(id);
        if let Some(callback) = request {
            callback(answer);
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
        let (sender, receiver) = mpsc::channel();
        let callback: Callback = Box::new(move |answer| _ = sender.send(answer));
        let request = self.lock().ask(callback, deadline, Instant::now());
        let id = self.send(request, fd, question);
        let answer = receiver.recv_timeout(deadline).unwrap_or_else(|_| {
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
        request: Result<u64, (Callback, Error)>,
        fd: Option<OwnedFd>,
        question: impl FnOnce(u64) -> Message,
    ) -> Option<u64> {
        let id = match request {
            Ok(id) => id,
            Err((callback, error)) => {
                callback(Err(error));
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

    fn lock(&self) -> MutexGuard<'_, PendingRequests<Callback>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedStore for RemoteStore {
    fn begin(&self, epoch: u64) {
        let ended = self.lock().begin(epoch);
        ended.into_iter().for_each(|callback| callback(Err(store::over())));
    }

    fn abort(&self, epoch: u64, cause: &Arc<str>) {
        let ended = self.lock().abort(epoch, cause);
        ended.into_iter().for_each(|callback| callback(Err(Error::Aborted { cause: cause.clone().into() })));
    }

    fn call(&self, epoch: u64, call: StoreCall, callback: Box<dyn FnOnce(Result<Value>) + Send>) {
        let deadline = if let StoreCall::Wait(_, deadline) = &call { *deadline } else { ANSWER_LIMIT };
        // The caller may be the first worker of this process in `epoch`.
        self.begin(epoch);
        let callback: Callback = Box::new(|answer| callback(answer.map(|(value, _)| value)));
        let request = self.lock().ask_in(epoch, callback, deadline, Instant::now());
        self.send(request, None, |id| Message::StoreRequest { id, epoch, call });
    }
}

disco_core::format_as!(Debug for RemoteStore, |it| "RemoteStore {{ waiting: {:?}, .. }}", it.lock().count());
