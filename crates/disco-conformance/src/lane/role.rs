//! The behaviour of workers at the end of a lane.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use disco_core::activity::TimeLimit;
use disco_core::channel::Notice;
use disco_core::error::{ErrorKind, Failure, UserError};
use disco_core::sync;
use disco_core::{Abort, AbortCause, Command, Endpoint, Error, Frame, Link, Result, Store, Value, WorkerId};

use super::frames::{fingerprint, range};
use crate::waiting;

/// How long a worker waits for an abort or for its peers.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// The behaviour of all workers of a lane.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Replies to each frame with its fingerprint, and to a `sync_worker` of this worker with a failure. Leaves at
    /// shutdown, and at a resize that leaves its place out.
    Recite,
    /// Waits for an abort before the first frame, replies to command 0 with its cause, then behaves like `Recite`.
    AwaitAbort,
    /// Sends a notice at once, then behaves like `Recite`.
    Notify,
    /// At the first frame, depending on the worker's number modulo 4: panics, fails, returns, or behaves like `Recite`.
    EndEarly,
    /// At the first frame, workers with odd numbers hang in a function named `f`; the others behave like `Recite`.
    Stick,
    /// Replies to a frame once all workers that the frame names have written to the store.
    Meet,
    /// At a recovery, workers with even numbers begin its epoch; the others stay in the old one. Replies to each frame
    /// with two results: whether the first store of the worker works, and whether its current store works.
    Recover,
    /// Answers each frame with 8 MiB, after 300 ms.
    Enlarge,
    /// Replies to each frame without a value.
    Acknowledge,
}

/// Time that [`Role::Enlarge`] takes to reply: longer than lanes may wait before they look for the loss of the other end.
const SLOW_REPLY: Duration = Duration::from_millis(300);

impl Role {
    /// All of them.
    pub const ALL: [Role; 9] = [
        Self::Recite,
        Self::AwaitAbort,
        Self::Notify,
        Self::EndEarly,
        Self::Stick,
        Self::Meet,
        Self::Recover,
        Self::Enlarge,
        Self::Acknowledge,
    ];

    /// The name, with which a worker process can be started.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recite => "recite",
            Self::AwaitAbort => "await_abort",
            Self::Notify => "notify",
            Self::EndEarly => "end_early",
            Self::Stick => "stick",
            Self::Meet => "meet",
            Self::Recover => "recover",
            Self::Enlarge => "enlarge",
            Self::Acknowledge => "acknowledge",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|role| role.name() == name);
        found.ok_or_else(|| Error::invalid(format!("there is no role `{name}`")))
    }
}

/// Plays a role to its end. A lane runs this on each of its workers.
///
/// # Errors
/// Errors of the endpoint; the failure of [`Role::EndEarly`].
pub fn play(role: Role, worker: WorkerId, mut endpoint: impl Endpoint) -> Result<()> {
    let mut player = Player { role, worker, frames: 0, store: endpoint.link().store() };
    match role {
        Role::AwaitAbort => {
            let cause = wait_for_abort(&endpoint)?;
            endpoint.reply(0, Ok(Value::from(cause.to_string())))?;
        }
        Role::Notify => endpoint.link().notify(Notice::Failed { epoch: 0, failure: failure(worker, 4) }),
        _ => {}
    }
    let link = endpoint.link();
    while let Ok(frame) = endpoint.recv() {
        let seq = frame.seq();
        player.frames += 1;
        link.activity().receive(seq);
        let is_told = match frame.command() {
            Command::Shutdown => true,
            Command::Resize { members, .. } => members.worker(worker).is_none(),
            _ => false,
        };
        if is_told || player.leaves()? {
            break;
        }
        let reply = player.answer(&link, frame);
        link.activity().finish(seq, true);
        endpoint.reply(seq, reply)?;
    }
    Ok(())
}

struct Player {
    role: Role,
    worker: WorkerId,
    frames: usize,
    /// The first store of the worker.
    store: Arc<dyn Store>,
}

impl Player {
    /// Whether the worker leaves early.
    fn leaves(&self) -> Result<bool> {
        match (self.role, self.worker.index() % 4) {
            // Panics without the output of `panic!`.
            (Role::EndEarly, 0) => std::panic::resume_unwind(Box::new("out of luck")),
            (Role::EndEarly, 1) => Err(Error::invalid("out of memory")),
            (Role::EndEarly, 2) => Ok(true),
            _ => Ok(false),
        }
    }

    fn answer(&self, link: &Link, frame: &Frame) -> Result<Value, Arc<Failure>> {
        let seq = frame.seq();
        match (self.role, frame.command()) {
            (Role::Stick, _) if self.frames == 1 && !self.worker.index().is_multiple_of(2) => {
                let activity = link.activity();
                activity.enter(activity.intern("f"), TimeLimit::Call);
                waiting::hang()
            }
            (Role::Recover, command) => {
                if let Command::Recover { epoch } = command
                    && self.worker.index().is_multiple_of(2)
                {
                    link.reset(*epoch);
                }
                let works = |store: &dyn Store| store.add("count", 1).is_ok();
                Ok(Value::from(format!("{}, {}", works(&*self.store), works(&*link.store()))))
            }
            (Role::Acknowledge, _) => Ok(Value::None),
            (Role::Enlarge, _) => {
                thread::sleep(SLOW_REPLY);
                Ok(Value::from(vec![7u8; 8 << 20]))
            }
            (Role::Meet, command) => self.meet(link, seq, command).map_err(|error| {
                let message = error.to_string();
                Arc::new(Failure { message, ..(*failure(self.worker, seq)).clone() })
            }),
            (_, Command::SyncWorker { worker }) if *worker == self.worker => Err(failure(self.worker, seq)),
            _ => Ok(Value::from(fingerprint(frame))),
        }
    }

    /// Writes to the store and waits until the other workers have.
    fn meet(&self, link: &Link, seq: u64, command: &Command) -> Result<Value> {
        let (store, me) = (link.store(), self.worker.index());
        let key = |worker: usize| format!("meeting {seq}: {worker}");
        store.set(&key(me), &[me as u8])?;
        let mut met = Vec::new();
        for worker in range(command) {
            met.extend(store.wait(&key(worker), WAIT_LIMIT)?);
        }
        store.add(&format!("meeting {seq}"), 1)?;
        Ok(Value::from(met))
    }
}

/// Waits for the abort of the session.
fn wait_for_abort(endpoint: &impl Endpoint) -> Result<AbortCause> {
    let (sender, receiver) = mpsc::channel();
    let sender: Arc<dyn Abort> = Arc::new(AbortSender(Mutex::new(sender)));
    endpoint.link().on_abort(&sender);
    receiver.recv_timeout(WAIT_LIMIT).map_err(|_| Error::invalid("no abort arrived"))
}

struct AbortSender(Mutex<mpsc::Sender<AbortCause>>);

impl Abort for AbortSender {
    fn abort(&self, cause: &AbortCause) {
        // The receiver is dropped after the first abort.
        _ = sync::lock(&self.0).send(cause.clone());
    }
}

/// The failure that a worker reports.
pub(super) fn failure(worker: WorkerId, command: u64) -> Arc<Failure> {
    Arc::new(Failure {
        worker,
        command,
        operation: "f".into(),
        register: None,
        message: "no luck".into(),
        causes: vec!["a cause".into()],
        aborted: false,
        kind: ErrorKind::OutOfMemory { bytes: 1 << 40 },
        user: UserError::new("conformance::Unlucky", *b"three draws"),
    })
}
