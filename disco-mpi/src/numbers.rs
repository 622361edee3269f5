//! Conversions for reductions that MPI does not support: 8-bit and 16-bit floats are reduced as f32, averages of
//! integers as i64; minima and maxima of floats as integers of the same order, since NaN wins in them.
//!
//! Sums of floats are rounded once, after the reduction. Averages of integers are exact and truncate toward zero:
//! 64-bit integers are summed as two halves of 32 bits.

use disco_core::{DType, Reduction};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// The form in which elements are passed to MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Unchanged.
    Native,
    /// Each element as this many numbers of this dtype.
    Wide(DType, usize),
}

/// A set of reductions that a library computes wrongly. MPI leaves open what a minimum or a maximum with NaN is: MPICH and
/// Open MPI return one of the operands, depending on their order. On processors with AVX, Open MPI 5.0.11 saturates
/// sums of 8 and 16 bits instead of wrapping (100i8 + 100i8 = 127). Debian's MPICH 4.0.2 compares unsigned integers as
/// signed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FaultyReductions(u128);

impl FaultyReductions {
    /// Finds the faulty reductions by example. `reduce` calls the library: it reduces the first elements into the
    /// second ones.
    ///
    /// # Errors
    /// Errors of `reduce`.
    pub(crate) fn find<E>(
        mut reduce: impl FnMut(DType, Reduction, &[u8], &mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut faulty = Self::default();
        for dtype in DType::all().filter(|dtype| !dtype.is_float() && *dtype != DType::Bool) {
            let (a, b) = (examples(dtype, 1), examples(dtype, 2));
            for reduction in Reduction::ALL.into_iter().filter(|reduction| has_wider(dtype, *reduction)) {
                let mut result = b.clone();
                reduce(dtype, reduction, &a, &mut result)?;
                let elements = a.chunks_exact(dtype.size()).zip(b.chunks_exact(dtype.size()));
                let expected: Vec<u8> = elements.flat_map(|(a, b)| expected_element(dtype, reduction, a, b)).collect();
                if result != expected {
                    faulty.0 |= Self::bit(dtype, reduction);
                }
            }
        }
        for dtype in [DType::F32, DType::F64] {
            let (nan, one) = (float(dtype, f64::NAN), float(dtype, 1.0));
            let (a, b) = ([&*nan, &one].concat().repeat(32), [&*one, &nan].concat().repeat(32));
            for reduction in [Reduction::Min, Reduction::Max] {
                let mut result = b.clone();
                reduce(dtype, reduction, &a, &mut result)?;
                if result.chunks_exact(dtype.size()).any(|element| !is_nan(element)) {
                    faulty.0 |= Self::bit(dtype, reduction);
                }
            }
        }
        Ok(faulty)
    }

    /// The set as bytes, for [`FaultyReductions::any`].
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_ne_bytes()
    }

    /// The union of the encoded sets in `all`.
    pub(crate) fn any(all: &[u8]) -> Self {
        Self(all.as_chunks().0.iter().fold(0, |any, bytes| any | u128::from_ne_bytes(*bytes)))
    }

    fn has(self, dtype: DType, reduction: Reduction) -> bool {
        self.0 & Self::bit(dtype, reduction) != 0
    }

    fn bit(dtype: DType, reduction: Reduction) -> u128 {
        1 << (dtype as u32 * 5 + u32::from(reduction.code()))
    }
}

/// Whether a reduction can be computed in wider numbers. There are none for 64 bits, but unsigned 64-bit integers can
/// be mapped to signed ones for comparisons.
fn has_wider(dtype: DType, reduction: Reduction) -> bool {
    match dtype {
        DType::I64 => false,
        DType::U64 => matches!(reduction, Reduction::Min | Reduction::Max),
        _ => reduction != Reduction::Avg,
    }
}

