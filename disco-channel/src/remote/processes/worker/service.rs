//! The service thread's part of a worker process: handles aborts, answers and heartbeats while a worker function runs.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use disco_core::channel::Signal;
use disco_core::wire::Message;
use disco_core::{Link, Result, Value};
use disco_engine::limits::MAX_SENT_RECORDS;
use disco_engine::member::serving::{Action, Event, Member};

use super::commands::{Large, Letterbox};
use crate::remote::reactor::member::Host;
use crate::remote::reactor::{Connection, Incoming};
use crate::remote::store::RemoteStore;

/// How the worker's thread and its service thread end.
#[derive(Debug, Default)]
pub(super) struct End {
    /// The worker's thread has finished its work for this controller.
    pub(super) is_served: AtomicBool,
    /// The controller is lost: the service thread ends as soon as the worker's thread has ended.
    pub(super) is_stopped: AtomicBool,
}

/// The [`Host`] of a worker's member engine.
pub(super) struct Service {
    pub(super) connection: Arc<Connection>,
    pub(super) letterbox: Arc<Letterbox>,
    pub(super) link: Arc<Link>,
    pub(super) store: Arc<RemoteStore>,
    /// Whether progress is polled rarely.
    pub(super) rests: bool,
    pub(super) end: Arc<End>,
    /// Whether the process has no other session's worker.
    pub(super) owns_process: bool,
}

impl Host for Service {
    // The processor is left to the worker's own thread.
    const STAYS_AWAKE: bool = false;

    fn next_event(&mut self, _: &Member) -> Option<Event> {
        if self.end.is_served.swap(false, Ordering::AcqRel) {
            return Some(Event::Left(String::new()));
        }
        (self.rests && !self.letterbox.rests()).then(|| {
            self.rests = false;
            Event::WorkerRuns
        })
    }

    fn act(&mut self, action: Action, incoming: &mut Incoming) -> Result<Vec<Event>> {
        let Self { connection, link, store, letterbox, end, .. } = self;
        match action {
            Action::Rest => {
                letterbox.rest();
                self.rests = true;
            }
            Action::Send(message) => connection.send(message.encode()?, None)?,
            Action::SendLast(message) => connection.send_last(message.encode()?)?,
            Action::Deliver { seq, bytes, received } => {
                letterbox.put(Large { seq, bytes, beside: incoming.take_beside()?, received });
            }
            Action::Signal(Signal::Abort { epoch, cause }) => link.abort(epoch, &cause),
            Action::Signal(Signal::Cancel { command, cause }) => link.cancel(command, &cause),
            Action::Signal(Signal::Settle { command, breaks }) => link.settle(command, breaks.as_ref()),
            Action::Signal(Signal::Taken { command, count, .. }) => link.note_taken(command, count),
            Action::Signal(Signal::Shutdown) => letterbox.close(),
            Action::Answer { id, result } => store.answer(id, result.map(|value| (value, None))),
            Action::DeliverDescriptor { id } => store.answer(id, Ok((Value::None, Some(incoming.take_fd()?)))),
            Action::ReadProgress => return Ok(vec![Event::Progress(vec![link.activity().progress()])]),
            Action::Signal(Signal::Collect { last }) => {
                let bytes = link.activity().encode(last.min(MAX_SENT_RECORDS)).into();
                connection.send_last(Message::Recording(bytes).encode()?)?;
            }
            Action::Stop { cause, .. } => {
                end.is_stopped.store(true, Ordering::Release);
                link.abort(u64::MAX, &cause);
                letterbox.close();
            }
            Action::Kill if !self.owns_process => {
                tracing::warn!("a worker of a subset has not ended in time: its thread is left behind");
            }
            Action::Kill => {
                tracing::error!(
                    "the controller is lost and the worker's thread did not end in time: this process kills itself"
                );
                _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            }
            // Only nodes get the first two; the driver handles `End`.
            Action::Pass(_) | Action::AwaitWorkers | Action::End(_) | Action::Signal(_) => {}
        }
        Ok(Vec::new())
    }
}

impl Drop for Service {
    /// Ends the process if the service thread panics: the worker could no longer be aborted, and the controller would
    /// wait for it.
    fn drop(&mut self) {
        if thread::panicking() {
            process::abort();
        }
    }
}
