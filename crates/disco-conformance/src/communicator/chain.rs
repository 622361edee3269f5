//! A reduction of the suite: it finds every wrong order and every row that was cut.

use disco_core::{DType, Element, Reduction};

/// Neither commutative nor associative: each element becomes 31 times itself, plus the next element of the other row,
/// plus its index in the row. Integers wrap.
pub(crate) const CHAIN: Reduction = Reduction::Custom("disco.conformance.chain");
/// The dtypes that have it: of one byte, so that rows start at any address, and of eight.
pub(crate) const DTYPES: [DType; 2] = [DType::U8, DType::I64];

disco_core::register_reduction!(CHAIN.name(), u8, |into, from, row| chain(into, from, row, |a, b, index| {
    a.wrapping_mul(31).wrapping_add(b).wrapping_add(index as u8)
}));
disco_core::register_reduction!(CHAIN.name(), i64, |into, from, row| chain(into, from, row, |a, b, index| {
    a.wrapping_mul(31).wrapping_add(b).wrapping_add(index as i64)
}));

fn chain<T: Element>(into: &mut [T], from: &[T], row: usize, next: fn(T, T, usize) -> T) {
    for (into, from) in into.chunks_exact_mut(row).zip(from.chunks_exact(row)) {
        for (index, into) in into.iter_mut().enumerate() {
            *into = next(*into, from[(index + 1) % row], index);
        }
    }
}