/// Pseudo-random elements of all magnitudes and signs: enough of them to fill a vector register.
fn examples(dtype: DType, seed: u64) -> Vec<u8> {
    let word = |index: u64| {
        let word = (seed << 32 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_be_bytes()
    };
    (0..128).flat_map(|index| word(index)[..dtype.size()].to_vec()).collect()
}

/// The expected result of reducing two elements.
fn expected_element(dtype: DType, reduction: Reduction, a: &[u8], b: &[u8]) -> Vec<u8> {
    let (a, b) = (number(dtype, a), number(dtype, b));
    let result = match reduction {
        Reduction::Prod => a.wrapping_mul(b),
        Reduction::Min => a.min(b),
        Reduction::Max => a.max(b),
        _ => a.wrapping_add(b),
    };
    result.to_le_bytes()[..dtype.size()].to_vec()
}

/// An element of `f32` or `f64`.
fn float(dtype: DType, value: f64) -> Vec<u8> {
    if dtype == DType::F32 { (value as f32).to_ne_bytes().into() } else { value.to_ne_bytes().into() }
}

fn is_nan(element: &[u8]) -> bool {
    match *element {
        [a, b, c, d] => f32::from_ne_bytes([a, b, c, d]).is_nan(),
        [a, b, c, d, e, f, g, h] => f64::from_ne_bytes([a, b, c, d, e, f, g, h]).is_nan(),
        _ => false,
    }
}

fn number(dtype: DType, bytes: &[u8]) -> i128 {
    let is_negative = is_signed(dtype) && bytes[bytes.len() - 1] > 127;
    let mut wide = [if is_negative { 255 } else { 0 }; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    i128::from_le_bytes(wide)
}

fn is_signed(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64)
}

/// The form of a reduction.
pub(crate) fn form(dtype: DType, reduction: Reduction, faulty: FaultyReductions) -> Form {
    let of_floats = if dtype == DType::F64 { (DType::F64, DType::I64) } else { (DType::F32, DType::I32) };
    match dtype {
        dtype if dtype.is_float() && faulty.has(of_floats.0, reduction) => Form::Wide(of_floats.1, 1),
        dtype if faulty.has(dtype, reduction) => Form::Wide(DType::I64, 1),
        DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => Form::Wide(DType::F32, 1),
        DType::I64 | DType::U64 if reduction == Reduction::Avg => Form::Wide(DType::I64, 2),
        dtype if reduction == Reduction::Avg && !dtype.is_float() => Form::Wide(DType::I64, 1),
        _ => Form::Native,
    }
}

/// Converts each element to `numbers` wider numbers. With one number, a `u64` becomes an `i64` with the same order but
/// another value, and so does a float that `reduction` compares: NaN becomes the number that wins.
pub(crate) fn widen(dtype: DType, wide: DType, numbers: usize, reduction: Reduction, from: &[u8], to: &mut [u8]) {
    let winner = if reduction == Reduction::Max { i64::MAX } else { i64::MIN };
    let order = |value: f32| {
        let winner = (winner >> 32) as i32;
        if value.is_nan() { winner } else { flip_negative(value.to_bits().cast_signed()) }.to_ne_bytes()
    };
    match dtype {
        DType::F64 if !wide.is_float() => each::<8, 8>(from, to, |bytes| {
            let value = f64::from_ne_bytes(bytes);
            if value.is_nan() { winner } else { flip_negative_64(value.to_bits().cast_signed()) }.to_ne_bytes()
        }),
        DType::F32 => each::<4, 4>(from, to, |bytes| order(f32::from_ne_bytes(bytes))),
        DType::F16 if !wide.is_float() => each::<2, 4>(from, to, |bytes| order(f16::from_ne_bytes(bytes).to_f32())),
        DType::BF16 if !wide.is_float() => each::<2, 4>(from, to, |bytes| order(bf16::from_ne_bytes(bytes).to_f32())),
        DType::F8E4M3 if !wide.is_float() => each::<1, 4>(from, to, |[bits]| order(F8E4M3::from_bits(bits).to_f32())),
        DType::F8E5M2 if !wide.is_float() => each::<1, 4>(from, to, |[bits]| order(F8E5M2::from_bits(bits).to_f32())),
        DType::U64 if numbers == 1 => each::<8, 8>(from, to, flip_sign),
        DType::F16 => each::<2, 4>(from, to, |bytes| f16::from_ne_bytes(bytes).to_f32().to_ne_bytes()),
        DType::BF16 => each::<2, 4>(from, to, |bytes| bf16::from_ne_bytes(bytes).to_f32().to_ne_bytes()),
        DType::F8E4M3 => each::<1, 4>(from, to, |[bits]| F8E4M3::from_bits(bits).to_f32().to_ne_bytes()),
        DType::F8E5M2 => each::<1, 4>(from, to, |[bits]| F8E5M2::from_bits(bits).to_f32().to_ne_bytes()),
        DType::I8 => each::<1, 8>(from, to, |bytes| i64::from(i8::from_ne_bytes(bytes)).to_ne_bytes()),
        DType::U8 => each::<1, 8>(from, to, |bytes| i64::from(u8::from_ne_bytes(bytes)).to_ne_bytes()),
        DType::I16 => each::<2, 8>(from, to, |bytes| i64::from(i16::from_ne_bytes(bytes)).to_ne_bytes()),
        DType::U16 => each::<2, 8>(from, to, |bytes| i64::from(u16::from_ne_bytes(bytes)).to_ne_bytes()),
        DType::I32 => each::<4, 8>(from, to, |bytes| i64::from(i32::from_ne_bytes(bytes)).to_ne_bytes()),
        DType::U32 => each::<4, 8>(from, to, |bytes| i64::from(u32::from_ne_bytes(bytes)).to_ne_bytes()),
        DType::I64 => each::<8, 16>(from, to, |bytes| split_halves(i64::from_ne_bytes(bytes).into())),
        DType::U64 => each::<8, 16>(from, to, |bytes| split_halves(u64::from_ne_bytes(bytes).into())),
        // `form` does not widen other dtypes.
        _ => {}
    }
}

/// Converts results back to elements, and divides them by `ranks` for an average.
pub(crate) fn narrow(dtype: DType, wide: DType, numbers: usize, from: &[u8], to: &mut [u8], ranks: Option<usize>) {
    let float = |bytes: [u8; 4]| {
        if wide.is_float() {
            f32::from_ne_bytes(bytes) / ranks.unwrap_or(1) as f32
        } else {
            f32::from_bits(flip_negative(i32::from_ne_bytes(bytes)).cast_unsigned())
        }
    };
    let int = |bytes: [u8; 8]| i64::from_ne_bytes(bytes) / ranks.unwrap_or(1) as i64;
    let halves = |bytes: [u8; 16]| join_halves(bytes) / ranks.unwrap_or(1) as i128;
    match dtype {
        DType::U64 if numbers == 1 => each::<8, 8>(from, to, flip_sign),
        DType::F64 => each::<8, 8>(from, to, |bytes| flip_negative_64(i64::from_ne_bytes(bytes)).to_ne_bytes()),
        DType::F32 => each::<4, 4>(from, to, |bytes| float(bytes).to_ne_bytes()),
        DType::F16 => each::<4, 2>(from, to, |bytes| f16::from_f32(float(bytes)).to_ne_bytes()),
        DType::BF16 => each::<4, 2>(from, to, |bytes| bf16::from_f32(float(bytes)).to_ne_bytes()),
        DType::F8E4M3 => each::<4, 1>(from, to, |bytes| [F8E4M3::from_f32(float(bytes)).to_bits()]),
        DType::F8E5M2 => each::<4, 1>(from, to, |bytes| [to_f8e5m2(float(bytes))]),
        DType::I8 | DType::U8 => each::<8, 1>(from, to, |bytes| (int(bytes) as u8).to_ne_bytes()),
        DType::I16 | DType::U16 => each::<8, 2>(from, to, |bytes| (int(bytes) as u16).to_ne_bytes()),
        DType::I32 | DType::U32 => each::<8, 4>(from, to, |bytes| (int(bytes) as u32).to_ne_bytes()),
        DType::I64 | DType::U64 => each::<16, 8>(from, to, |bytes| (halves(bytes) as u64).to_ne_bytes()),
        _ => {}
    }
}

/// Divides sums that MPI has computed by `ranks`.
pub(crate) fn divide(dtype: DType, sums: &mut [u8], ranks: usize) {
    match dtype {
        DType::F32 => sums.as_chunks_mut().0.iter_mut().for_each(|bytes: &mut [u8; 4]| {
            *bytes = (f32::from_ne_bytes(*bytes) / ranks as f32).to_ne_bytes();
        }),
        DType::F64 => sums.as_chunks_mut().0.iter_mut().for_each(|bytes: &mut [u8; 8]| {
            *bytes = (f64::from_ne_bytes(*bytes) / ranks as f64).to_ne_bytes();
        }),
        _ => {}
    }
}

/// Converts with infinity, which the conversion of the crate `float8` saturates.
fn to_f8e5m2(value: f32) -> u8 {
    match value {
        f32::INFINITY => 0x7c,
        f32::NEG_INFINITY => 0xfc,
        value => F8E5M2::from_f32(value).to_bits(),
    }
}

fn each<const N: usize, const M: usize>(from: &[u8], to: &mut [u8], convert: impl Fn([u8; N]) -> [u8; M]) {
    for (from, to) in from.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        *to = convert(*from);
    }
}

