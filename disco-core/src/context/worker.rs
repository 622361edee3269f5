//! The state of a worker that its functions can use.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::emitting::Emitting;
use super::watched::Watched;
use crate::activity::CommKind;
use crate::backend::{Backend, ConnectParams, Rendezvous};
use crate::codec::fnv1a;
use crate::communicator::{Communicator, CommunicatorExt};
use crate::config::WorkerConfig;
use crate::device::Device;
use crate::device_api::{self, Queue};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::{GroupId, Rank, WorkerId};
use crate::link::Link;
use crate::scope::Scope;
use crate::shape::Shape;
use crate::signal::CallOps;
use crate::store::Store;
use crate::tensor::{Storage, Tensor};
use crate::world::World;

/// The worker that runs a function: its id, device, stream and communicators.
///
/// ```
/// use disco_core::{CommunicatorExt, DType, Reduction, Result, Tensor, WorkerContext};
///
/// /// Each worker multiplies its columns of the weights; the sum over all workers is the output.
/// fn linear(ctx: &mut WorkerContext, weights: Tensor, x: Tensor) -> Result<Tensor> {
///     let (rows, columns) = (weights.dims()[0], weights.dims()[1]);
///     let output = ctx.empty(DType::F32, rows)?;
///     {
///         let (weights, x, mut sums) = (weights.view::<f32>()?, x.view::<f32>()?, output.view_mut::<f32>()?);
///         let x = &x[ctx.worker().index() * columns..][..columns];
///         for (sum, row) in sums.iter_mut().zip(weights.chunks(columns)) {
///             *sum = row.iter().zip(x).map(|(w, x)| w * x).sum();
///         }
///     }
///     ctx.comm()?.all_reduce(&output, &output, Reduction::Sum)?;
///     Ok(output)
/// }
///
/// disco_core::register_function!("example.linear", linear);
/// ```
#[derive(Debug)]
pub struct WorkerContext {
    worker: WorkerId,
    config: WorkerConfig,
    pub(super) link: Arc<Link>,
    /// The values of [`WorkerContext::state`]. They are dropped first: some may have tensors of the queue's device.
    states: HashMap<TypeId, Rc<dyn Any>>,
    /// Communicators are dropped before the queue that they use.
    world_comm: Option<Watched>,
    /// Set only if there are several groups.
    group_comm: Option<Watched>,
    /// Communicators along axes of meshes, in the order of their first use.
    axis_comms: Vec<(Scope, Watched)>,
    /// The kept memory that is mapped here.
    pub(super) kept: HashMap<String, Arc<Storage>>,
    queue: Box<dyn Queue>,
    /// Set while a streaming call runs.
    pub(super) emitting: Option<Emitting>,
}

impl WorkerContext {
    pub(crate) fn new(worker: WorkerId, config: WorkerConfig, link: Arc<Link>) -> Result<Self> {
        let queue = device_api::host_queue(link.arena().cloned());
        link.note_ordinal((worker.index() % config.world.per_node()) as i32);
        let (states, axis_comms, kept, world_comm, group_comm, emitting) = Default::default();
        Ok(Self { worker, config, link, states, kept, queue, world_comm, group_comm, axis_comms, emitting })
    }

    /// This worker.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// All workers and their groups.
    pub fn world(&self) -> World {
        self.config.world
    }

    /// This worker's group.
    pub fn group(&self) -> GroupId {
        self.world().group_of(self.worker)
    }

    /// The device of this worker's tensors: the host, until `init_ccl` sets another.
    pub fn device(&self) -> Device {
        self.queue.device()
    }

    /// This worker's stream.
    pub fn queue(&mut self) -> &mut (dyn Queue + 'static) {
        &mut *self.queue
    }

    /// The communicator of all workers; the rank is the worker's id.
    ///
    /// # Errors
    /// [`Error::NoCommunicator`] before `init_ccl`.
    pub fn comm(&mut self) -> Result<&mut dyn Communicator> {
        self.world_comm.as_mut().map(|comm| comm as &mut dyn Communicator).ok_or(Error::NoCommunicator)
    }

