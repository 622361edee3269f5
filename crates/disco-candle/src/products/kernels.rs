//! Vector code for dot products.
#![allow(unsafe_code)] // Functions for instructions that the processor has, which `Level::detect` has found out.

use std::arch::x86_64::*;

use super::blocks::{Block, Codes, Group, LANES};
use super::elements::{Element, Kind, ROWS, WEIGHTS};

/// How many bytes ahead of the current ones a kernel prefetches.
const PREFETCHED: usize = 2048;

/// The vector instructions that the kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// AVX2, FMA and F16C.
    Avx2,
    /// The same, AVX-512 and VNNI.
    Avx512,
}

impl Level {
    /// The best level of this processor, if it has one.
    pub(crate) fn detect() -> Option<Self> {
        let has_avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let has_avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni");
        has_avx2.then_some(if has_avx512 { Self::Avx512 } else { Self::Avx2 })
    }
}

/// Products of the rows of a group with `R` rows of blocks. A run of the group has `WORDS` times 4 columns. Each row
/// of `x` has as many columns as the group.
pub(super) fn packed<const FOUR_BITS: bool, const WORDS: usize, const R: usize>(
    level: Level,
    group: &Group<'_>,
    x: [&[Block]; R],
) -> [[f32; LANES]; R] {
    match level {
        // SAFETY: `Level::detect` has found AVX2, FMA and F16C.
        Level::Avx2 => unsafe { packed_avx2::<FOUR_BITS, WORDS, R>(group, x) },
        // SAFETY: `Level::detect` has found AVX-512F and VNNI.
        Level::Avx512 => unsafe { packed_avx512::<FOUR_BITS, WORDS, R>(group, x) },
    }
}

/// Products of one row of a dense matrix with `R` rows of the same length.
pub(super) fn dense<T: Element, const R: usize>(_: Level, row: &[T], x: [&[f32]; R]) -> [f32; R] {
    // SAFETY: `Level::detect` has found AVX2, FMA and F16C, which both levels have.
    unsafe { dense_avx2(row, x) }
}

/// Four columns of a block at a time: 16 vectors of codes in `u8`, times the same four numbers of `x` in each.
///
/// These functions loop over indexes, since closures and the functions of iterators that call them are not compiled for the same
/// instructions, and so are not inlined.
#[target_feature(enable = "avx512f,avx512vnni")]
fn packed_avx512<const FOUR_BITS: bool, const WORDS: usize, const R: usize>(
    group: &Group<'_>,
    x: [&[Block]; R],
) -> [[f32; LANES]; R] {
    let mut sums = [_mm512_setzero_ps(); R];
    let vectors = if FOUR_BITS { WORDS / 2 } else { WORDS };
    let nibbles = _mm512_set1_epi8(15);
    for index in 0..group.scales.len() {
        let run = &group.codes[index * vectors..][..vectors];
        let mut codes = [nibbles; WORDS];
        for word in 0..vectors {
            prefetch(&run[word]);
            codes[word] = load(&run[word]);
            if FOUR_BITS {
                codes[word + vectors] = _mm512_and_si512(_mm512_srli_epi32::<4>(codes[word]), nibbles);
                codes[word] = _mm512_and_si512(codes[word], nibbles);
            }
        }
        let scales = _mm512_cvtph_ps(bytemuck::cast(group.scales[index]));
        for row in 0..R {
            let (words, sum, scale) = part::<WORDS>(x[row], index);
            let mut even = _mm512_set1_epi32(-group.zero * sum);
            let mut odd = _mm512_setzero_si512();
            for pair in 0..WORDS / 2 {
                even = _mm512_dpbusd_epi32(even, codes[2 * pair], _mm512_set1_epi32(words[2 * pair]));
                odd = _mm512_dpbusd_epi32(odd, codes[2 * pair + 1], _mm512_set1_epi32(words[2 * pair + 1]));
            }
            let dots = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
            sums[row] = _mm512_fmadd_ps(dots, _mm512_mul_ps(scales, _mm512_set1_ps(scale)), sums[row]);
            if !group.mins.is_empty() {
                let mins = _mm512_cvtph_ps(bytemuck::cast(group.mins[index]));
                sums[row] = _mm512_fmadd_ps(mins, _mm512_set1_ps(scale * sum as f32), sums[row]);
            }
        }
    }
    let mut products = [[0.0; LANES]; R];
    for row in 0..R {
        // SAFETY: the array has as many elements as the vector.
        unsafe { _mm512_storeu_ps(products[row].as_mut_ptr(), sums[row]) };
    }
    products
}

