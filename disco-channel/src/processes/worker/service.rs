//! What goes on beside the commands, on a thread of its own, also while a function runs.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use disco_core::{Link, Result, Value};

use super::commands::Letterbox;
use crate::engine::member::serving::{Action, Event, Member};
use crate::reactor::member as driver;
use crate::reactor::{Connection, Incoming, Poller, Waker};
use crate::remote_store::RemoteStore;

/// The service thread of a worker.
pub(super) struct Service {
    pub(super) member: Member,
    pub(super) connection: Arc<Connection>,
    pub(super) incoming: Incoming,
    pub(super) waker: Arc<Waker>,
    pub(super) letterbox: Arc<Letterbox>,
    pub(super) link: Arc<Link>,
    pub(super) store: Arc<RemoteStore>,
    /// The worker's thread has ended its work for this controller.
    pub(super) served: Arc<AtomicBool>,
}

impl Service {
    /// Serves until the controller is gone, and then ends the process unless that happens by itself.
    pub(super) fn run(mut self) {
        while !self.step() {}
    }

    /// Waits for the next events, and does what follows from them. Returns whether nothing is left to do.
    fn step(&mut self) -> bool {
        let connection = self.member.listens().then_some(&*self.connection);
        driver::wait(&mut Poller::default(), connection, &self.waker, self.member.next_timeout());
        if self.served.load(Ordering::Acquire) && self.handle(Event::Left(String::new())) {
            return true;
        }
        if self.member.listens() {
            if let Err(error) = self.connection.flush()
                && self.handle(Event::Failed(error))
            {
                return true;
            }
            let connection = self.connection.clone();
            let mut rounds = driver::ROUNDS;
            while self.member.listens()
                && let Some(event) = driver::next_event(&mut self.incoming, &connection, &mut rounds)
            {
                if self.handle(event) {
                    return true;
                }
            }
        }
        self.handle(Event::Timeout)
    }

    /// Does what follows from an event. Returns whether nothing is left to do.
    fn handle(&mut self, event: Event) -> bool {
        self.member.handle(event, Instant::now());
        while let Some(action) = self.member.next_action() {
            match self.act(action) {
                Ok(false) => {}
                Ok(true) => return true,
                Err(error) => self.member.handle(Event::Failed(error), Instant::now()),
            }
        }
        false
    }

    fn act(&mut self, action: Action) -> Result<bool> {
        let Self { connection, link, store, letterbox, .. } = self;
        match action {
            Action::Send(message) => connection.send(message.encode()?, None)?,
            Action::SendLast(message) => connection.send_last(message.encode()?)?,
            Action::Deliver { seq, bytes } => letterbox.put(seq, bytes),
            Action::Abort { epoch, cause } => link.abort(epoch, &cause),
            Action::Shutdown => letterbox.close(),
            Action::Answer { id, result } => store.answer(id, result.map(|value| (value, None))),
            Action::Hand { id } => {
                let fd = self.incoming.take_fd()?;
                store.answer(id, Ok((Value::None, Some(fd))));
            }
            Action::Look => {
                let progress = link.activity().progress();
                self.member.handle(Event::Progress(0, progress), Instant::now());
            }
            Action::Stop { cause, .. } => {
                link.abort(u64::MAX, &cause);
                letterbox.close();
            }
            Action::Kill => {
                tracing::error!("killed, since the controller is gone and the worker's thread did not end");
                _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            }
            Action::End(_) => return Ok(true),
            // A node's.
            Action::Pass(_) | Action::AwaitWorkers => {}
        }
        Ok(false)
    }
}

impl Drop for Service {
    /// A worker whose service thread panicked hears of no abort: it ends, and with it its controller's waiting.
    fn drop(&mut self) {
        if thread::panicking() {
            process::abort();
        }
    }
}