/// Maps the order of the bits of floats to the order of `i32`, and back. The numbers of the highest and the lowest order are
/// NaN.
fn flip_negative(bits: i32) -> i32 {
    bits ^ (bits >> 31 & i32::MAX)
}

/// [`flip_negative`] of 64 bits.
fn flip_negative_64(bits: i64) -> i64 {
    bits ^ (bits >> 63 & i64::MAX)
}

/// Flips the highest bit, which maps the order of `u64` to the order of `i64`, and back.
fn flip_sign(bytes: [u8; 8]) -> [u8; 8] {
    (u64::from_ne_bytes(bytes) ^ 1 << 63).to_ne_bytes()
}

/// The upper and the lower 32 bits as 64-bit integers, whose sums don't overflow.
fn split_halves(value: i128) -> [u8; 16] {
    let (upper, lower) = ((value >> 32) as i64, (value & 0xffff_ffff) as i64);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&upper.to_ne_bytes());
    bytes[8..].copy_from_slice(&lower.to_ne_bytes());
    bytes
}

fn join_halves(bytes: [u8; 16]) -> i128 {
    let half = |at: usize| i64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
    (i128::from(half(0)) << 32) + i128::from(half(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_of_64_bits_are_exact() {
        let values = [i64::MIN, i64::MAX, -1, 0, 7];
        for value in values {
            let bytes = split_halves(value.into());
            assert_eq!(join_halves(bytes), i128::from(value));
        }
        let bytes = [i64::MIN; 1].map(i64::to_ne_bytes).concat();
        let mut wide = [0; 16];
        widen(DType::I64, DType::I64, 2, Reduction::Avg, &bytes, &mut wide);
        // Three of them.
        let (upper, lower) = (wide[..8].try_into().unwrap(), wide[8..].try_into().unwrap());
        let sum = [3 * i64::from_ne_bytes(upper), 3 * i64::from_ne_bytes(lower)].map(i64::to_ne_bytes).concat();
        let mut average = [0; 8];
        narrow(DType::I64, DType::I64, 2, &sum, &mut average, Some(3));
        assert_eq!(i64::from_ne_bytes(average), i64::MIN);
    }

    #[test]
    fn nan_wins_in_minima_and_maxima_of_floats() {
        // Like MPICH and Open MPI, which compare with `>` or `<`.
        let returns_an_operand = |dtype: DType, reduction, from: &[u8], to: &mut [u8]| {
            for (a, b) in from.chunks_exact(dtype.size()).zip(to.chunks_exact_mut(dtype.size())) {
                let expected = expected_element(dtype, reduction, a, b);
                let keeps_b = dtype.is_float() && is_nan(a);
                if !keeps_b {
                    b.copy_from_slice(if dtype.is_float() { a } else { &expected });
                }
            }
            Ok::<(), ()>(())
        };
        let faulty = FaultyReductions::find(returns_an_operand).unwrap();
        let values = [0.0, -0.0, 1.5, -1.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.25, -4.0];
        let floats = DType::all().filter(|dtype| dtype.is_float());
        for (dtype, reduction) in floats.flat_map(|dtype| [(dtype, Reduction::Min), (dtype, Reduction::Max)]) {
            let Form::Wide(wide, 1) = form(dtype, reduction, faulty) else { panic!("{dtype} {reduction}") };
            assert_eq!(form(dtype, Reduction::Sum, faulty) == Form::Native, dtype.size() > 2);
            for (a, b) in values.iter().flat_map(|a| values.map(|b| (*a, b))) {
                let compared = [a, b].map(|value| {
                    let mut ordered = vec![0; wide.size()];
                    widen(dtype, wide, 1, reduction, &encode(dtype, value), &mut ordered);
                    number(wide, &ordered)
                });
                let winner = if reduction == Reduction::Max { compared.iter().max() } else { compared.iter().min() };
                let mut result = vec![0; dtype.size()];
                narrow(dtype, wide, 1, &winner.unwrap().to_le_bytes()[..wide.size()], &mut result, None);
                let expected = match reduction {
                    _ if a.is_nan() || b.is_nan() => f64::NAN,
                    Reduction::Max => a.max(b),
                    _ => a.min(b),
                };
                let (got, expected) = (decode(dtype, &result), decode(dtype, &encode(dtype, expected)));
                assert!(
                    got == expected || got.is_nan() && expected.is_nan(),
                    "{dtype} {reduction} of {a} and {b}: {got}"
                );
            }
        }
    }

    fn encode(dtype: DType, value: f64) -> Vec<u8> {
        match dtype {
            DType::F16 => f16::from_f64(value).to_ne_bytes().into(),
            DType::BF16 => bf16::from_f64(value).to_ne_bytes().into(),
            DType::F8E4M3 => vec![F8E4M3::from_f32(value as f32).to_bits()],
            DType::F8E5M2 => vec![to_f8e5m2(value as f32)],
            dtype => float(dtype, value),
        }
    }

    fn decode(dtype: DType, bytes: &[u8]) -> f64 {
        match dtype {
            DType::F16 => f16::from_ne_bytes(bytes.try_into().unwrap()).to_f64(),
            DType::BF16 => bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f64(),
            DType::F8E4M3 => F8E4M3::from_bits(bytes[0]).to_f32().into(),
            DType::F8E5M2 => F8E5M2::from_bits(bytes[0]).to_f32().into(),
            DType::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()).into(),
            _ => f64::from_ne_bytes(bytes.try_into().unwrap()),
        }
    }

    #[test]
    fn narrow_inverts_widen() {
        let faulty = FaultyReductions::find(library(|_, _, _, _| Some(0))).unwrap();
        for (dtype, reduction) in DType::all().flat_map(|dtype| [(dtype, Reduction::Avg), (dtype, Reduction::Min)]) {
            let Form::Wide(wide, numbers) = form(dtype, reduction, faulty) else { continue };
            // Bool has no average.
            if dtype == DType::Bool {
                continue;
            }
            // None of the patterns is a NaN, whose bits may change.
            let bytes: Vec<u8> = (0..10 * dtype.size()).map(|at| (at * 7 % 100) as u8).collect();
            let mut widened = vec![0; bytes.len() / dtype.size() * wide.size() * numbers];
            widen(dtype, wide, numbers, reduction, &bytes, &mut widened);
            let mut back = vec![0; bytes.len()];
            narrow(dtype, wide, numbers, &widened, &mut back, None);
            assert_eq!(back, bytes, "{dtype}");
        }
    }

    /// A library that computes the expected results, unless `other` returns another one.
    fn library(
        other: impl Fn(DType, Reduction, i128, i128) -> Option<i128>,
    ) -> impl FnMut(DType, Reduction, &[u8], &mut [u8]) -> Result<(), ()> {
        move |dtype, reduction, from, to| {
            for (a, b) in from.chunks_exact(dtype.size()).zip(to.chunks_exact_mut(dtype.size())) {
                let other = other(dtype, reduction, number(dtype, a), number(dtype, b));
                let other = other.map(|other| other.to_le_bytes()[..dtype.size()].to_vec());
                b.copy_from_slice(&other.unwrap_or_else(|| expected_element(dtype, reduction, a, b)));
            }
            Ok(())
        }
    }

    /// The reductions of integers that are computed in wider numbers.
    fn wide(faulty: FaultyReductions) -> Vec<(DType, Reduction)> {
        let integers = DType::all().filter(|dtype| !dtype.is_float() && *dtype != DType::Bool);
        let reductions = [Reduction::Sum, Reduction::Prod, Reduction::Min, Reduction::Max];
        let all = integers.flat_map(|dtype| reductions.map(|reduction| (dtype, reduction)));
        all.filter(|(dtype, reduction)| form(*dtype, *reduction, faulty) != Form::Native).collect()
    }

    #[test]
    fn faulty_reductions_are_found_and_computed_in_wider_numbers() {
        assert_eq!(wide(FaultyReductions::find(library(|_, _, _, _| None)).unwrap()), []);
        // Like MPICH 4.0.2 of Debian.
        let compares_as_signed = |dtype: DType, reduction, a: i128, b: i128| {
            let bits = 8 * dtype.size();
            let signed = |number: i128| if number >> (bits - 1) == 1 { number - (1 << bits) } else { number };
            let (first, second) = if signed(a) < signed(b) { (a, b) } else { (b, a) };
            match reduction {
                Reduction::Min if !is_signed(dtype) => Some(first),
                Reduction::Max if !is_signed(dtype) => Some(second),
                _ => None,
            }
        };
        let unsigned = [DType::U8, DType::U16, DType::U32, DType::U64];
        let orders = |dtype| [(dtype, Reduction::Min), (dtype, Reduction::Max)];
        assert_eq!(wide(FaultyReductions::find(library(compares_as_signed)).unwrap()), unsigned.map(orders).concat());
        // Like Open MPI 5.0.11 on processors with AVX.
        let saturates = |dtype: DType, reduction, a: i128, b: i128| {
            let bits = 8 * dtype.size();
            let least = if is_signed(dtype) { -1 << (bits - 1) } else { 0 };
            let small = reduction == Reduction::Sum && bits <= 16;
            small.then(|| (a + b).clamp(least, least + (1 << bits) - 1))
        };
        let small = [DType::I8, DType::U8, DType::I16, DType::U16].map(|dtype| (dtype, Reduction::Sum));
        assert_eq!(wide(FaultyReductions::find(library(saturates)).unwrap()), small);
    }

    #[test]
    fn unsigned_numbers_of_64_bits_keep_their_order() {
        let mut numbers = [0, 1, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX];
        let wide = |number: &u64| i64::from_ne_bytes(flip_sign(number.to_ne_bytes()));
        numbers.sort_unstable_by_key(wide);
        assert!(numbers.is_sorted());
    }
}
