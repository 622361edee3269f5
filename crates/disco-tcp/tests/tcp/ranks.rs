//! Ranks on threads, and their tensors.

use std::sync::Arc;
use std::thread;

use disco_core::device_api::{DeviceApi as _, Host};
use disco_core::link::{Link, Shared};
use disco_core::{Backend as _, ConnectParams, DType, Device, Rank, Tensor, World};
use disco_tcp::{BACKEND, Communicator};

/// Runs `run` on each rank over connections between these machines, and returns what each rank has.
pub(crate) fn over_tcp<T: Send>(machines: &[usize], run: impl Fn(usize, &mut Communicator) -> T + Sync) -> Vec<T> {
    let link = Arc::new(Link::bare(Arc::new(Shared::default())));
    with_links(machines, &vec![link; machines.len()], run)
}

/// The same for ranks with these links to their session.
pub(crate) fn with_links<T: Send>(
    machines: &[usize],
    links: &[Arc<Link>],
    run: impl Fn(usize, &mut Communicator) -> T + Sync,
) -> Vec<T> {
    let world = World::new(machines.len(), 1).unwrap();
    let (at, run) = (&BACKEND.rendezvous(&world).unwrap(), &run);
    let rank = move |rank: usize| {
        let mut queue = Host.bind(Device::CPU).unwrap();
        let params = ConnectParams::new(Rank::new(rank as u32), world, &mut *queue, links[rank].clone());
        run(rank, &mut Communicator::connect_on(params, at, machines).unwrap())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..machines.len()).map(|number| scope.spawn(move || rank(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub(crate) fn tensor(bytes: &[u8], dtype: DType) -> Tensor {
    let tensor = Tensor::zeros(dtype, [bytes.len() / dtype.size()]).unwrap();
    tensor.bytes_mut().unwrap().copy_from_slice(bytes);
    tensor
}
