//! The worker's side: the loop that executes commands.

use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::abort_cause::AbortCause;
use crate::activity::{Current, RECOVERY, Sampler, TimeLimit};
use crate::calling::Calling;
use crate::channel::{Endpoint, Notice, Reply};
use crate::command::{Command, Local};
pub use crate::config::WorkerConfig;
pub use crate::context::WorkerContext;
use crate::error::{Error, ErrorKind, Failure, Result, UserError, causes, chain, panic_text};
pub use crate::function::Registers;
use crate::function::{self, Args, BoxError, Object};
use crate::id::{RegisterId, WorkerId};
use crate::link::Link;
use crate::metrics;
use crate::tensor::Tensor;
use crate::value::Value;
use crate::wire::Frame;

/// Executes the frames of `endpoint` until a shutdown command arrives or the lane closes. Runs on the worker's own
/// thread.
///
/// # Errors
/// The lane was cut while a reply was due, or it delivered an invalid frame.
pub fn run(worker: WorkerId, config: WorkerConfig, mut endpoint: impl Endpoint) -> Result<()> {
    let span = |worker: WorkerId| tracing::info_span!("worker", id = worker.index()).entered();
    let mut entered = span(worker);
    metrics::describe();
    let link = endpoint.link();
    link.activity().run_here();
    let context = WorkerContext::new(worker, config, link.clone())?;
    let _current = Current::set(link.activity());
    let (registers, sampler, interned) = Default::default();
    let mut state =
        Worker { place: worker, worker, registers, context, link, epoch: 0, failure: None, sampler, interned };
    loop {
        let frame = match endpoint.recv() {
            Ok(frame) => frame,
            Err(Error::Closed(_)) => break,
            Err(error) => return Err(error),
        };
        let seq = frame.seq();
        match state.step(frame) {
            Step::Next => {}
            Step::Answer(reply) => endpoint.reply(seq, reply.map_err(|failure| failure.of_worker(worker)))?,
            Step::Renumbered => {
                drop(entered);
                entered = span(state.worker);
            }
            Step::Leave => break,
        }
    }
    tracing::debug!(worker = %state.worker, "leaves");
    Ok(())
}

/// The state of a worker.
struct Worker {
    /// The number by which the lane knows this worker ([`Members`](crate::Members)).
    place: WorkerId,
    /// The worker's number in the session.
    worker: WorkerId,
    registers: Registers,
    context: WorkerContext,
    link: Arc<Link>,
    epoch: u64,
    /// The first error of this epoch. Later commands are skipped.
    failure: Option<Arc<Failure>>,
    sampler: Sampler,
    /// The name that [`Worker::inside`] has used last, and its number.
    interned: (&'static str, u32),
}

/// The loop's next action after a command.
enum Step {
    Next,
    /// Boxed so that the other variants are cheap to return.
    Answer(Box<Reply>),
    /// The worker has another number.
    Renumbered,
    Leave,
}

impl Step {
    fn answer(reply: Reply) -> Self {
        Self::Answer(Box::new(reply))
    }
}

impl Worker {
    #[inline]
    fn step(&mut self, frame: &Frame) -> Step {
        self.link.activity().receive(frame.seq());
        frame.freed().iter().for_each(|register| self.clear(frame.seq(), *register));
        self.link.activity().start_command(frame.command());
        let step = self.execute(frame.seq(), frame.command());
        self.link.activity().finish(frame.seq(), self.failure.is_none());
        self.link.end_call(frame.seq());
        if self.link.activity().has_timeline() {
            self.sample();
        }
        step
    }

    /// Records the worker's counters, if they are due.
    fn sample(&mut self) {
        if let Some(arena) = self.link.arena().filter(|_| self.sampler.is_due()) {
            self.sampler.sample(self.link.activity(), "bytes of shared tensors", arena.used() as u64);
        }
    }

