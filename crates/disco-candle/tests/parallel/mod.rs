//! Collectives and layers on several ranks, compared with the same computation on one rank.

mod collectives;
mod failures;
mod layers;
mod training;

use std::thread;
use std::time::Duration;

use candle_core::{Device, Result, Tensor};
use disco_candle::Comm;

/// Runs `rank` on each of `n` ranks, which are threads. Returns the results in rank order.
fn on_ranks<T: Send>(n: usize, rank: impl Fn(&Comm) -> Result<T> + Sync) -> Vec<T> {
    let comms = disco_local::connect_threads(n, Duration::from_secs(60)).unwrap();
    thread::scope(|scope| {
        let rank = &rank;
        let run = |comm| scope.spawn(move || rank(&Comm::of_communicator(Box::new(comm))).unwrap());
        let threads: Vec<_> = comms.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A tensor of f32 whose elements depend on `seed`, between -1 and 1.
fn random(seed: u64, dims: &[usize]) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let elements: Vec<f32> = (0..dims.iter().product()).map(|_| next()).collect();
    Tensor::from_vec(elements, dims, &Device::Cpu).unwrap()
}

/// The elements in row-major order.
fn elements(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(candle_core::DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Asserts that the tensors have one shape, and elements that differ by `tolerance` at most.
#[track_caller]
fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f32) {
    assert_eq!(found.dims(), expected.dims());
    let differences = elements(found).into_iter().zip(elements(expected)).map(|(a, b)| (a - b).abs());
    let largest = differences.fold(0.0, f32::max);
    assert!(largest <= tolerance, "differs by {largest}: {found} {expected}");
}
