//! The expected tensors of all workers, computed by plain loops.

use disco::{DType, Reduction};

use super::exchange::{self, Burst, EXACT, Exchange, Kind, TURN, uneven, uneven_pair};

/// The elements of one tensor on each worker.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) dtype: DType,
    values: Vec<Vec<i64>>,
}

impl Model {
    /// The tensors that the worker function `soak.make` makes.
    pub(crate) fn made(dtype: DType, workers: usize, count: usize, seed: usize) -> Self {
        let values = |worker| (0..count).map(|index| exchange::element(worker, index, seed)).collect();
        Self { dtype, values: (0..workers).map(values).collect() }
    }

    /// The elements of `worker` on all workers.
    pub(crate) fn alike(&self, worker: usize) -> Self {
        Self { dtype: self.dtype, values: vec![self.values[worker].clone(); self.values.len()] }
    }

    /// The expected result of the worker function `soak.hash` on a worker.
    pub(crate) fn hash(&self, worker: usize) -> i64 {
        exchange::hash(&self.bytes(worker))
    }

    /// The expected results of the worker function `soak.burst`, by worker.
    pub(crate) fn of_burst(seed: u64, exchanges: usize, workers: usize, groups: usize) -> Vec<i64> {
        let results: Vec<Self> = Burst::draw(seed, exchanges)
            .iter()
            .map(|burst| Self::made(burst.dtype, workers, burst.count, burst.seed).after(&burst.exchange, groups))
            .collect();
        let hashes =
            |worker| results.iter().flat_map(move |result| result.hash(worker).to_ne_bytes()).collect::<Vec<_>>();
        (0..workers).map(|worker| exchange::hash(&hashes(worker))).collect()
    }

    /// The elements on a worker, as bytes.
    pub(crate) fn bytes(&self, worker: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.values[worker].iter().for_each(|value| exchange::encode(self.dtype, *value, &mut bytes));
        bytes
    }

    /// Number of elements of the largest tensor.
    pub(crate) fn largest(&self) -> usize {
        self.values.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Number of elements of each worker's tensor, if it is the same on all workers.
    pub(crate) fn count(&self) -> Option<usize> {
        let count = self.values[0].len();
        self.values.iter().all(|values| values.len() == count).then_some(count)
    }

    /// Whether the reduction over `ranks` ranks is exact. Integers wrap and are always exact.
    pub(crate) fn is_exact(&self, reduction: Reduction, ranks: usize) -> bool {
        let largest = self.values.iter().flatten().map(|value| value.abs()).max().unwrap_or(0);
        match reduction {
            Reduction::Sum | TURN => !self.dtype.is_float() || largest * (ranks as i64) < EXACT,
            Reduction::Prod => !self.dtype.is_float(),
            Reduction::Avg => false,
            _ => true,
        }
    }

    /// The tensors after an exchange.
    pub(crate) fn after(&self, exchange: &Exchange, groups: usize) -> Self {
        let mut values = vec![Vec::new(); self.values.len()];
        for members in exchange.scope.communicators(self.values.len(), groups) {
            let inputs: Vec<&[i64]> = members.iter().map(|worker| self.values[*worker].as_slice()).collect();
            for (rank, worker) in members.iter().enumerate() {
                values[*worker] = self.result(exchange, &inputs, rank);
            }
        }
        Self { dtype: self.dtype, values }
    }

    fn result(&self, exchange: &Exchange, inputs: &[&[i64]], me: usize) -> Vec<i64> {
        let (ranks, count) = (inputs.len(), inputs[0].len());
        let (block, root) = (count / ranks, exchange.root % ranks);
        let part = |rank: usize, first: usize, count: usize| inputs[rank][first..first + count].to_vec();
        let reduced = |first: usize, count: usize| -> Vec<i64> {
            if exchange.reduction == TURN {
                let blocks: Vec<&[i64]> = inputs.iter().map(|input| &input[first..first + count]).collect();
                return self.turn(&blocks);
            }
            (first..first + count)
                .map(|index| self.fold(exchange.reduction, inputs.iter().map(|input| input[index])))
                .collect()
        };
        match exchange.kind {
            Kind::AllReduce => reduced(0, count),
            Kind::Reduce if me == root => reduced(0, count),
            Kind::ReduceScatter => reduced(me * block, block),
            Kind::AllGather => inputs.concat(),
            Kind::Gather if me == root => inputs.concat(),
            Kind::AllGatherV => (0..ranks).flat_map(|from| part(from, 0, uneven(from, count))).collect(),
            Kind::Broadcast => inputs[root].to_vec(),
            Kind::Scatter => part(root, me * block, block),
            Kind::AllToAll | Kind::Sends => (0..ranks).flat_map(|from| part(from, me * block, block)).collect(),
            Kind::AllToAllV => {
                let sent = |from: usize| (0..me).map(|to| uneven_pair(from, to, block)).sum();
                (0..ranks).flat_map(|from| part(from, sent(from), uneven_pair(from, me, block))).collect()
            }
            Kind::Ring => inputs[(me + ranks - 1) % ranks].to_vec(),
            Kind::Reduce | Kind::Gather | Kind::Barrier => inputs[me].to_vec(),
        }
    }

    fn fold(&self, reduction: Reduction, values: impl Iterator<Item = i64>) -> i64 {
        let folded = match reduction {
            Reduction::Sum => values.fold(0, i64::wrapping_add),
            Reduction::Prod => values.fold(1, i64::wrapping_mul),
            Reduction::Min => values.min().unwrap_or(0),
            _ => values.max().unwrap_or(0),
        };
        self.wrap(folded)
    }

    /// The reduction [`TURN`] of equal blocks.
    fn turn(&self, blocks: &[&[i64]]) -> Vec<i64> {
        let row = exchange::row(blocks[0].len());
        let mut result = blocks[0].to_vec();
        for block in &blocks[1..] {
            let next = |at: usize| block[at / row * row + (at + 1) % row];
            result = result.iter().enumerate().map(|(at, own)| self.wrap(next(at).wrapping_sub(*own))).collect();
        }
        result
    }

    fn wrap(&self, number: i64) -> i64 {
        match self.dtype {
            DType::U8 => (number as u8).into(),
            DType::I16 => (number as i16).into(),
            DType::I32 => (number as i32).into(),
            DType::U32 => (number as u32).into(),
            _ => number,
        }
    }
}
