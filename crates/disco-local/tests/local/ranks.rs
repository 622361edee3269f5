//! Ranks of each address space, and their tensors.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use disco_core::device_api::{self, DeviceApi};
use disco_core::link::{Link, Shared};
use disco_core::shared_memory::Arena;
use disco_core::{Backend as _, ConnectParams, DType, Device, Rank, Result, Tensor, World};
use disco_local::{BACKEND, Communicator, connect_threads};

use super::WHERE;

/// The address spaces of ranks and the memory of their tensors.
#[allow(dead_code, reason = "each module uses one variant")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// Ranks are threads of one process.
    Threads,
    /// Ranks communicate like processes; tensors are in arenas.
    Arenas,
    /// Ranks communicate like processes; tensors are in private memory.
    Private,
}

/// A deadline that only broken code reaches, also on a slow machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// The deadline of waits that are expected to time out.
pub(crate) const SHORT: Duration = Duration::from_millis(50);

/// Runs `body` for each rank on a thread of its own, and returns the results by rank.
pub(crate) fn on_ranks<T: Send>(size: usize, body: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    on_threads(ranks(size, LONG).unwrap(), body)
}

pub(crate) fn on_threads<C: Send, T: Send>(ranks: Vec<C>, body: impl Fn(C) -> T + Sync) -> Vec<T> {
    let body = &body;
    thread::scope(|scope| {
        let start = |(index, comm)| {
            scope.spawn(move || {
                MINE.set(Some(index));
                body(comm)
            })
        };
        let threads: Vec<_> = ranks.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Makes communicators of `size` ranks. Each may be sent to a thread of its own.
pub(crate) fn ranks(size: usize, deadline: Duration) -> Result<Vec<Communicator>> {
    if WHERE == Where::Threads {
        return connect_threads(size, deadline);
    }
    let world = World::new(size, 1)?;
    let (at, shared) = (BACKEND.rendezvous(&world)?, Arc::new(Shared::default()));
    let connect = |rank: usize| {
        let mut queue = device_api::Host.bind(Device::CPU)?;
        let link = Arc::new(Link::bare(shared.clone()).in_arena(arena(rank)));
        let (rank, queue) = (Rank::new(rank as u32), &mut *queue);
        let mut params = ConnectParams::new(rank, world, queue, link);
        (params.deadline, params.connect_deadline) = (deadline, LONG);
        Communicator::connect(params, &at)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || connect(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A tensor of zeros, in this thread's arena if ranks have arenas.
pub(crate) fn zeroed(dtype: DType, count: usize) -> Tensor {
    match MINE.get() {
        Some(index) if WHERE == Where::Arenas => {
            Tensor::from_storage(arena(index).alloc(count * dtype.size()).unwrap(), dtype, [count as i64]).unwrap()
        }
        _ => Tensor::zeros(dtype, [count as i64]).unwrap(),
    }
}

thread_local! {
    /// The index of this thread in its test, which is usually its rank. A rank can publish tensors of its own arena
    /// only.
    static MINE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The arena of a rank, shared by all tests.
fn arena(rank: usize) -> Arc<Arena> {
    static ARENAS: [OnceLock<Arc<Arena>>; 8] = [const { OnceLock::new() }; 8];
    ARENAS[rank].get_or_init(|| Arena::new(8).unwrap()).clone()
}

/// A host tensor with these bytes.
pub(crate) fn tensor(dtype: DType, bytes: &[u8]) -> Tensor {
    let tensor = zeroed(dtype, bytes.len() / dtype.size());
    tensor.bytes_mut().unwrap().copy_from_slice(bytes);
    tensor
}

pub(crate) fn floats(values: &[f32]) -> Tensor {
    tensor(DType::F32, bytemuck::cast_slice(values))
}

pub(crate) fn zeros(count: usize) -> Tensor {
    zeroed(DType::F32, count)
}
