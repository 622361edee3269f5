//! Lower bounds ("floors") of collectives: the time of threads that know all addresses and do only the necessary work.
//!
//! Spinning threads pass an entry and an exit barrier, with the minimum of reads and writes between them: a thread
//! reduces its share of all inputs and writes it to all outputs, or copies its blocks. There are two variants: with
//! ordinary stores and with non-temporal stores.

#![allow(unsafe_code)]

use std::thread;
use std::time::{Duration, Instant};

use disco::{DType, OpKind, Tensor};

use super::spin::Barrier;

/// Iterations before the clock starts, which evict other data from the caches.
pub(crate) const WARM_UP: u64 = 3;

/// One collective between threads, on `f32` elements.
pub(crate) struct Floor {
    kind: OpKind,
    /// The source of each thread; in place, the same tensor as its output.
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// Number of elements of the larger of source and destination.
    count: usize,
}

impl Floor {
    /// A collective on these tensors. `inputs` and `outputs` have one tensor for each thread. If a rank has no source or
    /// destination, its entry is not used.
    pub(crate) fn on(kind: OpKind, inputs: Vec<Tensor>, outputs: Vec<Tensor>, count: usize) -> Self {
        Self { kind, inputs, outputs, count }
    }

    /// A collective on new tensors of `count` elements.
    pub(crate) fn new(kind: OpKind, in_place: bool, threads: usize, count: usize) -> Self {
        let tensor = |_| {
            let tensor = Tensor::zeros(DType::F32, [count as i64]).expect("there is room");
            // Touches the pages before the clock starts.
            tensor.view_mut::<f32>().expect("it is new").fill(1.0);
            tensor
        };
        let tensors = || -> Vec<Tensor> { (0..threads).map(tensor).collect() };
        let outputs = tensors();
        let inputs = if in_place { outputs.clone() } else { tensors() };
        Self::on(kind, inputs, outputs, count)
    }

    /// Runs `iters` operations and returns the time of one. `stream` selects non-temporal stores.
    pub(crate) fn run(&self, iters: u64, stream: bool) -> Duration {
        let barrier = Barrier::new(self.inputs.len());
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.inputs.len())
                .map(|me| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        let mut start = Instant::now();
                        for iter in 1..=WARM_UP + iters {
                            barrier.wait(me, 2 * iter);
                            self.work(me, stream);
                            barrier.wait(me, 2 * iter + 1);
                            if iter == WARM_UP {
                                start = Instant::now();
                            }
                        }
                        start.elapsed() / iters as u32
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).max().unwrap_or_default()
        })
    }

    /// The work of one thread between the two barriers.
    fn work(&self, me: usize, stream: bool) {
        let threads = self.inputs.len();
        let output = |peer: usize| self.outputs[peer].data().cast::<f32>();
        let input = |peer: usize| self.inputs[peer].data().cast::<f32>();
        let block = self.count / threads;
        let start = me * block;
        let all: Vec<usize> = (0..threads).collect();
        let share = |of: &dyn Fn(usize) -> *mut f32, peers: &[usize]| -> Vec<*mut f32> {
            peers.iter().map(|peer| of(*peer).wrapping_add(start)).collect()
        };
        let copy = |from: *mut f32, to: *mut f32| {
            // SAFETY: blocks are inside tensors of `count` elements, and each block has one writing thread.
            unsafe { copy(from, to, block, stream) }
        };
        let sum = |to: &[*mut f32]| {
            // SAFETY: blocks are inside tensors of `count` elements, and each block has one writing thread. Inputs are
            // outputs or are only read.
            unsafe { sum(&share(&input, &all), to, block, stream) }
        };
        match self.kind {
            OpKind::AllReduce => sum(&share(&output, &all)),
            OpKind::Reduce => sum(&share(&output, &[0])),
            OpKind::ReduceScatter => sum(&[output(me)]),
            OpKind::AllGather => all.iter().for_each(|&peer| copy(input(peer), output(me).wrapping_add(peer * block))),
            OpKind::AllToAll => all
                .iter()
                .for_each(|&peer| copy(input(peer).wrapping_add(start), output(me).wrapping_add(peer * block))),
            OpKind::Broadcast => all.iter().filter(|peer| **peer > 0).for_each(|&peer| {
                copy(output(0).wrapping_add(start), output(peer).wrapping_add(start));
            }),
            OpKind::Gather => copy(input(me), output(0).wrapping_add(start)),
            OpKind::Scatter => copy(input(0).wrapping_add(start), output(me)),
            _ => {}
        }
    }
}

