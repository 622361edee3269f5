//! Exchanges of tensors between workers: descriptions for both the worker functions and the plain loops that check
//! them.

use disco::{DType, Mesh, Reduction, Result};

use super::random::Random;

/// Element types of the soak. Their values fit in an `i64`; the conformance suite tests the other types.
pub(crate) const DTYPES: [DType; 7] =
    [DType::U8, DType::I16, DType::I32, DType::U32, DType::I64, DType::F32, DType::F64];

/// The reduction of the soak, registered for all its types: the next element of the row, minus the element itself.
/// Neither commutative nor associative.
pub(crate) const TURN: Reduction = Reduction::Custom("soak.turn");

/// The reductions of the soak.
pub(crate) const REDUCTIONS: [Reduction; 6] =
    [Reduction::Sum, Reduction::Prod, Reduction::Min, Reduction::Max, Reduction::Avg, TURN];

/// `f32` represents integers below this exactly.
pub(crate) const EXACT: i64 = 1 << 24;

/// An exchange between the workers of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    Reduce,
    ReduceScatter,
    AllGather,
    AllGatherV,
    Broadcast,
    Gather,
    Scatter,
    AllToAll,
    AllToAllV,
    Barrier,
    /// Each rank sends to the next one.
    Ring,
    /// Each rank sends to every rank, including itself: an all-to-all of sends and receives.
    Sends,
}

impl Kind {
    pub(crate) const ALL: [Self; 13] = [
        Self::AllReduce,
        Self::Reduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::AllGatherV,
        Self::Broadcast,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::AllToAllV,
        Self::Barrier,
        Self::Ring,
        Self::Sends,
    ];
}

/// The communicator of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    World,
    Group,
    /// A split into even and odd workers, in reverse order, made for this exchange.
    Split,
    /// Axes of a mesh of two axes: the number chooses a size and the axes.
    Along(usize),
}

/// Numbers of [`Scope::Along`] that are drawn.
const MESHES: usize = 6;

impl Scope {
    pub(crate) fn draw(random: &mut Random) -> Self {
        match random.below(4) {
            0 => Self::World,
            1 => Self::Group,
            2 => Self::Split,
            _ => Self::draw_mesh(random),
        }
    }

    pub(crate) fn draw_mesh(random: &mut Random) -> Self {
        Self::Along(random.below(MESHES))
    }

    fn number(self) -> usize {
        match self {
            Self::World => 0,
            Self::Group => 1,
            Self::Split => 2,
            Self::Along(number) => 3 + number,
        }
    }

    fn from_number(number: usize) -> Self {
        match number {
            0 => Self::World,
            1 => Self::Group,
            2 => Self::Split,
            _ => Self::Along(number - 3),
        }
    }

    /// The scope for the session; none for a split, which is no scope.
    pub(crate) fn of_session(self, workers: usize) -> Result<Option<disco::Scope>> {
        Ok(match self {
            Self::World => Some(disco::Scope::World),
            Self::Group => Some(disco::Scope::Group),
            Self::Split => None,
            Self::Along(number) => {
                let rows = rows(number, workers);
                let axes = [&["x"][..], &["y"], &["y", "x"]][number % 3];
                Some(Mesh::new([("x", rows), ("y", workers / rows)])?.along(axes)?)
            }
        })
    }

    /// The workers of each communicator, in rank order.
    pub(crate) fn communicators(self, workers: usize, groups: usize) -> Vec<Vec<usize>> {
        match self {
            Self::World => vec![(0..workers).collect()],
            Self::Group => (0..workers).collect::<Vec<_>>().chunks(workers / groups).map(<[usize]>::to_vec).collect(),
            Self::Split => {
                let members = |parity| (0..workers).rev().filter(|worker| worker % 2 == parity).collect::<Vec<_>>();
                [0, 1].map(members).into_iter().filter(|members| !members.is_empty()).collect()
            }
            Self::Along(number) => {
                let rows = rows(number, workers);
                let columns = workers / rows;
                let column = |y| (0..rows).map(move |x| x * columns + y);
                match number % 3 {
                    0 => (0..columns).map(|y| column(y).collect()).collect(),
                    1 => (0..rows).map(|x| (x * columns..(x + 1) * columns).collect()).collect(),
                    _ => vec![(0..columns).flat_map(column).collect()],
                }
            }
        }
    }
}

/// The size of the first of two axes, by the number of a scope.
fn rows(number: usize, workers: usize) -> usize {
    let divisors: Vec<usize> = (1..=workers).filter(|size| workers.is_multiple_of(*size)).collect();
    divisors[(number / 3 + 1) % divisors.len()]
}

/// The memory of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Of the worker's allocator, which other workers may map.
    Shared,
    /// Private memory of the worker's process.
    Private,
    /// A vector of the worker function, lent to the tensor from its second element on.
    Lent,
}

