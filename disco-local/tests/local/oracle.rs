//! Elements as plain numbers, and reductions of them as plain loops.

use disco_core::{DType, Reduction};
use half::{bf16, f16};

/// One element, exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Int(i128),
    Float(f64),
}

/// Input of one rank: any bits for integers, small whole numbers for floats, so that sums and products are exact.
pub(crate) fn input(dtype: DType, rank: usize, count: usize) -> Vec<u8> {
    let mut bits = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(1 + rank as u64 + ((count as u64) << 8));
    let mut next = || {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        bits
    };
    let element = |bits: u64| match dtype.is_float() {
        true => encode(dtype, Number::Float((bits % 5) as f64 - 2.0)),
        false if dtype == DType::Bool => vec![[0, 0, 0, 1, 2, 255][bits as usize % 6]],
        false => bits.to_le_bytes()[..dtype.size()].to_vec(),
    };
    (0..count).flat_map(|_| element(next())).collect()
}

/// The reduction of as many inputs as there are ranks, in rank order.
pub(crate) fn reduce(dtype: DType, reduction: Reduction, inputs: &[Vec<u8>]) -> Vec<u8> {
    let size = dtype.size();
    let element = |at: usize| {
        let elements: Vec<Number> = inputs.iter().map(|input| decode(dtype, &input[at..at + size])).collect();
        encode(dtype, reduce_numbers(dtype, reduction, &elements))
    };
    (0..inputs[0].len()).step_by(size).flat_map(element).collect()
}

fn reduce_numbers(dtype: DType, reduction: Reduction, elements: &[Number]) -> Number {
    let ints = || elements.iter().filter_map(|x| if let Number::Int(x) = x { Some(*x) } else { None });
    let floats = || elements.iter().filter_map(|x| if let Number::Float(x) = x { Some(*x) } else { None });
    let n = elements.len();
    match reduction {
        Reduction::Sum | Reduction::Max if dtype == DType::Bool => Number::Int(ints().any(|x| x == 1).into()),
        Reduction::Prod | Reduction::Min if dtype == DType::Bool => Number::Int(ints().all(|x| x == 1).into()),
        _ if dtype.is_float() => Number::Float(match reduction {
            Reduction::Sum => floats().sum(),
            Reduction::Prod => floats().product(),
            Reduction::Min => floats().fold(f64::MAX, f64::min),
            Reduction::Max => floats().fold(f64::MIN, f64::max),
            // What is narrower than f32 is divided as f32.
            _ if dtype == DType::F64 => floats().sum::<f64>() / n as f64,
            _ => f64::from(floats().sum::<f64>() as f32 / n as f32),
        }),
        _ => Number::Int(match reduction {
            Reduction::Sum => ints().sum(),
            Reduction::Prod => ints().fold(1, i128::wrapping_mul),
            Reduction::Min => ints().fold(i128::MAX, i128::min),
            Reduction::Max => ints().fold(i128::MIN, i128::max),
            _ => ints().sum::<i128>() / n as i128,
        }),
    }
}

fn decode(dtype: DType, bytes: &[u8]) -> Number {
    let int = |signed: bool| {
        let negative = signed && bytes.last().is_some_and(|last| *last >= 0x80);
        let mut wide = [if negative { 0xff } else { 0 }; 16];
        wide[..bytes.len()].copy_from_slice(bytes);
        Number::Int(i128::from_le_bytes(wide))
    };
    match dtype {
        DType::Bool => Number::Int((bytes[0] != 0).into()),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => int(true),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => int(false),
        DType::F16 => Number::Float(f16::from_le_bytes(bytes.try_into().unwrap()).into()),
        DType::BF16 => Number::Float(bf16::from_le_bytes(bytes.try_into().unwrap()).into()),
        DType::F32 => Number::Float(f32::from_le_bytes(bytes.try_into().unwrap()).into()),
        DType::F64 => Number::Float(f64::from_le_bytes(bytes.try_into().unwrap())),
        _ => Number::Float(small_float(dtype, bytes[0])),
    }
}

fn encode(dtype: DType, number: Number) -> Vec<u8> {
    match (number, dtype) {
        (Number::Int(x), _) => x.to_le_bytes()[..dtype.size()].to_vec(),
        (Number::Float(x), DType::F16) => f16::from_f64(x).to_le_bytes().to_vec(),
        (Number::Float(x), DType::BF16) => bf16::from_f64(x).to_le_bytes().to_vec(),
        (Number::Float(x), DType::F32) => (x as f32).to_le_bytes().to_vec(),
        (Number::Float(x), DType::F64) => x.to_le_bytes().to_vec(),
        (Number::Float(x), _) => {
            let largest = if dtype == DType::F8E4M3 { 0x7e } else { 0x7b };
            // Codes ascend with their values: the first that is not smaller, or the one before it.
            let above = (0..largest).find(|&code| small_float(dtype, code) >= x.abs()).unwrap_or(largest);
            let below = above.saturating_sub(1);
            let [up, down] = [above, below].map(|code| (small_float(dtype, code) - x.abs()).abs());
            let nearest = if down < up || (down == up && below % 2 == 0) { below } else { above };
            vec![nearest | if x.is_sign_negative() { 0x80 } else { 0 }]
        }
    }
}

/// A finite 8-bit float, from the definition of its format.
fn small_float(dtype: DType, code: u8) -> f64 {
    let (mantissa_bits, bias) = if dtype == DType::F8E4M3 { (3, 7) } else { (2, 15) };
    let power = |exponent: i32| f64::from_bits(((1023 + exponent) as u64) << 52);
    let mantissa = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let sign = if code < 0x80 { 1.0 } else { -1.0 };
    sign * match i32::from((code & 0x7f) >> mantissa_bits) {
        0 => mantissa * power(1 - bias),
        exponent => (1.0 + mantissa) * power(exponent - bias),
    }
}
