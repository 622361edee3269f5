//! Reductions, computed in rank order.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use super::abi::{DataType, RedOp};
use super::number::{Number, Wide};
use crate::cuda::memory::Span;

/// A reduction operator.
#[derive(Clone)]
pub(crate) enum Operation {
    /// A built-in operator.
    Built(RedOp),
    /// Each rank's elements times its scalar, then their sum.
    PreMulSum(Scalar),
}

/// A rank's scalar.
#[derive(Clone)]
pub(crate) struct Scalar {
    /// Its element type.
    pub(crate) dtype: DataType,
    /// Its source.
    pub(crate) source: Source,
}

/// Source of a scalar.
#[derive(Clone)]
pub(crate) enum Source {
    /// The value that was read when the operator was made.
    Host(Vec<u8>),
    /// Device memory that is read when the collective runs.
    Device(Span),
}

impl Operation {
    /// Whether two ranks use the same operator. Scalars may differ.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Built(one), Self::Built(other)) => one == other,
            (Self::PreMulSum(_), Self::PreMulSum(_)) => true,
            _ => false,
        }
    }

    /// The name of the operator.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::PreMulSum(_) => "premulsum",
            Self::Built(RedOp::SUM) => "sum",
            Self::Built(RedOp::PROD) => "prod",
            Self::Built(RedOp::MAX) => "max",
            Self::Built(RedOp::MIN) => "min",
            Self::Built(_) => "avg",
        }
    }
}

/// Reduces the ranks' inputs, which have equal sizes, each with its rank's operator.
pub(crate) fn reduce(dtype: DataType, inputs: &[Vec<u8>], operations: &[&Operation]) -> Vec<u8> {
    match dtype {
        DataType::I8 => reduce_as::<i8>(inputs, operations),
        DataType::U8 => reduce_as::<u8>(inputs, operations),
        DataType::I32 => reduce_as::<i32>(inputs, operations),
        DataType::U32 => reduce_as::<u32>(inputs, operations),
        DataType::I64 => reduce_as::<i64>(inputs, operations),
        DataType::U64 => reduce_as::<u64>(inputs, operations),
        DataType::F16 => reduce_as::<f16>(inputs, operations),
        DataType::F32 => reduce_as::<f32>(inputs, operations),
        DataType::F64 => reduce_as::<f64>(inputs, operations),
        DataType::BF16 => reduce_as::<bf16>(inputs, operations),
        DataType::F8E4M3 => reduce_as::<F8E4M3>(inputs, operations),
        _ => reduce_as::<F8E5M2>(inputs, operations),
    }
}

fn reduce_as<N: Number>(inputs: &[Vec<u8>], operations: &[&Operation]) -> Vec<u8> {
    let ranks = inputs.len();
    let mut values = inputs.iter().zip(operations).map(|(input, operation)| widen::<N>(input, operation));
    let Some(mut sums) = values.next() else { return Vec::new() };
    let combine: fn(N::Wide, N::Wide) -> N::Wide = match operations.first() {
        Some(Operation::Built(RedOp::PROD)) => Wide::prod,
        Some(Operation::Built(RedOp::MAX)) => Wide::max,
        Some(Operation::Built(RedOp::MIN)) => Wide::min,
        _ => Wide::sum,
    };
    for others in values {
        for (sum, other) in sums.iter_mut().zip(others) {
            *sum = combine(*sum, other);
        }
    }
    let is_mean = matches!(operations.first(), Some(Operation::Built(RedOp::AVG)));
    let mut output = vec![0; sums.len() * N::BYTES];
    for (sum, bytes) in sums.into_iter().zip(output.chunks_exact_mut(N::BYTES)) {
        N::write(if is_mean { sum.mean(ranks) } else { sum }, bytes);
    }
    output
}

fn widen<N: Number>(input: &[u8], operation: &Operation) -> Vec<N::Wide> {
    let values = input.chunks_exact(N::BYTES).map(N::read);
    match operation {
        Operation::Built(_) => values.collect(),
        Operation::PreMulSum(scalar) => {
            let scalar = N::read(&scalar.bytes());
            values.map(|value| scalar.prod(value)).collect()
        }
    }
}

impl Scalar {
    fn bytes(&self) -> Vec<u8> {
        match &self.source {
            Source::Host(bytes) => bytes.clone(),
            Source::Device(span) => span.to_vec(),
        }
    }
}
