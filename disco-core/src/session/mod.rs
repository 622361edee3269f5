//! The controller's side: sessions, their handles, and the implementation over lanes.
//!
//! ```text
//! calls, values    methods of every session                       submission    a call that was submitted, or waits
//! lane_session     the session over lanes                         methods       what every session is, over lanes
//! shutdown, closing  its end                                      config        its settings
//! observer         its status and records, from outside           results, returned  results of calls
//! changed          results of changes of workers                  subset        sessions of some workers
//! changing         one loop for all changes                       at_once       the thread that starts workers ahead
//! plan             which workers there will be                    new_lanes, helpers   lanes to new workers; threads
//! replacement_policy  when workers are replaced, and how often
//! ```

mod at_once;
mod calls;
mod changed;
mod changing;
mod closing;
mod config;
mod helpers;
mod lane_session;
mod methods;
mod new_lanes;
mod observer;
mod plan;
mod replacement_policy;
mod results;
mod returned;
mod shutdown;
mod submission;
mod subset;
mod values;

use std::fmt::Debug;

use async_trait::async_trait;

pub use calls::Callee;
pub use changed::{Replaced, Resized};
pub use config::SessionConfig;
pub use lane_session::LaneSession;
pub use observer::Observer;
pub use replacement_policy::ReplacementPolicy;
pub use results::Results;
pub use returned::Returned;
pub use submission::Submission;
pub use subset::JOIN_SUBSET;

use crate::error::{Error, Result};
use crate::id::WorkerId;
pub use crate::stream::{Arguments, DRef, Deadlines, IntoArg, IntoArgs, Recordings, Timeline};
use crate::tensor::Tensor;
use crate::value::Value;
use crate::world::World;

/// The primary interface: owns the workers and sends them commands. Several threads may use a session at once; all
/// workers execute the commands in the same order.
///
/// This page has all methods for programs: those of the trait, and those of every `dyn Session`.
/// [`LaneSession`] derefs to `dyn Session`, so a program imports nothing for them; another implementation is used as
/// `&dyn Session`. An implementation may keep the defaults.
///
/// ```
/// use disco_core::{Result, Session, WorkerContext, WorkerId};
///
/// fn count(_: &mut WorkerContext, from: usize) -> Result<usize> {
///     Ok(from + 1)
/// }
///
/// disco_core::register_function!("example.count", count);
///
/// async fn count_twice(session: &dyn Session) -> Result<usize> {
///     let count = session.function("example.count").await?;
///     // Both calls return at once; the result of the first stays on the workers.
///     let one = session.call(&count, (0,)).await?;
///     let two = session.call(&count, (&one,)).await?;
///     let two = session.get(&two, WorkerId::new(0)).await?;
///     session.shutdown().await?;
///     Ok(two)
/// }
/// ```
///
/// # Errors
/// All methods fail with [`Error::Closed`] after shutdown,
/// [`Error::ForeignRef`] for a handle of another session,
/// [`Error::NoSuchWorker`], and [`Error::Lost`] once a worker is lost,
/// until it is [replaced](Session::replace_lost) (with [`ReplacementPolicy::at_once`], once).
/// Methods that await no reply return the first known failure of any worker
/// ([`Error::Earlier`]), and [`Error::Stalled`] when a worker has taken
/// no commands for too long. Methods that await a reply return the failure in the reply, and
/// [`Error::Deadline`] with the workers that do not reply and their progress.
///
/// # Cancel safety
/// If the future of a method is dropped, its command was either submitted or not, never in part. If the command was
/// submitted, its reply is discarded.
#[async_trait]
pub trait Session: Debug + Send + Sync {
    /// The workers of the session and their groups.
    fn world(&self) -> World;

    /// Looks up a worker function on all workers. Repeated calls return the same register.
    async fn function(&self, name: &str) -> Result<DRef>;

    /// Calls a worker function on all workers without awaiting a reply. The handle stands for the results.
    ///
    /// Each worker process gets a copy of each tensor argument, which its threads share; thread workers of the
    /// controller's process share the controller's tensors. If workers are in other processes, all arguments together
    /// are limited to [`WorkerConfig::value_limit`](crate::worker::WorkerConfig::value_limit). The program must not
    /// write to the tensors before the next sync: a write fails with [`Error::Busy`] while a tensor
    /// is being sent or a worker reads it.
    ///
    /// The call is submitted before this returns ([`Submission::Now`]), unless it has to wait ([`Submission::Later`]): that one
    /// is submitted when it is awaited. Dropping a `Now` does not take the call back.
    fn submit<'s>(&'s self, function: &'s DRef, args: Arguments) -> Submission<'s>;