    /// The communicator of this worker's set in a scope: [`WorkerContext::comm`]; that of this worker's group, in which the
    /// rank is the position; or one along axes of a [mesh](crate::Mesh). The first use of axes since `init_ccl` splits
    /// [`WorkerContext::comm`], so all workers call it then, with the same axes; it is kept until the next `init_ccl`.
    ///
    /// ```
    /// use disco_core::{CommunicatorExt, Mesh, Reduction, Result, Tensor, WorkerContext};
    ///
    /// /// The sum of the workers' numbers along an axis.
    /// fn sum(ctx: &mut WorkerContext, mesh: Mesh, axis: String) -> Result<i64> {
    ///     let x = Tensor::from_slice(&[ctx.worker().index() as i64], [1])?;
    ///     ctx.comm_in(&mesh.along(&[&axis])?)?.all_reduce_in_place(&x, Reduction::Sum)?;
    ///     Ok(x.to_vec::<i64>()?[0])
    /// }
    /// # disco_core::register_function!("doc.mesh_sum", sum);
    /// ```
    ///
    /// # Errors
    /// As [`WorkerContext::comm`]; the mesh does not fit the session; [`Error::Mismatch`] if worker 0 uses other axes;
    /// errors of [`Communicator::split`].
    pub fn comm_in(&mut self, scope: &Scope) -> Result<&mut dyn Communicator> {
        let world = self.world();
        scope.check(&world)?;
        match scope {
            Scope::World => self.comm(),
            Scope::Group => {
                let comm = self.group_comm.as_mut().or(self.world_comm.as_mut());
                comm.map(|comm| comm as &mut dyn Communicator).ok_or(Error::NoCommunicator)
            }
            Scope::Along(_) => {
                let known = self.axis_comms.iter().position(|(known, _)| known == scope);
                let index = known.map_or_else(|| self.split_along(scope, world), Ok)?;
                Ok(&mut self.axis_comms[index].1)
            }
        }
    }

    /// Makes the communicator along axes of a mesh. Returns its position.
    fn split_along(&mut self, scope: &Scope, world: World) -> Result<usize> {
        let comm = self.world_comm.as_mut().ok_or(Error::NoCommunicator)?;
        let (number, set) = (self.axis_comms.len(), scope.set(&world, self.worker));
        let place = (scope.rank(&world, self.worker), scope.ranks(&world));
        let comm = comm.split_along(&scope.to_string(), number, set, place)?;
        self.axis_comms.push((scope.clone(), comm));
        Ok(number)
    }

    /// The session's store in this epoch. After a [recovery](crate::Session::recover), calls on stores of earlier
    /// epochs fail.
    pub fn store(&self) -> Arc<dyn Store> {
        self.link.store()
    }

    /// The worker's link to peers and the controller, outside the command stream.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Whether the controller has [cancelled](crate::Session::cancel) the call that the worker runs, or the session has
    /// failed or ends. A function that computes for long asks between its steps, and returns early; its return value
    /// is the result of the call.
    ///
    /// ```
    /// use disco_core::{Result, WorkerContext};
    ///
    /// /// Searches for a divisor, until one is found or the call is cancelled.
    /// fn divisor(ctx: &mut WorkerContext, number: u64) -> Result<Option<u64>> {
    ///     for candidate in 2..number {
    ///         if candidate % 4096 == 0 && ctx.cancelled() {
    ///             return Ok(None);
    ///         }
    ///         if number % candidate == 0 {
    ///             return Ok(Some(candidate));
    ///         }
    ///     }
    ///     Ok(None)
    /// }
    /// # disco_core::register_function!("docs.divisor", divisor);
    /// ```
    pub fn cancelled(&self) -> bool {
        self.link.cancelled_now().is_some() || self.link.is_aborted()
    }

    /// Limit for one collective. Worker functions can use it for their own waits.
    pub fn deadline(&self) -> Duration {
        self.config.collective_deadline
    }