    #[inline]
    fn execute(&mut self, seq: u64, command: &Command) -> Step {
        let operation = command.name();
        match command {
            Command::Shutdown => return Step::Leave,
            Command::KillReg { register } => self.clear(seq, *register),
            Command::GetGlobalFunc { register, name } => {
                let find = |_: &mut Self| Ok(Object::Function(function::find(name)?));
                self.set(seq, operation, *register, find);
            }
            Command::CallPacked { register, function, args } => {
                self.call(seq, *register, *function, args);
            }
            Command::CallWith { register, function, args, calling } => {
                self.call_with(seq, *register, *function, args, calling);
                if calling.answers == Some(self.place) {
                    return Step::answer(self.returned(seq, *register, *function));
                }
            }
            Command::SyncWorker { worker } if *worker == self.place => {
                return Step::answer(self.sync(seq, operation));
            }
            Command::SyncAll => return Step::answer(self.sync(seq, operation)),
            Command::DebugGet { register, worker } if *worker == self.place => {
                return Step::answer(self.inside(operation, |this| this.get(seq, operation, *register)));
            }
            Command::GetAll { register } => {
                return Step::answer(self.inside(operation, |this| this.get(seq, operation, *register)));
            }
            Command::DebugSet { register, worker, value } if *worker == self.place => {
                let assign = |this: &mut Self| this.assign(*register, value);
                let reply = self.inside(operation, |this| this.attempt(seq, operation, Some(*register), assign));
                return Step::answer(reply.map(|()| Value::None));
            }
            Command::CopyFromWorker0 { register, host: Local(Some(host)) } if self.is_worker_0() => {
                _ = self.attempt(seq, operation, Some(*register), |this| {
                    let tensor = this.tensor(*register)?;
                    Ok(this.context.queue().copy_out(host, &tensor)?)
                });
            }
            Command::CopyToWorker0 { register, host: Local(Some(host)) } if self.is_worker_0() => {
                _ = self.attempt(seq, operation, Some(*register), |this| {
                    let tensor = this.tensor(*register)?;
                    Ok(this.context.queue().copy_in(&tensor, host)?)
                });
            }
            Command::Recover { epoch } => self.recover(seq, *epoch),
            Command::Resize { epoch, members } => {
                let Some(worker) = members.worker(self.place) else { return Step::Leave };
                self.recover(seq, *epoch);
                self.worker = worker;
                self.context.renumber(worker, members.world());
                return Step::Renumbered;
            }
            // The command is for another worker.
            Command::SyncWorker { .. }
            | Command::DebugGet { .. }
            | Command::DebugSet { .. }
            | Command::CopyFromWorker0 { .. }
            | Command::CopyToWorker0 { .. } => {}
        }
        Step::Next
    }

    #[inline]
    fn call(&mut self, seq: u64, register: RegisterId, function: RegisterId, args: &[Value]) {
        let function = match self.registers.object(function) {
            Ok(Object::Function(function)) => function.clone(),
            found => {
                let error = match found {
                    Ok(other) => Error::invalid(format!("{function} holds {}, not a function", other.kind())),
                    Err(error) => error,
                };
                return self.set(seq, "call", register, |_| Err(error.into()));
            }
        };
        if let Some(cause) = self.link.cancelled(seq) {
            return self.set(seq, function.name(), register, |_| Err(Error::Cancelled { cause }.into()));
        }
        for arg in args {
            arg.visit_tensors(&mut |tensor| tensor.storage().note_argument());
        }
        let activity = self.link.activity();
        activity.enter(function.tag(activity), function.limit());
        self.set(seq, function.name(), register, |this| {
            let call = || function.call(&mut this.context, &Args::new(args, &this.registers));
            function.calls().time(function.name(), call)
        });
        self.link.activity().leave();
    }

    /// A call of some workers, with arguments of their own, or with results that come while it runs.
    #[inline(never)]
    fn call_with(&mut self, seq: u64, register: RegisterId, function: RegisterId, args: &[Value], calling: &Calling) {
        let world = self.context.world();
        if calling.streams {
            self.context.begin_stream(seq);
        }
        match calling.part(args, self.worker, world) {
            Ok(Some(args)) => self.call(seq, register, function, args),
            Ok(None) => self.set(seq, "call", register, |_| Ok(Object::Value(Value::None))),
            Err(error) => self.set(seq, "call", register, |_| Err(error.into())),
        }
        if calling.streams {
            let outcome = match self.registers.object(register) {
                Err(Error::Worker(failure)) => Err(failure),
                _ => Ok(()),
            };
            self.context.end_stream(seq, outcome);
        }
    }

