//! The communicator of a worker, as layers and operations of candle hold it.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::{Communicator, Error, Op, Result, Scope, WorkerContext};
#[cfg(feature = "cuda")]
use disco_nccl::cuda::WorkerStream;
use fragile::Sticky;

/// A handle to a communicator of this worker. Clones share the communicator.
///
/// Candle requires that operations with gradients are `Send`, and a [`Communicator`] is not. So the communicator stays
/// on the thread of its worker, and a handle on another thread gives an error.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use disco_candle::Comm;
/// use disco_core::{Reduction, WorkerContext};
///
/// /// Worker function: the mean of a loss over all workers.
/// fn mean(ctx: &mut WorkerContext, loss: f32) -> Result<f32, candle_core::Error> {
///     let comm = Comm::world(ctx).map_err(disco_candle::to_candle)?;
///     let loss = Tensor::new(loss, &Device::Cpu)?;
///     comm.all_reduce_in_place(&loss, Reduction::Avg)?;
///     loss.to_scalar()
/// }
/// # disco_core::register_function!("doc.mean", mean);
/// ```
#[derive(Clone)]
pub struct Comm(Arc<Inner>);

struct Inner {
    rank: usize,
    size: usize,
    scope: Scope,
    state: Sticky<RefCell<State>>,
}

struct State {
    /// None for a single rank without a session.
    comm: Option<Box<dyn Communicator>>,
    /// Whether collectives are left out.
    is_silent: bool,
    stats: Stats,
    measures_waits: bool,
    /// The stream of `comm`, once a collective on CUDA has needed it.
    #[cfg(feature = "cuda")]
    stream: Option<WorkerStream>,
}

/// Counts, bytes and times of the collectives of a [`Comm`] since the last [`Comm::take_stats`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Number of collectives. A communicator of one rank has none.
    pub collectives: u64,
    /// Bytes of this rank's output tensors.
    pub bytes: u64,
    /// Time in collectives, without `waiting`.
    pub time: Duration,
    /// Time until the last rank arrived; measured only after [`Comm::measure_waits`].
    pub waiting: Duration,
}

impl Comm {
    /// A communicator of all workers. Rank `i` is worker `i`. Collective: every worker calls it.
    ///
    /// It is a child of the worker's communicator, and outlives the worker function: keep it in a model.
    ///
    /// # Errors
    /// [`Error::NoCommunicator`] before `init_ccl`; errors of [`Communicator::split`].
    pub fn world(ctx: &mut WorkerContext) -> Result<Self> {
        Self::over(ctx, &Scope::World)
    }

    /// As [`Comm::world`], with the workers of this worker's set in a scope: its group, or the workers along axes of a
    /// [mesh](disco_core::Mesh::along), such as those that share one replica of a model.
    ///
    /// # Errors
    /// As [`Comm::world`], and errors of [`WorkerContext::comm_in`].
    pub fn over(ctx: &mut WorkerContext, scope: &Scope) -> Result<Self> {
        let comm = child(ctx, scope)?;
        let (rank, size) = (comm.rank().index(), comm.size());
        Ok(Self::of(rank, size, scope.clone(), Some(comm)))
    }

    /// One rank that needs no session, so that a program runs a model with and without workers. Its collectives copy at
    /// most.
    pub fn alone() -> Self {
        Self::of(0, 1, Scope::World, None)
    }

    /// A communicator that the program has made itself, without a session.
    pub fn of_communicator(comm: Box<dyn Communicator>) -> Self {
        Self::of(comm.rank().index(), comm.size(), Scope::World, Some(comm))
    }

    fn of(rank: usize, size: usize, scope: Scope, comm: Option<Box<dyn Communicator>>) -> Self {
        let state = State {
            comm,
            is_silent: false,
            stats: Stats::default(),
            measures_waits: false,
            #[cfg(feature = "cuda")]
            stream: None,
        };
        Self(Arc::new(Inner { rank, size, scope, state: Sticky::new(RefCell::new(state)) }))
    }

    /// Replaces the communicator in all clones by a new one of the same scope, after the session has recovered and called `init_ccl`.
    /// Collective: every worker calls it.
    ///
    /// # Errors
    /// As [`Comm::over`], and if the new communicator has another rank or size.
    pub fn rejoin(&self, ctx: &mut WorkerContext) -> Result<()> {
        let comm = child(ctx, &self.0.scope)?;
        if (comm.rank().index(), comm.size()) != (self.rank(), self.size()) {
            let (rank, size) = (comm.rank(), comm.size());
            return Err(Error::invalid(format!("{self:?} can't become {rank} of {size} ranks")));
        }
        self.with(|state| {
            (state.comm, state.is_silent) = (Some(comm), false);
            #[cfg(feature = "cuda")]
            {
                state.stream = None;
            }
            Ok(())
        })
    }

    /// The position of this worker among the ranks.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Whether each collective starts with a barrier, so that [`Stats::waiting`] has the time that this rank waits for
    /// slower ranks. The barrier costs time itself. All ranks must choose alike.
    ///
    /// # Errors
    /// The handle is on another thread than its worker.
    pub fn measure_waits(&self, measures: bool) -> Result<()> {
        self.with(|state| {
            state.measures_waits = measures;
            Ok(())
        })
    }

