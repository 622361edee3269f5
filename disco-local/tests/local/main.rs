//! What is particular to the built-in data plane, seen from outside. What all backends have in common is checked by the
//! conformance suite, as tests of the root package.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod abort;
mod connect;
mod failure;
mod mixed;
mod numerics;
mod point_to_point;
mod split;

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use disco_core::{DType, Tensor};
use disco_local::{Communicator, connect_threads};

/// Long enough for the slowest machine: reached by broken code only.
const LONG: Duration = Duration::from_secs(60);
/// For waits that nobody ends.
const SHORT: Duration = Duration::from_millis(50);

/// Runs `body` once a rank, each on a thread of its own, and gives what they return, by rank.
fn on_ranks<T: Send>(size: usize, body: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    on_threads(connect_threads(size, LONG).unwrap(), body)
}

fn on_threads<C: Send, T: Send>(ranks: Vec<C>, body: impl Fn(C) -> T + Sync) -> Vec<T> {
    let body = &body;
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || body(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A host tensor with these bytes.
fn tensor(dtype: DType, bytes: &[u8]) -> Tensor {
    let tensor = Tensor::zeros(dtype, [(bytes.len() / dtype.size()) as i64]).unwrap();
    tensor.bytes_mut().unwrap().copy_from_slice(bytes);
    tensor
}

fn floats(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len() as i64]).unwrap()
}

fn zeros(count: usize) -> Tensor {
    Tensor::zeros(DType::F32, [count as i64]).unwrap()
}

/// A place where one thread leaves something for another.
struct Shelf<T>(Mutex<Option<T>>);

impl<T> Shelf<T> {
    fn new(value: T) -> Self {
        Self(Mutex::new(Some(value)))
    }

    fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