/// # Safety
/// Both are valid for `len` elements and do not overlap. No other thread writes to `from` or accesses `to`.
unsafe fn copy(from: *const f32, to: *mut f32, len: usize, stream: bool) {
    #[cfg(target_arch = "x86_64")]
    if stream && len >= 8 && is_x86_feature_detected!("avx2") && to.addr().is_multiple_of(32) {
        // SAFETY: the CPU has AVX2; the caller guarantees the pointers.
        return unsafe { x86::copy(from, to, len) };
    }
    // SAFETY: the caller guarantees the pointers.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// # Safety
/// The requirements of [`copy`] hold for all inputs and outputs, except that outputs may be inputs.
unsafe fn sum(from: &[*mut f32], to: &[*mut f32], len: usize, stream: bool) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        done = len / 8 * 8;
        let stream = stream && to.iter().all(|to| to.addr().is_multiple_of(32));
        match (from, to) {
            // Two threads are the most frequent case: all addresses fit in registers.
            // SAFETY: the CPU has AVX2; the caller guarantees the pointers.
            (&[a, b], &[c]) => unsafe { x86::sum(&[a, b], &[c], done, stream) },
            // SAFETY: the CPU has AVX2; the caller guarantees the pointers.
            (&[a, b], &[c, d]) => unsafe { x86::sum(&[a, b], &[c, d], done, stream) },
            // SAFETY: the CPU has AVX2; the caller guarantees the pointers.
            _ => unsafe { x86::sum_any(from, to, done, stream) },
        }
    }
    for at in done..len {
        // SAFETY: the caller guarantees the pointers.
        let load = |from: &*mut f32| unsafe { from.wrapping_add(at).read() };
        let sum: f32 = from.iter().map(load).sum();
        // SAFETY: the caller guarantees the pointers.
        to.iter().for_each(|to| unsafe { to.wrapping_add(at).write(sum) });
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m256, _mm_sfence, _mm256_add_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_stream_ps};

    /// # Safety
    /// The requirements of [`super::copy`] hold, and `to` is aligned to 32 bytes.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn copy(from: *const f32, to: *mut f32, len: usize) {
        let whole = len / 8 * 8;
        for at in (0..whole).step_by(8) {
            // SAFETY: `at + 8` is at most `len`.
            let eight = unsafe { _mm256_loadu_ps(from.wrapping_add(at)) };
            // SAFETY: `at + 8` is at most `len`.
            unsafe { _mm256_stream_ps(to.wrapping_add(at), eight) };
        }
        _mm_sfence();
        // SAFETY: `whole` is at most `len`.
        unsafe { std::ptr::copy(from.wrapping_add(whole), to.wrapping_add(whole), len - whole) };
    }

    /// # Safety
    /// The requirements of [`super::sum`] hold, and `len` is a multiple of 8. With `stream`, outputs are aligned to 32
    /// bytes.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn sum<const N: usize>(from: &[*mut f32; 2], to: &[*mut f32; N], len: usize, stream: bool) {
        let [a, b] = *from;
        let add = |at: usize| {
            // SAFETY: `at + 8` is at most `len`.
            let a = unsafe { _mm256_loadu_ps(a.wrapping_add(at)) };
            // SAFETY: `at + 8` is at most `len`.
            let b = unsafe { _mm256_loadu_ps(b.wrapping_add(at)) };
            _mm256_add_ps(a, b)
        };
        if stream {
            for at in (0..len).step_by(8) {
                let sum = add(at);
                // SAFETY: `at + 8` is at most `len`, and the address is aligned to 32 bytes.
                to.iter().for_each(|to| unsafe { _mm256_stream_ps(to.wrapping_add(at), sum) });
            }
            _mm_sfence();
        } else {
            for at in (0..len).step_by(8) {
                let sum = add(at);
                // SAFETY: `at + 8` is at most `len`.
                to.iter().for_each(|to| unsafe { _mm256_storeu_ps(to.wrapping_add(at), sum) });
            }
        }
    }

    /// # Safety
    /// The requirements of [`super::sum`] hold, and `len` is a multiple of 8. With `stream`, outputs are aligned to 32
    /// bytes.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn sum_any(from: &[*mut f32], to: &[*mut f32], len: usize, stream: bool) {
        let Some((first, rest)) = from.split_first() else { return };
        for at in (0..len).step_by(8) {
            // SAFETY: `at + 8` is at most `len`.
            let load = |from: &*mut f32| -> __m256 { unsafe { _mm256_loadu_ps(from.wrapping_add(at)) } };
            let sum = rest.iter().fold(load(first), |sum, from| _mm256_add_ps(sum, load(from)));
            for to in to {
                if stream {
                    // SAFETY: `at + 8` is at most `len`, and the address is aligned to 32 bytes.
                    unsafe { _mm256_stream_ps(to.wrapping_add(at), sum) }
                } else {
                    // SAFETY: `at + 8` is at most `len`.
                    unsafe { _mm256_storeu_ps(to.wrapping_add(at), sum) }
                }
            }
        }
        _mm_sfence();
    }
}