    /// Counts, bytes and times of the collectives since the last call.
    ///
    /// # Errors
    /// The handle is on another thread than its worker.
    pub fn take_stats(&self) -> Result<Stats> {
        self.with(|state| Ok(std::mem::take(&mut state.stats)))
    }

    /// Whether each collective starts with a barrier.
    #[cfg(feature = "cuda")]
    pub fn measures_waits(&self) -> Result<bool> {
        self.with(|state| Ok(state.measures_waits))
    }

    /// Runs work whose collectives do not run yet. Returns their counts, which are not part of the statistics.
    #[cfg(feature = "cuda")]
    pub(crate) fn uncounted<T>(&self, work: impl FnOnce() -> T) -> Result<(T, Stats)> {
        let before = self.take_stats()?;
        let outcome = work();
        self.with(|state| Ok((outcome, std::mem::replace(&mut state.stats, before))))
    }

    /// Adds collectives to the statistics that run without a call of [`Comm::enqueue`].
    #[cfg(feature = "cuda")]
    pub(crate) fn count(&self, stats: &Stats) -> Result<()> {
        self.with(|state| {
            state.stats.collectives += stats.collectives;
            state.stats.bytes += stats.bytes;
            Ok(())
        })
    }

    /// Runs one collective. Does nothing on a communicator without a session.
    pub(crate) fn enqueue(&self, op: Op) -> Result<()> {
        self.with(|state| {
            let Some(comm) = state.comm.as_mut().filter(|_| !state.is_silent) else { return Ok(()) };
            if state.measures_waits {
                let start = Instant::now();
                comm.enqueue(&[Op::Barrier])?;
                state.stats.waiting += start.elapsed();
            }
            let begun = Instant::now();
            let bytes = op.dst().map_or(0, |dst| dst.byte_len() as u64);
            comm.enqueue(&[op])?;
            state.stats.collectives += 1;
            state.stats.bytes += bytes;
            state.stats.time += begun.elapsed();
            Ok(())
        })
    }

    fn set_silent(&self, is_silent: bool) -> Result<()> {
        self.with(|state| {
            state.is_silent = is_silent;
            Ok(())
        })
    }

    /// Runs work whose collectives are left out, so that its results are wrong and no rank waits for another one.
    pub fn silently<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let _silence = Silence::new(self)?;
        Ok(work())
    }

    /// Waits for all collectives. On a device, collectives run behind the calls of the host: call it before a copy to the
    /// host that waits for the device, which has no deadline. Does nothing without a session.
    ///
    /// # Errors
    /// [`Error::Deadline`] with the missing rank; a collective has failed; the handle is on another thread than its worker.
    pub fn synchronize(&self) -> Result<()> {
        self.with(|state| state.comm.as_mut().map_or(Ok(()), |comm| comm.synchronize()))
    }

    /// The stream on which the collectives run. None on a communicator without a session.
    #[cfg(feature = "cuda")]
    pub(crate) fn stream(&self) -> Result<Option<WorkerStream>> {
        self.with(|state| {
            if let (None, Some(comm)) = (&state.stream, &mut state.comm) {
                let stream = WorkerStream::of_communicator(&mut **comm).map_err(|error| match error {
                    Error::Unsupported { .. } => Error::invalid(
                        "collectives of candle tensors on CUDA need the backend nccl or cuda_p2p, and this communicator \
                         has another: call init_ccl with one of them, or move the tensor to the host",
                    ),
                    error => error,
                });
                state.stream = Some(stream?);
            }
            Ok(state.stream.clone())
        })
    }

    fn with<T>(&self, run: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let used = self.0.state.try_with(|state| match state.try_borrow_mut() {
            Ok(mut state) => run(&mut state),
            Err(_) => Err(Error::Busy("a collective of the communicator is running")),
        });
        let other_thread = || Error::invalid(format!("{self:?} belongs to the thread of its worker, not to this one"));
        used.unwrap_or_else(|_| Err(other_thread()))
    }
}

/// Collectives of a communicator are left out until the drop, also by a panic.
struct Silence<'a>(&'a Comm);

impl<'a> Silence<'a> {
    fn new(comm: &'a Comm) -> Result<Self> {
        comm.set_silent(true).map(|()| Self(comm))
    }
}

impl Drop for Silence<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.set_silent(false) {
            tracing::error!(%error, "a communicator leaves out its collectives");
        }
    }
}

fn child(ctx: &mut WorkerContext, scope: &Scope) -> Result<Box<dyn Communicator>> {
    let parent = ctx.comm_in(scope)?;
    let rank = parent.rank().index() as i32;
    // Every rank passes the same color, so the child has all ranks.
    parent.split(Some(0), rank)?.ok_or(Error::NoCommunicator)
}

disco_core::format_as!(Debug for Comm, |it| "the communicator of rank {} of {}", it.rank(), it.size());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_on_another_thread_is_an_error() {
        let comm = Comm::alone();
        assert_eq!(comm.take_stats().unwrap(), Stats::default());
        let other = comm.clone();
        let error = std::thread::spawn(move || other.take_stats().unwrap_err().to_string()).join().unwrap();
        assert_eq!(error, "the communicator of rank 0 of 1 belongs to the thread of its worker, not to this one");
    }
}