    /// A value of type `T` that belongs to this worker: `T::default()` at the first call, afterwards the same value. It
    /// outlives recoveries and data planes, and is dropped with the worker, at the end of the session.
    ///
    /// ```
    /// use std::cell::Cell;
    ///
    /// use disco_core::{Result, WorkerContext};
    ///
    /// #[derive(Default)]
    /// struct Calls(Cell<i64>);
    ///
    /// /// The number of calls of this function on this worker.
    /// fn count(ctx: &mut WorkerContext) -> Result<i64> {
    ///     let calls = ctx.state::<Calls>();
    ///     calls.0.set(calls.0.get() + 1);
    ///     Ok(calls.0.get())
    /// }
    ///
    /// disco_core::register_function!("example.count", count);
    /// ```
    pub fn state<T: Default + 'static>(&mut self) -> Rc<T> {
        let known = self.states.get(&TypeId::of::<T>()).and_then(|state| state.clone().downcast().ok());
        known.unwrap_or_else(|| {
            let state = Rc::<T>::default();
            self.states.insert(TypeId::of::<T>(), state.clone());
            state
        })
    }

    /// A zeroed tensor on this worker's device.
    ///
    /// # Errors
    /// The shape is invalid, or the device has too little memory.
    pub fn empty(&mut self, dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        Tensor::in_new_storage(dtype, shape, |bytes| self.queue.alloc(bytes))
    }

    /// A tensor on this worker's device for the result of an operation, which writes all of it: its elements are arbitrary
    /// until then. Large tensors are faster than those of [`WorkerContext::empty`].
    ///
    /// # Errors
    /// As [`WorkerContext::empty`].
    pub fn empty_for_result(&mut self, dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        Tensor::in_new_storage(dtype, shape, |bytes| self.queue.alloc_for_result(bytes))
    }

    /// A zeroed host tensor for copies from and to this worker's device, in [pinned memory](Queue#pinned-memory) if the
    /// device has such memory: see [`Queue::alloc_pinned`].
    ///
    /// # Errors
    /// The shape is invalid, the host has too little memory, or the driver fails.
    pub fn empty_pinned(&mut self, dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        Tensor::in_new_storage(dtype, shape, |bytes| self.queue.alloc_pinned(bytes))
    }

    /// Sends to the worker at the same position in the next group. `examples/pipeline.rs` of the package `disco` is a
    /// complete program.
    ///
    /// # Errors
    /// The worker is in the last group, or the communicator fails.
    pub fn send_to_next_group(&mut self, src: &Tensor) -> Result<()> {
        let next = self.worker.index() + self.world().group_size();
        if next >= self.world().size() {
            return Err(Error::invalid(format!("{} is the last; there is no next one to send to", self.group())));
        }
        self.comm()?.send(src, Rank::new(next as u32))
    }

    /// Receives from the worker at the same position in the previous group.
    ///
    /// # Errors
    /// The worker is in the first group, or the communicator fails.
    pub fn recv_from_prev_group(&mut self, dst: &Tensor) -> Result<()> {
        let prev = self.worker.index().checked_sub(self.world().group_size());
        let Some(prev) = prev else {
            return Err(Error::invalid(format!(
                "{} is the first; there is none before it to receive from",
                self.group()
            )));
        };
        self.comm()?.recv(dst, Rank::new(prev as u32))
    }

    /// Joins a new data plane on `device`, in place of the old one.
    pub(crate) fn connect(&mut self, backend: &dyn Backend, at: &Rendezvous, device: Device) -> Result<()> {
        // Peers that are still inside an operation of a cancelled call must not lose this rank.
        drop(self.link.begin_operation(CallOps::Other, self.deadline())?);
        self.disconnect();
        self.link.begin_data_plane();
        if device != self.device() {
            // The old queue is dropped first: it may belong to another device, which must not be current afterwards.
            self.queue = device_api::host_queue(self.link.arena().cloned());
            if !device.is_host() {
                self.queue = device_api::find(device.kind)?.bind(device)?;
            }
        }
        if !device.is_host() {
            self.link.note_ordinal(device.ordinal);
        }
        let (world, rank) = (self.world(), Rank::new(self.worker.index() as u32));
        let params = ConnectParams {
            rank,
            world,
            queue: &mut *self.queue,
            link: self.link.clone(),
            deadline: self.config.collective_deadline,
            connect_deadline: self.config.connect_deadline,
            uplink: self.config.uplink,
        };
        let comm = backend.connect(params, at)?;
        // The name is the same on all ranks, also after some ranks have failed to connect.
        let name = format!("plane {:016x}", fnv1a(at.as_bytes()));
        let mut comm = Watched::new(comm, name, CommKind::World, self.link.clone(), self.deadline(), self.config.check);
        if world.groups() > 1 {
            self.group_comm = comm.split_group(world.group_of(self.worker).index() as u32)?;
        }
        self.world_comm = Some(comm);
        Ok(())
    }

    /// From now on, this is `worker` of `world`. There are no communicators.
    pub(crate) fn renumber(&mut self, worker: WorkerId, world: World) {
        (self.worker, self.config.world) = (worker, world);
        self.link.note_ordinal((worker.index() % world.per_node()) as i32);
    }

    /// Leaves the data plane.
    pub(crate) fn disconnect(&mut self) {
        self.axis_comms.clear();
        self.group_comm = None;
        self.world_comm = None;
    }

    /// Whether there are communicators, and they take operations. Waits until cancellations are settled.
    pub(crate) fn has_whole_communicators(&mut self) -> Result<bool> {
        drop(self.link.begin_operation(CallOps::Collectives(0), self.deadline())?);
        let mut axis_comms = self.axis_comms.iter_mut().map(|(_, comm)| comm);
        let world = self.world_comm.as_mut().is_some_and(Watched::is_whole);
        Ok(world && self.group_comm.as_mut().is_none_or(Watched::is_whole) && axis_comms.all(Watched::is_whole))
    }

    /// Waits for all operations enqueued on communicators and stream.
    pub(crate) fn synchronize(&mut self) -> Result<()> {
        let axis_comms = self.axis_comms.iter_mut().map(|(_, comm)| comm);
        for comm in self.world_comm.iter_mut().chain(&mut self.group_comm).chain(axis_comms) {
            comm.complete()?;
        }
        // The host has no stream to wait for.
        if self.device().is_host() {
            return Ok(());
        }
        let (deadline, _wait) = (self.config.collective_deadline, self.link.begin_wait());
        self.queue.synchronize(deadline)
    }
}