    /// The result of a call, for its reply. Records keep the name of the function.
    fn returned(&mut self, seq: u64, register: RegisterId, function: RegisterId) -> Reply {
        let activity = self.link.activity();
        let tag = match self.registers.object(function) {
            Ok(Object::Function(function)) => function.tag(activity),
            _ => activity.intern("call"),
        };
        activity.enter(tag, TimeLimit::Own);
        let reply = self.get(seq, "call", register);
        self.link.activity().leave();
        reply
    }

    fn sync(&mut self, seq: u64, name: &'static str) -> Reply {
        let synced = self.inside(name, |this| this.attempt(seq, name, None, |this| Ok(this.context.synchronize()?)));
        synced.map(|()| Value::None)
    }

    /// Runs `work`, which may wait for the device. The worker counts as inside function `name`, so the reply deadline
    /// does not apply.
    fn inside<T>(&mut self, name: &'static str, work: impl FnOnce(&mut Self) -> T) -> T {
        let activity = self.link.activity();
        if self.interned.0 != name {
            self.interned = (name, activity.intern(name));
        }
        activity.enter(self.interned.1, TimeLimit::Own);
        let result = work(self);
        self.link.activity().leave();
        result
    }

    /// Empties a register. A destructor that panics is the worker's failure.
    #[inline]
    fn clear(&mut self, seq: u64, register: RegisterId) {
        let free = |this: &mut Self| {
            this.registers.clear(register);
            Ok(())
        };
        _ = self.run(seq, "free", Some(register), free);
    }

    /// The value of a register. Also works on a poisoned worker, if the register was set before the error.
    fn get(&mut self, seq: u64, name: &str, register: RegisterId) -> Reply {
        let value = match self.registers.object(register) {
            Ok(Object::Value(value @ (Value::Tensor(_) | Value::Array(_) | Value::Map(_) | Value::Tagged(..)))) => {
                value.clone().map_tensors(&mut |tensor| self.context.on_host(tensor))
            }
            Ok(Object::Value(value)) => Ok(value.clone()),
            Ok(other) => Err(Error::invalid(format!("{} can't leave its worker", other.kind()))),
            Err(error) => Err(error),
        };
        value.map_err(|error| match (error, &self.failure) {
            (Error::Worker(failure), _) => failure,
            (_, Some(failure)) => failure.clone(),
            (error, None) => Arc::new(describe(self.worker, seq, name, Some(register), &error)),
        })
    }

    /// Copies a tensor into the register's tensor, or into a new tensor on the worker's device. The copy is complete when this
    /// returns, since the controller uses the memory again that a tensor comes in. Other values replace the register's
    /// content.
    fn assign(&mut self, register: RegisterId, value: &Value) -> Result<(), BoxError> {
        self.context.synchronize()?;
        let Value::Tensor(new) = value else {
            self.registers.set(register, Object::Value(value.clone()));
            return Ok(());
        };
        // The storage of a tensor argument may be shared with other workers.
        if let Some(old) = self.tensor(register).ok().filter(|old| !old.storage().is_argument()) {
            if (old.dtype(), old.shape()) != (new.dtype(), new.shape()) {
                let text = format!("{new} does not fit into the worker's {old}; dtype and shape must be equal");
                return Err(Error::invalid(text).into());
            }
            self.context.queue().copy_in(&old, new)?;
            return Ok(self.context.synchronize()?);
        }
        let own = self.context.empty(new.dtype(), new.shape().clone())?;
        self.context.queue().copy_in(&own, new)?;
        self.context.synchronize()?;
        self.registers.set(register, Object::Value(Value::Tensor(own)));
        Ok(())
    }

    fn tensor(&self, register: RegisterId) -> Result<Tensor> {
        match self.registers.object(register)? {
            Object::Value(Value::Tensor(tensor)) => Ok(tensor.clone()),
            other => Err(Error::invalid(format!("{register} holds {}, not a tensor", other.kind()))),
        }
    }

