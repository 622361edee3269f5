//! All-reduce over ranks that access each other's memory: `all_reduce.cu`. Elements are added as f32 in the order of
//! ranks.

use std::ops::Range;

use half::{bf16, f16};

use super::Kernel;
use super::handshake::{Handshake, Phase};
use super::launch::Launch;
use super::params::{MAX_WORLD, VECTOR};
use crate::cuda::memory::Span;

/// The type of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    F16,
    BF16,
}

/// Runs the blocks of a launch one after the other.
pub(super) fn run(launch: &Launch) {
    for block in 0..launch.grid.blocks {
        Block { launch, block, handshake: Handshake::begin(launch, block) }.run();
    }
}

struct Block<'l> {
    launch: &'l Launch,
    block: usize,
    handshake: Handshake<'l>,
}

impl Block<'_> {
    fn run(self) {
        let kernel = self.launch.kernel;
        // A launch without vectors, which has no input, makes its handshakes nevertheless.
        match kernel {
            Kernel::OneShot(element) => self.one_shot(element),
            Kernel::TwoShot(element) => self.two_shot(element),
            Kernel::HybridCubeMesh(element) => self.hybrid_cube_mesh(element),
            Kernel::Barrier => {
                let all_ranks = self.all_ranks();
                self.handshake.finish(Phase::Alone, all_ranks);
            }
        }
    }

    /// Each rank reads all inputs.
    fn one_shot(mut self, element: Element) {
        let all_ranks = self.all_ranks();
        self.copy_in();
        if !self.handshake.meet(Phase::Leading, all_ranks) {
            return;
        }
        for vectors in self.runs(self.count()) {
            write(&self.launch.output, vectors.start, &self.sum(element, all_ranks, &vectors));
        }
        self.handshake.finish(Phase::Trailing, all_ranks);
    }

    /// Each rank sums one slice, then reads the sums of the other slices.
    fn two_shot(mut self, element: Element) {
        let all_ranks = self.all_ranks();
        let (rank, own) = (self.launch.params.rank as usize, self.own());
        let slice = self.count().div_ceil(self.world() * 8) * 8;
        for row in self.runs(slice) {
            for part in (0..self.world()).map(|rank| self.part(rank * slice, &row)) {
                write(&own, part.start, &read(&self.launch.input, &part));
            }
        }
        if !self.handshake.meet(Phase::Leading, all_ranks) {
            return;
        }
        for part in self.runs(slice).map(|row| self.part(rank * slice, &row)) {
            write(&own, part.start, &self.sum(element, all_ranks, &part));
        }
        if !self.handshake.meet(Phase::Mid, all_ranks) {
            return;
        }
        for row in self.runs(slice) {
            for rank in 0..self.world() {
                let part = self.part(rank * slice, &row);
                write(&self.launch.output, part.start, &read(&self.launch.data.get(&rank).cloned(), &part));
            }
        }
        self.handshake.finish(Phase::Trailing, all_ranks);
    }

    /// Each rank sums the inputs of its half and stores the sum after its input; then it adds the sum of its relay in
    /// the other half.
    fn hybrid_cube_mesh(mut self, element: Element) {
        let (near, relay, count) = (self.launch.params.near, self.launch.params.relay, self.count());
        self.copy_in();
        if !self.handshake.meet(Phase::Leading, near) {
            return;
        }
        let own = self.own();
        for vectors in self.runs(count) {
            write(&own, count + vectors.start, &self.sum(element, near, &vectors));
        }
        if !self.handshake.meet(Phase::Mid, 1 << relay) {
            return;
        }
        let other = self.launch.data.get(&(relay as usize)).cloned();
        for vectors in self.runs(count) {
            let behind = count + vectors.start..count + vectors.end;
            let halves = [&own, &other].map(|half| read(half, &behind));
            write(&self.launch.output, vectors.start, &element.sum(&halves));
        }
        self.handshake.finish(Phase::Trailing, near | 1 << relay);
    }

    fn copy_in(&self) {
        let own = self.own();
        for vectors in self.runs(self.count()) {
            write(&own, vectors.start, &read(&self.launch.input, &vectors));
        }
    }

    /// The sum of some vectors over the ranks in `mask`.
    fn sum(&self, element: Element, mask: u32, vectors: &Range<usize>) -> Vec<u8> {
        let ranks = (0..MAX_WORLD).filter(|rank| mask >> rank & 1 == 1);
        let of_ranks: Vec<_> = ranks.map(|rank| read(&self.launch.data.get(&rank).cloned(), vectors)).collect();
        element.sum(&of_ranks)
    }

    /// The vectors of this block among `count` vectors, in ranges of one vector for each thread.
    fn runs(&self, count: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (threads, blocks) = (self.launch.grid.threads, self.launch.grid.blocks);
        let starts = (self.block * threads..count).step_by(blocks * threads);
        starts.map(move |start| start..(start + threads).min(count))
    }

    /// The given vectors of the slice that begins at `start`, cut at the end of the data.
    fn part(&self, start: usize, vectors: &Range<usize>) -> Range<usize> {
        (start + vectors.start).min(self.count())..(start + vectors.end).min(self.count())
    }

    fn own(&self) -> Option<Span> {
        self.launch.data.get(&(self.launch.params.rank as usize)).cloned()
    }

    fn all_ranks(&self) -> u32 {
        (1 << self.world()) - 1
    }

    fn world(&self) -> usize {
        self.launch.params.world as usize
    }

    fn count(&self) -> usize {
        self.launch.params.count as usize
    }
}

impl Element {
    /// Sums the ranks' data in rank order. The sum starts at -0, the neutral element of addition.
    fn sum(self, of_ranks: &[Vec<u8>]) -> Vec<u8> {
        let lanes = |bytes: &Vec<u8>| bytes.len() / if self == Self::F32 { 4 } else { 2 };
        let mut sums = vec![-0.0_f32; of_ranks.first().map_or(0, lanes)];
        for bytes in of_ranks {
            match self {
                Self::F32 => add(&mut sums, bytes, f32::from_le_bytes),
                Self::F16 => add(&mut sums, bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
                Self::BF16 => add(&mut sums, bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            }
        }
        match self {
            Self::F32 => sums.iter().flat_map(|sum| sum.to_le_bytes()).collect(),
            Self::F16 => sums.iter().flat_map(|&sum| f16::from_f32(sum).to_le_bytes()).collect(),
            Self::BF16 => sums.iter().flat_map(|&sum| bf16::from_f32(sum).to_le_bytes()).collect(),
        }
    }
}

fn add<const N: usize>(sums: &mut [f32], bytes: &[u8], number: impl Fn([u8; N]) -> f32) {
    sums.iter_mut().zip(bytes.as_chunks().0).for_each(|(sum, &bytes)| *sum += number(bytes));
}

fn read(from: &Option<Span>, vectors: &Range<usize>) -> Vec<u8> {
    let span = from.as_ref().map(|from| from.part(VECTOR * vectors.start, VECTOR * vectors.len()));
    span.map_or_else(Vec::new, |span| span.to_vec())
}

fn write(to: &Option<Span>, first: usize, bytes: &[u8]) {
    if let Some(to) = to {
        to.part(VECTOR * first, bytes.len()).write(bytes);
    }
}
