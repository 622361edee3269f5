//! The reductions of this program, registered once for the tests of `own_reductions.rs`.

/// Neither commutative nor associative, and each element depends on its neighbour in the row.
fn chain(into: &mut [i64], from: &[i64], row: usize) {
    for (into, from) in into.chunks_exact_mut(row).zip(from.chunks_exact(row)) {
        for (index, into) in into.iter_mut().enumerate() {
            *into = into.wrapping_mul(31).wrapping_add(from[(index + 1) % row]).wrapping_add(index as i64);
        }
    }
}

disco_core::register_reduction!("local.chain", i64, chain);
disco_core::register_reduction!("local.other", i64, |_, _, _| {});
disco_core::register_reduction!("local.broken", i64, |_, from, _| assert!(!from.contains(&-1), "no -1, please"));