impl Memory {
    pub(crate) const ALL: [Self; 3] = [Self::Shared, Self::Private, Self::Lent];

    /// As an argument of a worker function.
    pub(crate) fn number(self) -> i64 {
        place(&Self::ALL, &self)
    }
}

/// The position of an item.
fn place<T: PartialEq>(items: &[T], item: &T) -> i64 {
    items.iter().position(|other| other == item).unwrap_or(0) as i64
}

/// One exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    pub(crate) kind: Kind,
    pub(crate) scope: Scope,
    pub(crate) reduction: Reduction,
    /// The root's rank, modulo the number of ranks.
    pub(crate) root: usize,
    /// Memory of the result.
    pub(crate) memory: Memory,
}

impl Exchange {
    /// As arguments of the worker function.
    pub(crate) fn args(&self) -> (i64, i64, i64, i64, i64) {
        (
            place(&Kind::ALL, &self.kind),
            self.scope.number() as i64,
            place(&REDUCTIONS, &self.reduction),
            self.root as i64,
            self.memory.number(),
        )
    }

    pub(crate) fn from_args((kind, scope, reduction, root, memory): (usize, usize, usize, usize, usize)) -> Self {
        let (kind, scope, reduction) = (Kind::ALL[kind], Scope::from_number(scope), REDUCTIONS[reduction]);
        Self { kind, scope, reduction, root, memory: Memory::ALL[memory] }
    }
}

/// One exchange of a burst, with the tensor that each worker makes for it.
pub(crate) struct Burst {
    pub(crate) exchange: Exchange,
    pub(crate) dtype: DType,
    pub(crate) count: usize,
    pub(crate) seed: usize,
    /// Memory of the tensor.
    pub(crate) memory: Memory,
}

impl Burst {
    /// Draws exchanges from a seed, the same on all workers. Reductions of floats are only min and max, which are
    /// exact.
    pub(crate) fn draw(seed: u64, exchanges: usize) -> Vec<Self> {
        const COUNTS: [usize; 6] = [6, 60, 240, 600, 6_000, 30_000];
        let mut random = Random::new(seed);
        let mut draw = || {
            let dtype = random.pick(&DTYPES);
            let reductions = [Reduction::Max, Reduction::Min, Reduction::Sum, Reduction::Prod, TURN];
            let reduction = random.pick(if dtype.is_float() { &reductions[..2] } else { &reductions });
            let along = Scope::draw_mesh(&mut random);
            let (kind, scope) =
                (random.pick(&Kind::ALL), random.pick(&[Scope::World, Scope::World, Scope::Group, along]));
            let (root, memory) = (random.below(8), random.pick(&Memory::ALL));
            let exchange = Exchange { kind, scope, reduction, root, memory };
            let (count, seed, memory) = (random.pick(&COUNTS), random.below(1000), random.pick(&Memory::ALL));
            Self { exchange, dtype, count, seed, memory }
        };
        (0..exchanges).map(|_| draw()).collect()
    }
}

/// Elements of a row in reductions of blocks of `block` elements.
pub(crate) fn row(block: usize) -> usize {
    if block.is_multiple_of(3) { 3 } else { 1 }
}

/// Number of elements of rank `from` in an uneven gather, at most `count`.
pub(crate) fn uneven(from: usize, count: usize) -> usize {
    count * (from % 3) / 2
}

/// Number of elements that rank `from` sends to rank `to` in an uneven all-to-all, at most `block`.
pub(crate) fn uneven_pair(from: usize, to: usize, block: usize) -> usize {
    if (from + 2 * to).is_multiple_of(3) { 0 } else { block - (from + to) % 2 * (block / 2) }
}

/// Element `index` of the tensor that `worker` makes.
pub(crate) fn element(worker: usize, index: usize, seed: usize) -> i64 {
    ((worker * 31 + index * 7 + seed) % 101) as i64
}

/// Appends a number, wrapped to an element of type `dtype`.
pub(crate) fn encode(dtype: DType, number: i64, bytes: &mut Vec<u8>) {
    match dtype {
        DType::U8 => bytes.push(number as u8),
        DType::I16 => bytes.extend((number as i16).to_ne_bytes()),
        DType::I32 => bytes.extend((number as i32).to_ne_bytes()),
        DType::U32 => bytes.extend((number as u32).to_ne_bytes()),
        DType::I64 => bytes.extend(number.to_ne_bytes()),
        DType::F32 => bytes.extend((number as f32).to_ne_bytes()),
        DType::F64 => bytes.extend((number as f64).to_ne_bytes()),
        other => unreachable!("{other} is not among the element types of the soak"),
    }
}

/// A hash of bytes, the same in all processes of this program.
pub(crate) fn hash(bytes: &[u8]) -> i64 {
    use std::hash::{DefaultHasher, Hasher as _};
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish() as i64
}
