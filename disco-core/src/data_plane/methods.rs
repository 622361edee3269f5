//! The controller's side of the data plane: collectives on handles.

use super::table::PlaneFunction;
use crate::backend;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{Rank, WorkerId};
use crate::op::Reduction;
use crate::scope::Scope;
use crate::session::{DRef, IntoArgs, Session};
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::value::Value;

/// The workers that get a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// All workers.
    All,
    /// Worker 0 only.
    Worker0,
    /// The first worker of each group.
    GroupRoots,
}

/// Collectives on handles. Each method calls a worker function `disco.…` and awaits no reply. A
/// handle stands for one tensor on each worker; in an operation with a root, only the root needs the tensor that only the
/// root uses. `n` is the number of workers in the scope. Shapes are checked by element count, as in [`Op`](crate::Op). A
/// root is a [`Rank`] of the scope: a worker of the world, or a position in each group or along the axes of a mesh.
///
/// Errors and cancel safety are those of [`Session::submit`]. The next sync returns the failure of a worker, an
/// [`Error::Worker`] that names the worker, the operation and the reason. The method itself returns [`Error::Invalid`]
/// if the root does not exist, a mesh does not fit the session, or there is not one count for each rank.
///
/// ```
/// use disco_core::{DType, Placement, Reduction, Result, Scope, Session, Tensor, WorkerId};
///
/// /// Sends a tensor to all workers and sums it over them.
/// async fn sum(session: &dyn Session, x: Tensor) -> Result<Vec<f32>> {
///     session.init_ccl("local", &[]).await?;
///     let sum = session.empty(DType::F32, x.dims(), Placement::All).await?;
///     session.broadcast(&x, &sum).await?;
///     session.all_reduce(&sum, &sum, Reduction::Sum, Scope::World).await?;
///     session.get::<Tensor>(&sum, WorkerId::new(0)).await?.to_vec()
/// }
/// ```
impl dyn Session + '_ {
    /// Makes new communicators of `backend` on all workers, in place of existing ones, and syncs. After a failure this
    /// makes the session usable again; it calls [`Session::recover`]. Earlier calls that still wait in a collective for a rank
    /// which does not come fail, and not this method.
    ///
    /// `backend` is the name of a backend, or [`auto`](backend::AUTO).
    ///
    /// `ordinals` gives each worker's device. If it is empty, the i-th worker of each machine takes device i; with host
    /// backends, all workers take the host.
    ///
    /// # Errors
    /// The backend is unavailable, can't connect all machines or fails, or a worker can't connect.
    pub async fn init_ccl(&self, backend: &str, ordinals: &[i32]) -> Result<()> {
        let world = self.world();
        if !ordinals.is_empty() && ordinals.len() != world.size() {
            let (given, workers) = (ordinals.len(), world.size());
            return Err(Error::invalid(format!("init_ccl: {given} devices for {workers} workers")));
        }
        let backend = if backend == backend::AUTO { backend::choose(&world)? } else { backend::find(backend)? };
        backend::check_reach(backend, &world)?;
        backend.probe()?;
        let ordinals: Shape = ordinals.iter().map(|ordinal| (*ordinal).into()).collect::<Vec<i64>>().into();
        let mut is_first = true;
        loop {
            let at = backend.rendezvous(&world)?;
            self.recover().await?;
            let args = (backend.name(), at.as_bytes(), ordinals.clone());
            let (call, done) = match plane(self, PlaneFunction::InitCcl, args).await {
                Ok(call) => (call.command(), self.sync_all().await),
                Err(error) => (u64::MAX, Err(error)),
            };
            match done {
                // A call from before still waited in a collective, until a rank has left its communicator.
                Err(Error::Worker(failure) | Error::Earlier { failure, .. })
                    if is_first
                        && failure.command < call
                        && matches!(failure.kind, ErrorKind::Lost { .. } | ErrorKind::Broken) =>
                {
                    is_first = false;
                }
                done => return done,
            }
        }
    }

    /// Whether the communicators of all workers take operations: false before [`init_ccl`](Session#method.init_ccl), and once an
    /// operation has failed or a [cancellation](Session::cancel) has broken them. Waits until the workers have executed
    /// all earlier commands.
    ///
    /// # Errors
    /// A worker has failed; errors of [`Session::submit`] and [`Session::values`].
    pub async fn is_whole(&self) -> Result<bool> {
        let whole = plane(self, PlaneFunction::IsWhole, ()).await?;
        Ok(self.values(&whole).await?.iter().all(|whole| *whole == Value::Bool(true)))
    }

    /// A zeroed tensor on the workers' devices.
    pub async fn empty(&self, dtype: DType, shape: impl Into<Shape> + Send, placement: Placement) -> Result<DRef> {
        let (only_root, in_group) = match placement {
            Placement::All => (false, false),
            Placement::Worker0 => (true, false),
            Placement::GroupRoots => (true, true),
        };
        plane(self, PlaneFunction::Empty, (dtype, shape.into(), only_root, in_group)).await
    }

    /// Every worker's `dst` becomes the controller's `src`: a copy to worker 0, then a broadcast.
    pub async fn broadcast(&self, src: &Tensor, dst: &DRef) -> Result<()> {
        let entry = on_worker_0(self, src).await?;
        self.broadcast_from(&entry, dst, Rank::new(0), Scope::World).await
    }

    /// Worker `i`'s `dst` becomes block `i` of the controller's `src`, of `n` equal blocks: a copy to worker 0, then a
    /// scatter.
    pub async fn scatter(&self, src: &Tensor, dst: &DRef) -> Result<()> {
        let entry = on_worker_0(self, src).await?;
        self.scatter_from(&entry, dst, Rank::new(0), Scope::World).await
    }

    /// Every `dst` becomes the root's `src`, which the other workers need not have.
    pub async fn broadcast_from(&self, src: &DRef, dst: &DRef, root: Rank, scope: Scope) -> Result<()> {
        rooted(self, PlaneFunction::BroadcastFrom, root, scope, (src, dst, root.wire())).await
    }

    /// `dst` of the `i`-th worker becomes block `i` of the root's `src`, which the other workers need not have.
    pub async fn scatter_from(&self, src: &DRef, dst: &DRef, root: Rank, scope: Scope) -> Result<()> {
        rooted(self, PlaneFunction::ScatterFrom, root, scope, (src, dst, root.wire())).await
    }

    /// The root's `dst`, which the other workers need not have, becomes the concatenation of all workers' `src`, in
    /// worker order.
    pub async fn gather_to(&self, src: &DRef, dst: &DRef, root: Rank, scope: Scope) -> Result<()> {
        rooted(self, PlaneFunction::GatherTo, root, scope, (src, dst, root.wire())).await
    }

    /// The root's `dst`, which the other workers need not have, becomes the reduction of all `src`; `src` and `dst` may
    /// be one handle.
    pub async fn reduce(&self, src: &DRef, dst: &DRef, reduction: Reduction, root: Rank, scope: Scope) -> Result<()> {
        rooted(self, PlaneFunction::Reduce, root, scope, (src, dst, reduction.name(), root.wire())).await
    }

    /// Every `dst` becomes the reduction of all `src`; `src` and `dst` may be one handle.
    pub async fn all_reduce(&self, src: &DRef, dst: &DRef, reduction: Reduction, scope: Scope) -> Result<()> {
        scoped(self, PlaneFunction::AllReduce, scope, (src, dst, reduction.name())).await
    }

    /// Every `dst` becomes the concatenation of all `src`, in worker order.
    pub async fn all_gather(&self, src: &DRef, dst: &DRef, scope: Scope) -> Result<()> {
        scoped(self, PlaneFunction::AllGather, scope, (src, dst)).await
    }

    /// Every `dst` becomes the concatenation of all `src`, in worker order; the `i`-th `src` has `counts[i]` elements.
    /// The counts apply to each set of the scope.
    pub async fn all_gather_v(&self, src: &DRef, dst: &DRef, counts: &[usize], scope: Scope) -> Result<()> {
        let counts = counts_shape(self, PlaneFunction::AllGatherV, &[counts], 1, &scope);
        scoped(self, PlaneFunction::AllGatherV, scope, (src, dst, counts?)).await
    }

    /// `dst` of the `i`-th worker becomes the concatenation of a part of each worker's `src`, in worker order. The
    /// `i`-th worker sends `counts[i][j]` elements to the `j`-th: its `src` has the sum of row `i` elements, its `dst`
    /// the sum of column `i`. The counts apply to each set of the scope.
    ///
    /// ```
    /// # use disco_core::{DRef, Result, Scope, Session};
    /// # async fn example(session: &dyn Session, src: &DRef, dst: &DRef) -> Result<()> {
    /// // Worker 0 keeps 2 elements and sends 1; worker 1 sends 4 and keeps none.
    /// session.all_to_all_v(src, dst, &[&[2, 1], &[4, 0]], Scope::World).await
    /// # }
    /// ```
    pub async fn all_to_all_v(&self, src: &DRef, dst: &DRef, counts: &[&[usize]], scope: Scope) -> Result<()> {
        let rows = scope.ranks(&self.world());
        let counts = counts_shape(self, PlaneFunction::AllToAllV, counts, rows, &scope);
        scoped(self, PlaneFunction::AllToAllV, scope, (src, dst, counts?)).await
    }

    /// Later commands start only after all workers of the scope have executed all earlier commands.
    pub async fn barrier(&self, scope: Scope) -> Result<()> {
        scoped(self, PlaneFunction::Barrier, scope, ()).await
    }

    /// `dst` of the `i`-th worker becomes block `i` of the reduction of all `src`.
    pub async fn reduce_scatter(&self, src: &DRef, dst: &DRef, reduction: Reduction, scope: Scope) -> Result<()> {
        scoped(self, PlaneFunction::ReduceScatter, scope, (src, dst, reduction.name())).await
    }

    /// Block `j` of the `i`-th worker's `dst` becomes block `i` of the `j`-th worker's `src`.
    pub async fn all_to_all(&self, src: &DRef, dst: &DRef, scope: Scope) -> Result<()> {
        scoped(self, PlaneFunction::AllToAll, scope, (src, dst)).await
    }

    /// Each worker's `src` becomes `dst` of the worker at the same position in the next group; workers of the last group send
    /// nothing, those of the first receive nothing. Two commands, as [`send_to_worker`](Session#method.send_to_worker), with
    /// the same rules.
    pub async fn send_to_next_group(&self, src: &DRef, dst: &DRef) -> Result<()> {
        collective(self, PlaneFunction::SendToNextGroup, (src,)).await?;
        collective(self, PlaneFunction::RecvFromPrevGroup, (dst,)).await
    }

    /// Worker `from`'s `src` becomes worker `to`'s `dst`; the others do nothing.
    ///
    /// The transfer is two commands. A collective of another caller between them would wait for the receiver, and the
    /// receiver for it: callers that share a session hold a lock over the call.
    ///
    /// # Cancel safety
    /// If the future is dropped, or fails, worker `from` may have been told to send, and worker `to` not to receive. It then
    /// waits until the deadline of collectives, or [`init_ccl`](Session#method.init_ccl).
    pub async fn send_to_worker(&self, src: &DRef, dst: &DRef, from: WorkerId, to: WorkerId) -> Result<()> {
        self.world().check(from)?;
        self.world().check(to)?;
        if from == to {
            return Err(Error::invalid(format!("send_to_worker: {from} can't send to itself")));
        }
        collective(self, PlaneFunction::SendToWorker, (src, from.wire(), to.wire())).await?;
        collective(self, PlaneFunction::RecvFromWorker, (dst, from.wire(), to.wire())).await
    }
}

