//! The data plane, from the controller: collectives on handles.

use std::future::Future;

use super::{DRef, IntoArgs, Session};
use crate::backend;
use crate::data_plane::PlaneFunction;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::{Rank, WorkerId};
use crate::op::Reduction;
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::world::World;

/// Which workers take part together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// All workers; rank = worker. The root of the worker-0 forms is worker 0.
    World,
    /// Each group by itself; rank = seat in the group. The roots of the worker-0 forms are the groups' first workers.
    Group,
}

/// Which workers get a tensor; the others get none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// All.
    All,
    /// Worker 0 only.
    Worker0,
    /// The first worker of each group.
    GroupRoots,
}

impl Scope {
    const fn in_group(self) -> bool {
        matches!(self, Scope::Group)
    }

    const fn ranks(self, world: &World) -> usize {
        match self {
            Scope::World => world.size(),
            Scope::Group => world.group_size(),
        }
    }
}

/// Collectives on handles, for every [`Session`]: each is one call of a worker function `disco.…`, submitted without awaiting a
/// reply. Handles stand for one tensor on each worker; in "from worker 0" and "to worker 0", the handle's tensor on the other
/// workers may be missing. `n` is the number of workers in the scope. Shapes are checked by element count, as in
/// [`Op`](crate::Op). A root is a [`Rank`] of the scope: a worker of the world, or a seat in each group.
///
/// Errors and cancel safety are those of [`Session::submit`]; what goes wrong on a worker comes with the next sync: an
/// [`Error::Worker`] that names the worker, the operation and the reason. A root that does not exist, and counts that are not
/// one for each rank, are refused by the method itself ([`Error::Invalid`]).
///
/// ```
/// use disco_core::{DType, DataPlane, Placement, Reduction, Result, Scope, Session, SessionExt, Tensor, WorkerId};
///
/// /// The sum over all workers of one tensor, which all of them get.
/// async fn sum(session: &impl Session, x: Tensor) -> Result<Vec<f32>> {
///     session.init_ccl("local", &[]).await?;
///     let sum = session.empty(DType::F32, x.dims(), Placement::All).await?;
///     session.broadcast(&x, &sum).await?;
///     session.all_reduce(&sum, &sum, Reduction::Sum, Scope::World).await?;
///     session.get_as::<Tensor>(&sum, WorkerId::new(0)).await?.to_vec()
/// }
/// ```
pub trait DataPlane: Session {
    /// Makes the communicators of all workers, of `backend`, in place of the ones before, and syncs. After a failure this is
    /// what makes the session usable again ([`Session::recover`]).
    ///
    /// `ordinals` gives each worker's device; empty: worker i takes device i (of host backends: the host).
    ///
    /// # Errors
    /// The backend is unavailable, does not reach all machines or refuses, or a worker can't connect.
    fn init_ccl(&self, backend: &str, ordinals: &[i32]) -> impl Future<Output = Result<()>> + Send {
        async move {
            let world = self.world();
            if !ordinals.is_empty() && ordinals.len() != world.size() {
                let (given, workers) = (ordinals.len(), world.size());
                return Err(Error::invalid(format!("init_ccl: {given} devices for {workers} workers")));
            }
            let backend = backend::find(backend)?;
            backend::check_reach(backend, &world)?;
            backend.probe()?;
            let at = backend.rendezvous(&world)?;
            self.recover().await?;
            let ordinals: Vec<i64> = ordinals.iter().map(|ordinal| (*ordinal).into()).collect();
            plane(self, PlaneFunction::InitCcl, (backend.name(), at.as_bytes(), Shape::from(ordinals))).await?;
            self.sync_all().await
        }
    }

    /// A zeroed tensor on the workers' devices.
    fn empty(
        &self,
        dtype: DType,
        shape: impl Into<Shape> + Send,
        placement: Placement,
    ) -> impl Future<Output = Result<DRef>> + Send {
        let (only_root, in_group) = match placement {
            Placement::All => (false, false),
            Placement::Worker0 => (true, false),
            Placement::GroupRoots => (true, true),
        };
        plane(self, PlaneFunction::Empty, (dtype, shape.into(), only_root, in_group))
    }

    /// Every worker's `dst` becomes the controller's `src`: a copy to worker 0, then a broadcast.
    fn broadcast(&self, src: &Tensor, dst: &DRef) -> impl Future<Output = Result<()>> + Send {
        async move {
            let entry = on_worker_0(self, src).await?;
            self.broadcast_from_worker0(&entry, dst, Scope::World).await
        }
    }

    /// Worker `i`'s `dst` becomes block `i` of the controller's `src`, of `n` equal blocks: a copy to worker 0, then a
    /// scatter.
    fn scatter(&self, src: &Tensor, dst: &DRef) -> impl Future<Output = Result<()>> + Send {
        async move {
            let entry = on_worker_0(self, src).await?;
            self.scatter_from_worker0(&entry, dst, Scope::World).await
        }
    }

