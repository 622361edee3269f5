//! Copies between the host and a device, which go in pieces through a few chunks of pinned memory.

use std::time::Duration;

use disco::nccl::cuda::Cuda;
use disco::{DType, Device, DeviceApi as _, DeviceKind, Queue, Tensor};

use crate::on_the_double;

const MIB: usize = 1 << 20;
const SYNCHRONIZE_DEADLINE: Duration = Duration::from_secs(30);

fn queue() -> Box<dyn Queue> {
    Cuda.bind(Device::new(DeviceKind::Cuda, 0)).unwrap()
}

fn device_tensor(queue: &mut dyn Queue, bytes: usize) -> Tensor {
    Tensor::from_storage(queue.alloc(bytes).unwrap(), DType::U8, [bytes as i64]).unwrap()
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 4096 + seed) as u8).collect()
}

on_the_double!(copies_of_every_size_arrive_intact, [], {
    let mut queue = queue();
    let sizes = [1, 255, 257, 5000, MIB + 1, 3 * MIB, 4 * MIB, 4 * MIB + 1, 21 * MIB + 77];
    let pairs: Vec<_> = sizes
        .into_iter()
        .enumerate()
        .map(|(seed, bytes)| (pattern(bytes, seed), device_tensor(&mut *queue, bytes)))
        .collect();
    for (host, device) in &pairs {
        queue.copy_in(device, &Tensor::from_slice(host, [host.len() as i64]).unwrap()).unwrap();
    }
    let back: Vec<_> = pairs.iter().map(|(host, _)| Tensor::zeros(DType::U8, [host.len() as i64]).unwrap()).collect();
    for ((_, device), to) in pairs.iter().zip(&back) {
        queue.copy_out(to, device).unwrap();
    }
    queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    for ((host, _), to) in pairs.iter().zip(&back) {
        assert!(to.to_vec::<u8>().unwrap() == *host, "{} bytes", host.len());
    }
});

on_the_double!(copies_take_little_pinned_memory, [], {
    let mut queue = queue();
    let device = device_tensor(&mut *queue, 64 * MIB);
    let host = Tensor::zeros(DType::U8, [(64 * MIB) as i64]).unwrap();
    let before = crate::costs::counts().allocations;
    for _ in 0..3 {
        queue.copy_in(&device, &host).unwrap();
        queue.copy_out(&host, &device).unwrap();
        queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    }
    // Some more if the double's stream thread gets no CPU time for a while.
    let chunks = crate::costs::counts().allocations - before;
    assert!((1..32).contains(&chunks), "{chunks} chunks for 384 pieces");
});