/// A copy of the controller's `src` on worker 0.
async fn on_worker_0(session: &dyn Session, src: &Tensor) -> Result<DRef> {
    let entry = session.empty(src.dtype(), src.shape().clone(), Placement::Worker0).await?;
    session.copy_to_worker_0(src, &entry).await?;
    Ok(entry)
}

/// An operation with a root, which must exist.
async fn rooted(
    session: &dyn Session,
    function: PlaneFunction,
    root: Rank,
    scope: Scope,
    args: impl IntoArgs + Send,
) -> Result<()> {
    let ranks = scope.ranks(&session.world());
    if root.index() >= ranks {
        let name = function.method();
        return Err(Error::invalid(format!("{name}: {root} of {ranks} ranks does not exist")));
    }
    scoped(session, function, scope, args).await
}

/// Concatenates `rows` rows of counts, each with one count for each rank of the scope.
fn counts_shape(
    session: &dyn Session,
    function: PlaneFunction,
    counts: &[&[usize]],
    rows: usize,
    scope: &Scope,
) -> Result<Shape> {
    check(session, function, scope)?;
    let (name, ranks) = (function.method(), scope.ranks(&session.world()));
    if counts.len() != rows {
        return Err(Error::invalid(format!("{name}: {} rows of counts for {ranks} ranks", counts.len())));
    }
    if let Some(row) = counts.iter().find(|row| row.len() != ranks) {
        return Err(Error::invalid(format!("{name}: {} counts for {ranks} ranks: {row:?}", row.len())));
    }
    let refused = |count| Error::invalid(format!("{name}: {count} elements are too many"));
    let counts = counts.iter().copied().flatten().map(|count| i64::try_from(*count).map_err(|_| refused(count)));
    Ok(Shape::from(counts.collect::<Result<Vec<_>>>()?))
}

/// Refuses a mesh that does not fit the session.
fn check(session: &dyn Session, function: PlaneFunction, scope: &Scope) -> Result<()> {
    let name = function.method();
    scope.check(&session.world()).map_err(|error| Error::invalid(format!("{name}: {error}")))
}

/// An operation over a scope, which becomes its last argument.
async fn scoped(
    session: &dyn Session,
    function: PlaneFunction,
    scope: Scope,
    args: impl IntoArgs + Send,
) -> Result<()> {
    check(session, function, &scope)?;
    let mut args = args.into_args();
    args.push(&scope);
    collective(session, function, args).await
}

async fn collective(session: &dyn Session, function: PlaneFunction, args: impl IntoArgs + Send) -> Result<()> {
    plane(session, function, args).await.map(drop)
}

async fn plane(session: &dyn Session, function: PlaneFunction, args: impl IntoArgs + Send) -> Result<DRef> {
    session.call(function.name(), args).await
}