    fn recover(&mut self, seq: u64, epoch: u64) {
        // The first command of a session has number 1: this worker has missed the ones before.
        if seq > 1 && self.link.activity().finished() == 0 {
            self.registers.note_new(epoch);
        }
        self.epoch = epoch;
        self.failure = None;
        let activity = self.link.activity();
        activity.mark(activity.intern(RECOVERY));
        self.context.disconnect();
        self.link.reset(epoch);
    }

    fn is_worker_0(&self) -> bool {
        self.worker.index() == 0
    }

    /// Sets a register to the result of `make`. Poisons the register if `make` fails or this worker has failed before.
    #[inline]
    fn set(
        &mut self,
        seq: u64,
        operation: &str,
        register: RegisterId,
        make: impl FnOnce(&mut Self) -> Result<Object, BoxError>,
    ) {
        let set = |this: &mut Self| {
            // Set here, since each step that a result is passed through copies it.
            let object = make(this)?;
            this.registers.set(register, object);
            Ok(())
        };
        if let Err(failure) = self.attempt(seq, operation, Some(register), set) {
            self.registers.poison(register, failure);
        }
    }

    /// Runs the work of one command, unless this worker has failed before.
    #[inline]
    fn attempt<T>(
        &mut self,
        seq: u64,
        operation: &str,
        register: Option<RegisterId>,
        work: impl FnOnce(&mut Self) -> Result<T, BoxError>,
    ) -> Result<T, Arc<Failure>> {
        match &self.failure {
            Some(failure) => Err(failure.clone()),
            None => self.run(seq, operation, register, work),
        }
    }

    /// Runs `work`. Its first error or panic becomes the worker's failure and is reported to the controller at once,
    /// unless the controller has cancelled it.
    #[inline]
    fn run<T>(
        &mut self,
        seq: u64,
        operation: &str,
        register: Option<RegisterId>,
        work: impl FnOnce(&mut Self) -> Result<T, BoxError>,
    ) -> Result<T, Arc<Failure>> {
        catch(|| work(self)).map_err(|error| {
            let cancelled = self.link.cancelled(seq);
            let failure = describe(self.worker, seq, operation, register, &*error);
            if let Some(cause) = cancelled
                && failure.kind != ErrorKind::Panicked
            {
                // An operation that a peer has ended before this worker learned of the cancellation.
                let is_ended = matches!(failure.kind, ErrorKind::Aborted | ErrorKind::Broken);
                let message = if is_ended { Error::Cancelled { cause }.to_string() } else { failure.message };
                return Arc::new(Failure { kind: ErrorKind::Cancelled, aborted: false, message, ..failure });
            }
            let failure = Arc::new(failure);
            metrics::failure(operation);
            if self.failure.is_none() {
                self.failure = Some(failure.clone());
                let failure = failure.clone().of_worker(self.place);
                self.link.notify(Notice::Failed { epoch: self.epoch, failure });
            }
            failure
        })
    }
}

/// An error for a panic of user code.
#[derive(Debug, thiserror::Error)]
#[error("panicked: {0}")]
struct Panicked(String);

/// Runs `work` and converts a panic to an error. With `panic = "abort"`, a panic ends the process.
#[inline]
fn catch<T>(work: impl FnOnce() -> Result<T, BoxError>) -> Result<T, BoxError> {
    // A panic can only corrupt the state of this worker, which is poisoned afterwards.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(Panicked(panic_text(&*payload)).into()))
}

/// The failure with its operation, position and cause.
fn describe(
    worker: WorkerId,
    command: u64,
    operation: &str,
    register: Option<RegisterId>,
    error: &(dyn StdError + 'static),
) -> Failure {
    Failure {
        worker,
        command,
        operation: operation.to_owned(),
        register,
        message: error.to_string(),
        causes: causes(error),
        aborted: AbortCause::find(error).is_some(),
        kind: if error.is::<Panicked>() { ErrorKind::Panicked } else { ErrorKind::of(error) },
        // If the program's serde code panics, only the value of the error is lost.
        user: catch_unwind(AssertUnwindSafe(|| chain(error).find_map(UserError::of))).unwrap_or(None),
    }
}