/// The words of a row of `x` for a run, their sum and their scale.
#[inline]
fn part<const WORDS: usize>(x: &[Block], run: usize) -> (&[i32], i32, f32) {
    let block = &x[run * WORDS / 8];
    if WORDS == 8 {
        (&block.words, block.sums[0] + block.sums[1], block.scale)
    } else {
        (&block.words[run % 2 * WORDS..][..WORDS], block.sums[run % 2], block.scale)
    }
}

/// Asks for the memory a little behind `current`, for which the processor's own prefetching is late.
#[inline]
fn prefetch<T>(current: &T) {
    let ahead = std::ptr::from_ref(current).cast::<i8>().wrapping_add(PREFETCHED);
    // SAFETY: prefetching any address is allowed.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead) };
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(codes: &Codes) -> __m512i {
    // SAFETY: the codes have the size and the alignment of a vector.
    unsafe { _mm512_load_si512(std::ptr::from_ref(codes).cast()) }
}

/// As [`packed_avx512`], for eight rows at a time. Sums of two products of a code of 8 bits and a number of `x` may exceed
/// 16 bits, so these codes get their sign back first, and `x` takes it over.
#[target_feature(enable = "avx2,fma,f16c")]
fn packed_avx2<const FOUR_BITS: bool, const WORDS: usize, const R: usize>(
    group: &Group<'_>,
    x: [&[Block]; R],
) -> [[f32; LANES]; R] {
    let mut sums = [[_mm256_setzero_ps(); 2]; R];
    let vectors = if FOUR_BITS { WORDS / 2 } else { WORDS };
    let zero = if FOUR_BITS { group.zero } else { group.zero - 128 };
    let (nibbles, signs, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi8(-128), _mm256_set1_epi16(1));
    for index in 0..group.scales.len() {
        let run = &group.codes[index * vectors..][..vectors];
        #[allow(clippy::needless_range_loop, reason = "`half` is an index of other arrays, too")]
        for half in 0..2 {
            let mut dots = [_mm256_setzero_si256(); R];
            for row in 0..R {
                dots[row] = _mm256_set1_epi32(-zero * part::<WORDS>(x[row], index).1);
            }
            for word in 0..WORDS {
                prefetch(&run[word % vectors]);
                let vector = bytemuck::cast::<_, [__m256i; 2]>(run[word % vectors].0)[half];
                let (codes, magnitudes) = match (FOUR_BITS, word < vectors) {
                    (true, true) => (vector, _mm256_and_si256(vector, nibbles)),
                    (true, false) => (vector, _mm256_and_si256(_mm256_srli_epi16::<4>(vector), nibbles)),
                    (false, _) => {
                        let codes = _mm256_xor_si256(vector, signs);
                        (codes, _mm256_abs_epi8(codes))
                    }
                };
                for row in 0..R {
                    let numbers = _mm256_set1_epi32(part::<WORDS>(x[row], index).0[word]);
                    let numbers = if FOUR_BITS { numbers } else { _mm256_sign_epi8(numbers, codes) };
                    let pairs = _mm256_maddubs_epi16(magnitudes, numbers);
                    dots[row] = _mm256_add_epi32(dots[row], _mm256_madd_epi16(pairs, ones));
                }
            }
            let scales = _mm256_cvtph_ps(bytemuck::cast::<_, [__m128i; 2]>(group.scales[index])[half]);
            for row in 0..R {
                let (_, total, scale) = part::<WORDS>(x[row], index);
                let sum = &mut sums[row][half];
                let factors = _mm256_mul_ps(scales, _mm256_set1_ps(scale));
                *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[row]), factors, *sum);
                if !group.mins.is_empty() {
                    let mins = _mm256_cvtph_ps(bytemuck::cast::<_, [__m128i; 2]>(group.mins[index])[half]);
                    *sum = _mm256_fmadd_ps(mins, _mm256_set1_ps(scale * total as f32), *sum);
                }
            }
        }
    }
    let mut products = [[0.0; LANES]; R];
    for row in 0..R {
        products[row] = bytemuck::cast(sums[row]);
    }
    products
}