    /// Cancels a call on all workers, for the reason `why`; does nothing where it has ended. Never waits.
    ///
    /// - A worker that has not begun the call leaves it out.
    /// - A worker that is inside goes on until the function returns: [`WorkerContext::cancelled`](crate::WorkerContext::cancelled)
    ///   is true there. An operation of a communicator that it is inside, or that it has started, is aborted; later ones of
    ///   the call fail at once. All fail with [`Error::Cancelled`].
    /// - If an operation was aborted, or workers have left the call after different operations, communicators are broken on
    ///   all workers, also for a worker that is still inside an earlier call. A later call never meets an operation of the
    ///   cancelled one.
    ///   [`is_whole`](Session#method.is_whole) tells whether they can be used, and
    ///   [`init_ccl`](Session#method.init_ccl) replaces them.
    ///
    /// A call that was cancelled does not fail its session. What the function returns is the result, also after a
    /// cancellation. If it returns an error, or was left out, [`get`](Session#method.get) of the call gives a failure of the kind
    /// [`ErrorKind::Cancelled`](crate::error::ErrorKind::Cancelled), whatever has failed behind it.
    ///
    /// ```
    /// # use disco_core::{Result, Session};
    /// # async fn example(session: &dyn Session) -> Result<()> {
    /// let search = session.call("example.search", (1_000_000,)).await?;
    /// session.cancel(&search, "the user has left")?;
    /// session.sync_all().await // waits until the workers have returned
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::State`] if workers of TVM's Disco, which know no cancellation, are in the session, or if the session has no
    /// cancellation.
    fn cancel(&self, call: &DRef, why: &str) -> Result<()> {
        _ = (call, why);
        Err(Error::state("cancel: this session can't cancel calls"))
    }

    /// Waits until a worker and its device have executed all earlier commands.
    async fn sync_worker(&self, worker: WorkerId) -> Result<()>;

    /// Waits until all workers and their devices have executed all earlier commands, with one broadcast. If several
    /// workers failed, the error is the root cause. Default: one worker after the other.
    async fn sync_all(&self) -> Result<()> {
        for worker in self.world().workers() {
            self.sync_worker(worker).await?;
        }
        Ok(())
    }

    /// The value of a register on one worker, after all earlier commands. A thread worker returns a host tensor by
    /// reference. Another worker returns a copy of at most
    /// [`WorkerConfig::value_limit`](crate::worker::WorkerConfig::value_limit): through shared memory from a process of
    /// this machine, over the connection from a node. Values made before the worker's first error are still available.
    async fn value(&self, handle: &DRef, worker: WorkerId) -> Result<Value>;

    /// The values of a register on all workers, in worker order, after all earlier commands, with one broadcast. Each
    /// value is as in [`Session::value`]; the controller holds all of them at once. If several workers failed, the error
    /// is the root cause. Default: one worker after the other.
    async fn values(&self, handle: &DRef) -> Result<Vec<Value>> {
        let mut values = Vec::new();
        for worker in self.world().workers() {
            values.push(self.value(handle, worker).await?);
        }
        Ok(values)
    }

    /// Sets a register on one worker, and waits until the worker has the value. A tensor is copied into the worker's
    /// tensor in that register, which must have the same dtype and shape. If the register has no tensor, or one that was
    /// an argument of a call, the copy is a new tensor on the worker's device. So `set` can give each worker its own
    /// weights, and later changes of the controller's tensor do not affect the worker. Any other value replaces the
    /// worker's value. The tensor is sent to this worker only, in the ways of [`Session::value`].
    ///
    /// # Errors
    /// [`Error::Invalid`], with size, limit and remedy, if the value is above
    /// [`WorkerConfig::value_limit`](crate::worker::WorkerConfig::value_limit) and the worker is in another process.
    async fn set(&self, handle: &DRef, worker: WorkerId, value: Value) -> Result<()>;

    /// Copies worker 0's tensor into a host tensor. The copy is complete after the next sync of worker 0, or, if worker 0 is
    /// in another process, when this method returns; the tensors must have equal shapes there.
    async fn copy_from_worker_0(&self, host: &Tensor, from: &DRef) -> Result<()>;

    /// Copies a host tensor into worker 0's tensor. The host tensor must not be written to before the next sync of
    /// worker 0, or, if worker 0 is in another process, before this method returns; the tensors must have equal shapes
    /// there.
    async fn copy_to_worker_0(&self, host: &Tensor, to: &DRef) -> Result<()>;

    /// Clears a failure on all workers, after which the session takes commands again. Registers whose command failed or
    /// was skipped stay poisoned. The data plane stays broken until [`init_ccl`](Session#method.init_ccl), which calls `recover`
    /// itself.
    async fn recover(&self) -> Result<()>;

    /// Starts new workers in the places of lost ones, after which the session takes commands again: a new epoch has begun,
    /// as after [`Session::recover`]. Waits while they start, for at most the time that the session gives workers to
    /// start. Does nothing if no worker is lost.
    ///
    /// The other workers keep their registers. Those of a new worker are empty, except for functions
    /// ([`Session::function`]), and for values that [`LaneSession::on_replaced`] gives it. Using another older handle there is an
    /// error with the kind [`ErrorKind::NotRestored`](crate::error::ErrorKind::NotRestored), until [`Session::set`] gives it a
    /// value. Functions of libraries have to be loaded again. There are no communicators until the next
    /// [`init_ccl`](Session#method.init_ccl).
    ///
    /// A node that is still connected starts new processes in the places of its lost ones, and its other workers go on. Nodes
    /// that are lost are replaced as a whole.
    ///
    /// Workers that are lost meanwhile are replaced, too. Concurrent calls take turns. If the future is dropped, workers
    /// that start are ended, the session stays lost, and this method can be called again.
    ///
    /// # Errors
    /// A new worker can't be started; its lane can't start workers (threads, workers that a launcher has started); the
    /// [policy](ReplacementPolicy) of the session forbids it; the session is lost for another reason than lost workers. The
    /// session stays lost then.
    async fn replace_lost(&self) -> Result<Replaced> {
        Err(Error::state("replace_lost: this session can't start workers"))
    }

    /// Changes the number of workers, in a new epoch: lost workers are dropped; then, if there are more than `workers`, those
    /// with the largest numbers leave; then, if there are fewer, new ones join at the end. The workers are numbered anew,
    /// without holes and in their order: of workers 0 to 4 without a lost worker 2, `resize(4)` makes workers 0 to 3. The
    /// number of groups stays. Does nothing if there are `workers` workers and none of them is lost.
    ///
    /// Everything follows the new numbers: [`Session::world`], [`WorkerContext::worker`](crate::WorkerContext::worker), ranks
    /// and groups, the order of [`Session::values`], errors, status and records. Workers that stay keep their registers. The
    /// registers of a new worker are as in [`Session::replace_lost`]: it has the functions and what
    /// [`LaneSession::on_replaced`] gives it. There are no communicators until the next [`init_ccl`](Session#method.init_ccl). Workers that
    /// leave execute the commands submitted before, if the session is not lost, and then end; they are no losses.
    ///
    /// Waits while new workers start, and then, in a session that is not lost, until all workers have executed all earlier
    /// commands. Other callers submit no commands meanwhile: their methods wait.
    /// They go on once the resize has changed the workers, has failed, or is dropped. While the epoch begins, other methods
    /// fail. The [policy](ReplacementPolicy) of replacement does not apply. Workers that are lost meanwhile are dropped, too,
    /// and others start in their stead. Concurrent calls, and those of [`Session::replace_lost`], take turns.
    ///
    /// If the future is dropped before the new numbers are valid, nothing has changed. If it is dropped later, the session is
    /// lost until `resize` or [`Session::replace_lost`] is called again.
    ///
    /// # Errors
    /// Nothing has changed if: `workers` is 0, is not divided by the groups, or is not a multiple of the workers of a node in
    /// a session of several machines; only a part of a node's workers would leave; the session can't start workers; a
    /// launcher such as `mpiexec` or TVM has started the workers that would leave; a new worker can't be started; workers do
    /// not execute the earlier commands in time. A session that was lost stays lost then.
    async fn resize(&self, workers: usize) -> Result<Resized> {
        _ = workers;
        Err(Error::state("resize: this session can't start workers"))
    }

    /// Ends all workers and waits for them, for at most [`Deadlines::close`], or 3 s if a wait has passed its deadline
    /// since the last complete [`Session::sync_all`]. A shutdown that takes longer than 2 s logs warnings with
    /// `tracing`.
    ///
    /// Workers execute the commands submitted before and reply to them, unless a lane is full: then the shutdown
    /// overtakes queued commands, and waits for their replies end with [`Error::Closed`]. Calls whose
    /// [results](LaneSession::call_streaming) stream are cancelled.
    /// Concurrent calls return the same result; later calls do nothing. A separate thread waits for the workers, so the
    /// executor is not blocked. If the future is dropped, the shutdown continues until the session is dropped too;
    /// but if subsets were still ending, only another call of this method goes on.
    ///
    /// # Errors
    /// [`Error::Stuck`], with the workers that are still inside a function; they are detached or
    /// killed. [`Error::Lost`] if a worker dies during the shutdown.
    async fn shutdown(&self) -> Result<()>;
}