    /// Every `dst` becomes the root's `src`.
    fn broadcast_from_worker0(&self, src: &DRef, dst: &DRef, scope: Scope) -> impl Future<Output = Result<()>> + Send {
        collective(self, PlaneFunction::BroadcastFromWorker0, (src, dst, scope.in_group()))
    }

    /// `dst` of the `i`-th worker becomes block `i` of the root's `src`.
    fn scatter_from_worker0(&self, src: &DRef, dst: &DRef, scope: Scope) -> impl Future<Output = Result<()>> + Send {
        collective(self, PlaneFunction::ScatterFromWorker0, (src, dst, scope.in_group()))
    }

    /// The root's `dst` becomes all workers' `src`, in order.
    fn gather_to_worker0(&self, src: &DRef, dst: &DRef, scope: Scope) -> impl Future<Output = Result<()>> + Send {
        collective(self, PlaneFunction::GatherToWorker0, (src, dst, scope.in_group()))
    }

    /// Every `dst` becomes the root's `src`, which the other workers need not have.
    fn broadcast_from(
        &self,
        src: &DRef,
        dst: &DRef,
        root: Rank,
        scope: Scope,
    ) -> impl Future<Output = Result<()>> + Send {
        rooted(self, PlaneFunction::BroadcastFrom, root, scope, (src, dst, root.wire(), scope.in_group()))
    }

    /// `dst` of the `i`-th worker becomes block `i` of the root's `src`, which the other workers need not have.
    fn scatter_from(
        &self,
        src: &DRef,
        dst: &DRef,
        root: Rank,
        scope: Scope,
    ) -> impl Future<Output = Result<()>> + Send {
        rooted(self, PlaneFunction::ScatterFrom, root, scope, (src, dst, root.wire(), scope.in_group()))
    }

    /// The root's `dst`, which the other workers need not have, becomes all workers' `src`, in order.
    fn gather_to(&self, src: &DRef, dst: &DRef, root: Rank, scope: Scope) -> impl Future<Output = Result<()>> + Send {
        rooted(self, PlaneFunction::GatherTo, root, scope, (src, dst, root.wire(), scope.in_group()))
    }

    /// The root's `dst`, which the other workers need not have, becomes the reduction of all `src`; `src` and `dst` may be one
    /// handle.
    fn reduce(
        &self,
        src: &DRef,
        dst: &DRef,
        reduction: Reduction,
        root: Rank,
        scope: Scope,
    ) -> impl Future<Output = Result<()>> + Send {
        let args = (src, dst, reduction.name(), root.wire(), scope.in_group());
        rooted(self, PlaneFunction::Reduce, root, scope, args)
    }

    /// Every `dst` becomes the reduction of all `src`; `src` and `dst` may be one handle.
    fn all_reduce(
        &self,
        src: &DRef,
        dst: &DRef,
        reduction: Reduction,
        scope: Scope,
    ) -> impl Future<Output = Result<()>> + Send {
        collective(self, PlaneFunction::AllReduce, (src, dst, reduction.name(), scope.in_group()))
    }

    /// Every `dst` becomes all `src`, in order.
    fn all_gather(&self, src: &DRef, dst: &DRef, scope: Scope) -> impl Future<Output = Result<()>> + Send {
        collective(self, PlaneFunction::AllGather, (src, dst, scope.in_group()))
    }

    /// Every `dst` becomes all `src`, in order, of which the `i`-th has `counts[i]` elements. In [`Scope::Group`] the counts are
    /// those of each group.
    fn all_gather_v(
        &self,
        src: &DRef,
        dst: &DRef,
        counts: &[usize],
        scope: Scope,
    ) -> impl Future<Output = Result<()>> + Send {
        let args = counts_shape(self, PlaneFunction::AllGatherV, &[counts], 1, scope);
        let args = args.map(|counts| (src, dst, counts, scope.in_group()).into_args());
        async move { collective(self, PlaneFunction::AllGatherV, args?).await }
    }

    /// `dst` of the `i`-th worker becomes a part of each worker's `src`, in order. The `i`-th worker sends the `j`-th one
    /// `counts[i][j]` elements: its `src` has as many elements as row `i` counts, its `dst` as many as column `i`. In
    /// [`Scope::Group`] the counts are those of each group.
    ///
    /// ```
    /// # use disco_core::{DRef, DataPlane, Result, Scope, Session};
    /// # async fn example(session: &impl Session, src: &DRef, dst: &DRef) -> Result<()> {
    /// // Worker 0 keeps 2 elements and sends 1; worker 1 sends 4 and keeps none.
    /// session.all_to_all_v(src, dst, &[&[2, 1], &[4, 0]], Scope::World).await
    /// # }
    /// ```
    fn all_to_all_v(
        &self,
        src: &DRef,
        dst: &DRef,
        counts: &[&[usize]],
        scope: Scope,
    ) -> impl Future<Output = Result<()>> + Send {
        let rows = scope.ranks(&self.world());
        let args = counts_shape(self, PlaneFunction::AllToAllV, counts, rows, scope);
        let args = args.map(|counts| (src, dst, counts, scope.in_group()).into_args());
        async move { collective(self, PlaneFunction::AllToAllV, args?).await }
    }

