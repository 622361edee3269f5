//! The controller's side: the session, its handles, and the one implementation over lanes.

mod args;
mod closing;
mod dataplane;
mod deadlines;
mod dref;
mod ext;
mod lanes;
mod large;
mod mail;
mod order;
mod patience;
mod registers;
mod ticker;
mod waits;

use std::fmt::Debug;

use async_trait::async_trait;

pub use args::{Arguments, IntoArg, IntoArgs};
pub use dataplane::{DataPlane, Placement, Scope};
pub use deadlines::Deadlines;
pub use dref::DRef;
pub use ext::SessionExt;
pub use lanes::LaneSession;

use crate::error::Result;
use crate::id::WorkerId;
use crate::tensor::Tensor;
use crate::value::Value;
use crate::world::World;

/// The primary interface: owns the workers and gives them commands. Usable from many threads at once; every worker sees
/// one order. [`SessionExt`] adds what is built on these methods.
///
/// ```
/// use disco_core::{Result, Session, SessionExt, WorkerContext, WorkerId};
///
/// fn count(_: &mut WorkerContext, from: usize) -> Result<usize> {
///     Ok(from + 1)
/// }
///
/// disco_core::register_function!("example.count", count);
///
/// async fn count_twice(session: &impl Session) -> Result<usize> {
///     let count = session.function("example.count").await?;
///     // Both calls return at once; the result of the first stays on the workers.
///     let one = session.call(&count, (0,)).await?;
///     let two = session.call(&count, (&one,)).await?;
///     let two = session.get_as(&two, WorkerId::new(0)).await?;
///     session.shutdown().await?;
///     Ok(two)
/// }
/// ```
///
/// # Errors
/// All methods fail with [`Error::Closed`](crate::Error::Closed) after shutdown, [`Error::ForeignRef`](crate::Error::ForeignRef)
/// for a handle of another session, [`Error::NoSuchWorker`](crate::Error::NoSuchWorker), and [`Error::Lost`](crate::Error::Lost)
/// once a worker is gone. The methods that wait for no reply return the first failure of any worker
/// ([`Error::Earlier`](crate::Error::Earlier)) as soon as it is known, and [`Error::Stalled`](crate::Error::Stalled) when a worker
/// has taken no commands for too long. The methods that wait for a reply return the failure that it brings, and
/// [`Error::Deadline`](crate::Error::Deadline) naming who does not answer and what it is doing.
///
/// # Cancel safety
/// A future of a method that waits for no reply has either changed nothing or submitted its command, when it is
/// dropped. Dropping one that waits for a reply forgets the reply.
#[async_trait]
pub trait Session: Debug + Send + Sync {
    /// How many workers there are, and their groups.
    fn world(&self) -> World;

    /// Looks up a worker function on all workers. Repeated calls return the same register.
    async fn function(&self, name: &str) -> Result<DRef>;

    /// Calls a worker function on all workers; the handle stands for the results. No reply is awaited. Arguments of any size travel,
    /// up to [`WorkerConfig::value_limit`](crate::worker::WorkerConfig::value_limit) in all where workers are in other processes;
    /// each process gets a copy of each tensor, and threads of one process share it; thread workers of the controller's process get the
    /// tensors themselves. A tensor must not be written to before the next
    /// sync: a write fails with [`Error::Busy`](crate::Error::Busy) while a worker reads the tensor or it is on its way.
    async fn submit(&self, function: &DRef, args: Arguments) -> Result<DRef>;

    /// [`Session::submit`] at once, without a future; none if that would have to wait, and for arguments of more than 64 KiB if workers
    /// are in other processes. Then `args` are as before, and [`Session::submit`] takes them.
    fn try_submit(&self, function: &DRef, args: &mut Arguments) -> Option<Result<DRef>>;

    /// Waits until a worker has executed everything before, and its device too.
    async fn sync_worker(&self, worker: WorkerId) -> Result<()>;

    /// Waits for all workers, with one broadcast. The error is the root cause, where several workers failed.
    async fn sync_all(&self) -> Result<()>;

    /// The value of a register on one worker, after everything before. Of a thread worker, a host tensor comes by
    /// reference; of another worker, a copy of its tensor comes, of any size up to
    /// [`WorkerConfig::value_limit`](crate::worker::WorkerConfig::value_limit): by shared memory from a process of this machine, over
    /// the connection from a node. A value made before the worker's first error is still there.
    async fn get(&self, handle: &DRef, worker: WorkerId) -> Result<Value>;

    /// The values of a register on all workers, in the order of the workers, after everything before, with one broadcast. As
    /// [`Session::get`] of each worker; the controller holds all values at once. The error is the root cause, where several
    /// workers failed.
    async fn get_all(&self, handle: &DRef) -> Result<Vec<Value>>;

    /// Sets a register on one worker. A tensor is copied: into the tensor that the worker has there, which must have as many bytes;
    /// or, if the worker has no tensor there, or one that was an argument of a call, into a new one on the worker's device. So each worker
    /// gets weights of its own by one `set` of a handle that any call made, and later changes of the controller's tensor do not reach the worker. Any other value
    /// replaces what is there. A tensor travels as in [`Session::get`], to this worker alone.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid), naming size, limit and what to do, if the value is above
    /// [`WorkerConfig::value_limit`](crate::worker::WorkerConfig::value_limit) and the worker is in another process.
    async fn set(&self, handle: &DRef, worker: WorkerId, value: Value) -> Result<()>;

    /// Copies worker 0's tensor into a host tensor, complete after the next sync of worker 0.
    async fn copy_from_worker_0(&self, host: &Tensor, from: &DRef) -> Result<()>;

    /// Copies a host tensor into worker 0's tensor. The host tensor must not be written to before the next sync of worker 0.
    async fn copy_to_worker_0(&self, host: &Tensor, to: &DRef) -> Result<()>;

    /// After a failure: makes all workers forget it, and takes commands again. Registers whose command failed or was
    /// skipped stay poisoned; the data plane stays broken until [`DataPlane::init_ccl`], which calls this itself.
    async fn recover(&self) -> Result<()>;

    /// Ends all workers and waits for them, at most for [`Deadlines::close`], and at most for 3 s if a wait has passed its deadline
    /// since the last complete [`Session::sync_all`]. A shutdown that takes longer than 2 s warns by `tracing`. Commands that were submitted before are executed
    /// and replies delivered, unless a lane is full: then the shutdown overtakes what is queued. Waits for replies that never
    /// come end with [`Error::Closed`](crate::Error::Closed). Concurrent calls return the same result; later calls do nothing.
    /// A thread waits for the workers, so that the executor goes on meanwhile; the shutdown goes on when the future is dropped,
    /// until the session is dropped, too.
    ///
    /// # Errors
    /// [`Error::Stuck`](crate::Error::Stuck), naming workers that are still inside a function; they are detached or killed.
    /// [`Error::Lost`](crate::Error::Lost), if one dies on the way.
    async fn shutdown(&self) -> Result<()>;
}