/// Four vectors of sums for one row of `x`, so that additions need not wait for each other, and two for each of several rows,
/// since there are 16 registers.
#[target_feature(enable = "avx2,fma,f16c")]
fn dense_avx2<T: Element, const R: usize>(row: &[T], x: [&[f32]; R]) -> [f32; R] {
    const STEP: usize = 32;
    let mut sums = [[_mm256_setzero_ps(); STEP / 8]; R];
    let (steps, rest) = row.as_chunks::<STEP>();
    for (step, weights) in steps.iter().enumerate() {
        prefetch(weights);
        for lane in 0..STEP / 8 {
            let weights = widen(weights.as_chunks::<8>().0[lane]);
            for row in 0..R {
                let x = x[row].as_chunks::<STEP>().0[step].as_chunks::<8>().0[lane];
                let sum = &mut sums[row][if R > 2 { lane % 2 } else { lane }];
                *sum = _mm256_fmadd_ps(weights, bytemuck::cast(x), *sum);
            }
        }
    }
    let mut products = [0.0; R];
    for index in 0..R {
        let [a, b, c, d] = sums[index];
        let lanes: [f32; 8] = bytemuck::cast(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)));
        for lane in lanes {
            products[index] += lane;
        }
        for column in 0..rest.len() {
            products[index] += rest[column].to_f32() * x[index][steps.len() * STEP + column];
        }
    }
    products
}

/// Products of some rows of weights with some of `x`, which are the first dimension. Each is one chain of additions in eight
/// lanes, whose sums are added in pairs. The sums and a column of each row of weights are in registers.
pub(super) fn tile<T: Element>(_: Level, weights: [&[T]; WEIGHTS], x: [&[f32]; ROWS]) -> [[f32; WEIGHTS]; ROWS] {
    // SAFETY: `Level::detect` has found AVX2, FMA and F16C, which both levels have.
    unsafe { tile_avx2(weights, x) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn tile_avx2<T: Element>(weights: [&[T]; WEIGHTS], x: [&[f32]; ROWS]) -> [[f32; WEIGHTS]; ROWS] {
    let mut sums = [[_mm256_setzero_ps(); WEIGHTS]; ROWS];
    let columns = weights[0].len();
    assert!(weights.iter().all(|row| row.len() == columns) && x.iter().all(|row| row.len() == columns));
    for first in (0..columns / 8 * 8).step_by(8) {
        let mut wide = [_mm256_setzero_ps(); WEIGHTS];
        for index in 0..WEIGHTS {
            let place = weights[index].as_ptr().wrapping_add(first).cast::<[T; 8]>();
            // SAFETY: each row has eight columns from here on.
            wide[index] = widen(unsafe { place.read_unaligned() });
        }
        for row in 0..ROWS {
            // SAFETY: as above.
            let x = unsafe { _mm256_loadu_ps(x[row].as_ptr().wrapping_add(first)) };
            for index in 0..WEIGHTS {
                sums[row][index] = _mm256_fmadd_ps(wide[index], x, sums[row][index]);
            }
        }
    }
    let mut products = [[0.0; WEIGHTS]; ROWS];
    for row in 0..ROWS {
        for index in 0..WEIGHTS {
            let halves =
                _mm_add_ps(_mm256_castps256_ps128(sums[row][index]), _mm256_extractf128_ps::<1>(sums[row][index]));
            let pairs = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
            products[row][index] = _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)));
        }
    }
    for column in columns / 8 * 8..columns {
        for row in 0..ROWS {
            for index in 0..WEIGHTS {
                products[row][index] += weights[index][column].to_f32() * x[row][column];
            }
        }
    }
    products
}

/// Eight weights as 32-bit floats.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn widen<T: Element>(weights: [T; 8]) -> __m256 {
    match T::KIND {
        Kind::F32 => bytemuck::cast(weights),
        Kind::F16 => _mm256_cvtph_ps(bytemuck::cast(weights)),
        Kind::Bf16 => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bytemuck::cast(weights)))),
    }
}