    /// No worker of the scope starts what comes behind before all of them have executed everything before.
    fn barrier(&self, scope: Scope) -> impl Future<Output = Result<()>> + Send {
        collective(self, PlaneFunction::Barrier, (scope.in_group(),))
    }

    /// `dst` of the `i`-th worker becomes block `i` of the reduction of all `src`.
    fn reduce_scatter(
        &self,
        src: &DRef,
        dst: &DRef,
        reduction: Reduction,
        scope: Scope,
    ) -> impl Future<Output = Result<()>> + Send {
        collective(self, PlaneFunction::ReduceScatter, (src, dst, reduction.name(), scope.in_group()))
    }

    /// Block `j` of the `i`-th worker's `dst` becomes block `i` of the `j`-th worker's `src`.
    fn all_to_all(&self, src: &DRef, dst: &DRef, scope: Scope) -> impl Future<Output = Result<()>> + Send {
        collective(self, PlaneFunction::AllToAll, (src, dst, scope.in_group()))
    }

    /// Each worker sends `src` to the same seat of the next group, which must receive it; those of the last group do nothing.
    fn send_to_next_group(&self, src: &DRef) -> impl Future<Output = Result<()>> + Send {
        collective(self, PlaneFunction::SendToNextGroup, (src,))
    }

    /// Each worker receives `dst` from the same seat of the previous group; those of the first group do nothing.
    fn recv_from_prev_group(&self, dst: &DRef) -> impl Future<Output = Result<()>> + Send {
        collective(self, PlaneFunction::RecvFromPrevGroup, (dst,))
    }

    /// Worker `from` sends its `src` to worker `to`, which must receive it; the others do nothing.
    fn send_to_worker(&self, src: &DRef, from: WorkerId, to: WorkerId) -> impl Future<Output = Result<()>> + Send {
        between(self, PlaneFunction::SendToWorker, src, from, to)
    }

    /// Worker `to` receives its `dst` from worker `from`; the others do nothing.
    fn recv_from_worker(&self, dst: &DRef, from: WorkerId, to: WorkerId) -> impl Future<Output = Result<()>> + Send {
        between(self, PlaneFunction::RecvFromWorker, dst, from, to)
    }
}

impl<S: Session + ?Sized> DataPlane for S {}

/// A copy of the controller's `src` on worker 0.
async fn on_worker_0<S: Session + ?Sized>(session: &S, src: &Tensor) -> Result<DRef> {
    let entry = session.empty(src.dtype(), src.shape().clone(), Placement::Worker0).await?;
    session.copy_to_worker_0(src, &entry).await?;
    Ok(entry)
}

/// A transfer between two workers.
async fn between<S: Session + ?Sized>(
    session: &S,
    function: PlaneFunction,
    tensor: &DRef,
    from: WorkerId,
    to: WorkerId,
) -> Result<()> {
    session.world().check(from)?;
    session.world().check(to)?;
    if from == to {
        let name = function.method();
        return Err(Error::invalid(format!("{name}: {from} can't send to itself")));
    }
    collective(session, function, (tensor, from.wire(), to.wire())).await
}

/// An operation with a root, which must exist.
fn rooted<S: Session + ?Sized>(
    session: &S,
    function: PlaneFunction,
    root: Rank,
    scope: Scope,
    args: impl IntoArgs,
) -> impl Future<Output = Result<()>> + Send {
    let ranks = scope.ranks(&session.world());
    let call = collective(session, function, args);
    async move {
        if root.index() >= ranks {
            let name = function.method();
            return Err(Error::invalid(format!("{name}: {root} of {ranks} ranks does not exist")));
        }
        call.await
    }
}

/// `rows` rows with one count for each rank of the scope, one after the other.
fn counts_shape<S: Session + ?Sized>(
    session: &S,
    function: PlaneFunction,
    counts: &[&[usize]],
    rows: usize,
    scope: Scope,
) -> Result<Shape> {
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

fn collective<S: Session + ?Sized>(
    session: &S,
    function: PlaneFunction,
    args: impl IntoArgs,
) -> impl Future<Output = Result<()>> + Send {
    let call = plane(session, function, args);
    async move { call.await.map(drop) }
}

fn plane<S: Session + ?Sized>(
    session: &S,
    function: PlaneFunction,
    args: impl IntoArgs,
) -> impl Future<Output = Result<DRef>> + Send {
    let args = args.into_args();
    async move {
        let function = session.function(function.name()).await?;
        session.submit(&function, args).await
    }
}
