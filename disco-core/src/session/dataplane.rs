//! The data plane, from the controller: collectives on handles.

use std::future::Future;

use super::{DRef, IntoArgs, Session};
use crate::backend;
use crate::data_plane::PlaneFunction;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::op::Reduction;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Which workers take part together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// All workers; the root is worker 0.
    World,
    /// Each group by itself; the roots are the groups' first workers.
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
}

/// Collectives on handles, for every [`Session`]: each is one call of a worker function `disco.…`, submitted without awaiting a
/// reply. Handles stand for one tensor on each worker; in "from worker 0" and "to worker 0", the handle's tensor on the other
/// workers may be missing. `n` is the number of workers in the scope. Shapes are checked by element count, as in
/// [`Op`](crate::Op).
///
/// Errors and cancel safety are those of [`Session::submit`]; what goes wrong on a worker comes with the next sync.
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
