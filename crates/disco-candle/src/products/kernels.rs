//! Vector code for dot products.
#![allow(unsafe_code)] // Functions for instructions that the processor has, which `Level::detect` has found out.

use std::arch::x86_64::*;
use std::ops::Range;

use super::blocks::{Block, Codes, Group, LANES};
use super::elements::{Element, Kind, PANEL};

/// How many bytes ahead of the current ones a kernel prefetches: of one row, and of the rows of a panel.
const PREFETCHED: usize = 2048;
const PREFETCHED_OF_ROWS: usize = 512;

/// The vector instructions that the kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// AVX2, FMA and F16C.
    Avx2,
    /// The same, AVX-512, also for bytes, and VNNI.
    Avx512,
}

impl Level {
    /// The best level of this processor, if it has one.
    pub(crate) fn detect() -> Option<Self> {
        let has_avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let has_avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni");
        has_avx2.then_some(if has_avx512 { Self::Avx512 } else { Self::Avx2 })
    }
}

/// Products of the rows of a group with `R` rows of blocks. A run of the group has `WORDS` times 4 columns. Each row
/// of `x` has as many columns as the group.
pub(super) fn packed<const BITS: usize, const WORDS: usize, const R: usize>(
    level: Level,
    group: &Group<'_>,
    x: [&[Block]; R],
) -> [[f32; LANES]; R] {
    match level {
        // SAFETY: `Level::detect` has found AVX2, FMA and F16C.
        Level::Avx2 => unsafe { packed_avx2::<BITS, WORDS, R>(group, x) },
        // SAFETY: `Level::detect` has found AVX-512F, BW and VNNI.
        Level::Avx512 => unsafe { packed_avx512::<BITS, WORDS, R>(group, x) },
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
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn packed_avx512<const BITS: usize, const WORDS: usize, const R: usize>(
    group: &Group<'_>,
    x: [&[Block]; R],
) -> [[f32; LANES]; R] {
    let mut sums = [_mm512_setzero_ps(); R];
    let vectors = WORDS * BITS / 8;
    let nibbles = _mm512_set1_epi8(15);
    let table = group.table.map(|table| bytemuck::cast::<_, __m512i>([table.map(|number| number as u8 ^ 0x80); 4]));
    for index in 0..group.scales.len() {
        let run = &group.codes[index * vectors..][..vectors];
        let mut codes = [nibbles; WORDS];
        for vector in run {
            prefetch::<PREFETCHED>(vector);
        }
        for word in 0..WORDS {
            if BITS == 8 {
                codes[word] = load(&run[word]);
                continue;
            }
            let halves = load(&run[word % (WORDS / 2)]);
            let halves = if word < WORDS / 2 { halves } else { _mm512_srli_epi32::<4>(halves) };
            codes[word] = _mm512_and_si512(halves, nibbles);
            if BITS == 6 {
                let quarters = load(&run[WORDS / 2 + word / 4]);
                let upper = match word % 4 {
                    0 => _mm512_slli_epi32::<4>(quarters),
                    1 => _mm512_slli_epi32::<2>(quarters),
                    2 => quarters,
                    _ => _mm512_srli_epi32::<2>(quarters),
                };
                codes[word] = _mm512_or_si512(codes[word], _mm512_and_si512(upper, _mm512_set1_epi8(0x30)));
            }
            if let Some(table) = table {
                codes[word] = _mm512_shuffle_epi8(table, codes[word]);
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

/// Asks for the memory so many bytes behind `current`, for which the processor's own prefetching is late.
#[inline]
fn prefetch<const BYTES: usize>(current: *const impl Sized) {
    let ahead = current.cast::<i8>().wrapping_add(BYTES);
    // SAFETY: prefetching any address is allowed.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead) };
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(codes: &Codes) -> __m512i {
    // SAFETY: the codes have the size and the alignment of a vector.
    unsafe { _mm512_load_si512(std::ptr::from_ref(codes).cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn half_of(codes: &Codes, half: usize) -> __m256i {
    bytemuck::cast::<_, [__m256i; 2]>(codes.0)[half]
}

/// As [`packed_avx512`], for eight rows at a time. Sums of two products of a code of 8 bits and a number of `x` may exceed
/// 16 bits, so these codes get their sign back first, and `x` takes it over.
#[target_feature(enable = "avx2,fma,f16c")]
fn packed_avx2<const BITS: usize, const WORDS: usize, const R: usize>(
    group: &Group<'_>,
    x: [&[Block]; R],
) -> [[f32; LANES]; R] {
    let mut sums = [[_mm256_setzero_ps(); 2]; R];
    let vectors = WORDS * BITS / 8;
    let table = group.table.map(|table| bytemuck::cast::<_, __m256i>([*table; 2]));
    let is_signed = BITS == 8 || table.is_some();
    let zero = if is_signed { group.zero - 128 } else { group.zero };
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
                prefetch::<PREFETCHED>(&run[word % vectors]);
                let (codes, magnitudes) = if BITS == 8 {
                    let codes = _mm256_xor_si256(half_of(&run[word], half), signs);
                    (codes, _mm256_abs_epi8(codes))
                } else {
                    let halves = half_of(&run[word % (WORDS / 2)], half);
                    let halves = if word < WORDS / 2 { halves } else { _mm256_srli_epi16::<4>(halves) };
                    let mut codes = _mm256_and_si256(halves, nibbles);
                    if BITS == 6 {
                        let quarters = half_of(&run[WORDS / 2 + word / 4], half);
                        let upper = match word % 4 {
                            0 => _mm256_slli_epi16::<4>(quarters),
                            1 => _mm256_slli_epi16::<2>(quarters),
                            2 => quarters,
                            _ => _mm256_srli_epi16::<2>(quarters),
                        };
                        codes = _mm256_or_si256(codes, _mm256_and_si256(upper, _mm256_set1_epi8(0x30)));
                    }
                    match table {
                        Some(table) => {
                            let numbers = _mm256_shuffle_epi8(table, codes);
                            (numbers, _mm256_abs_epi8(numbers))
                        }
                        None => (codes, codes),
                    }
                };
                for row in 0..R {
                    let numbers = _mm256_set1_epi32(part::<WORDS>(x[row], index).0[word]);
                    let numbers = if is_signed { _mm256_sign_epi8(numbers, codes) } else { numbers };
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
        prefetch::<PREFETCHED>(weights);
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

/// Adds the products of `R` rows, a multiple of four, with a panel to the sums `y`, of which a row has `width`. `x` has the
/// numbers of the rows for each column.
pub(super) fn panel<const R: usize>(level: Level, panel: &[f32], x: &[f32], y: &mut [f32], width: usize) {
    assert!(y.len() >= (R - 1) * width + PANEL && panel.len() >= x.len() / R * PANEL);
    match level {
        // SAFETY: `Level::detect` has found AVX2 and FMA.
        Level::Avx2 => unsafe { panel_avx2::<R>(panel, x, y, width) },
        // SAFETY: `Level::detect` has found AVX-512F.
        Level::Avx512 => unsafe { panel_avx512::<R>(panel, x, y, width) },
    }
}

/// All sums are in registers.
#[target_feature(enable = "avx512f")]
fn panel_avx512<const R: usize>(panel: &[f32], x: &[f32], y: &mut [f32], width: usize) {
    const VECTORS: usize = PANEL / 16;
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; R];
    for row in 0..R {
        sums[row] = bytemuck::cast(y[row * width..].as_chunks::<PANEL>().0[0]);
    }
    for (x, weights) in x.as_chunks::<R>().0.iter().zip(panel.as_chunks::<PANEL>().0) {
        let weights: [__m512; VECTORS] = bytemuck::cast(*weights);
        for row in 0..R {
            let x = _mm512_set1_ps(x[row]);
            for vector in 0..VECTORS {
                sums[row][vector] = _mm512_fmadd_ps(x, weights[vector], sums[row][vector]);
            }
        }
    }
    for row in 0..R {
        y[row * width..][..PANEL].copy_from_slice(&bytemuck::cast::<_, [f32; PANEL]>(sums[row]));
    }
}

/// Half a panel and four rows at a time.
#[target_feature(enable = "avx2,fma")]
fn panel_avx2<const R: usize>(panel: &[f32], x: &[f32], y: &mut [f32], width: usize) {
    const HALF: usize = PANEL / 2;
    const VECTORS: usize = HALF / 8;
    for first in (0..R).step_by(4) {
        for half in 0..2 {
            let mut sums = [[_mm256_setzero_ps(); VECTORS]; 4];
            for row in 0..4 {
                sums[row] = bytemuck::cast(y[(first + row) * width..].as_chunks::<HALF>().0[half]);
            }
            for (x, weights) in x.as_chunks::<R>().0.iter().zip(panel.as_chunks::<PANEL>().0) {
                let weights: [__m256; VECTORS] = bytemuck::cast(weights.as_chunks::<HALF>().0[half]);
                for row in 0..4 {
                    let x = _mm256_set1_ps(x[first + row]);
                    for vector in 0..VECTORS {
                        sums[row][vector] = _mm256_fmadd_ps(x, weights[vector], sums[row][vector]);
                    }
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                let place = (first + row) * width + half * HALF;
                y[place..][..HALF].copy_from_slice(&bytemuck::cast::<_, [f32; HALF]>(*sums));
            }
        }
    }
}

/// Packs columns of up to [`PANEL`] rows of weights as 32-bit floats: the weights of the first column, of the second one, …
pub(super) fn pack_panel<T: Element>(_: Level, weight: &[T], inputs: usize, columns: Range<usize>, panel: &mut [f32]) {
    // SAFETY: `Level::detect` has found AVX2 and F16C, which both levels have.
    unsafe { pack_panel_avx2(weight, inputs, columns, panel) }
}

#[target_feature(enable = "avx2,f16c")]
fn pack_panel_avx2<T: Element>(weight: &[T], inputs: usize, columns: Range<usize>, panel: &mut [f32]) {
    let rows = weight.len() / inputs;
    for from in columns.clone().step_by(8) {
        let to = columns.end.min(from + 8);
        for first in (0..PANEL).step_by(8) {
            let mut tile = [_mm256_setzero_ps(); 8];
            for row in first..rows.min(first + 8) {
                let part = &weight[row * inputs + from..row * inputs + to];
                prefetch::<PREFETCHED_OF_ROWS>(&part[0]);
                tile[row - first] = match part.as_chunks::<8>().0 {
                    [whole] => widen(*whole),
                    _ => {
                        let mut rest = [0.0; 8];
                        for column in 0..part.len() {
                            rest[column] = part[column].to_f32();
                        }
                        bytemuck::cast(rest)
                    }
                };
            }
            let by_columns: [[f32; 8]; 8] = bytemuck::cast(transposed(tile));
            for column in from..to {
                let place = (column - columns.start) * PANEL + first;
                panel[place..][..8].copy_from_slice(&by_columns[column - from]);
            }
        }
    }
}

/// Exchanges rows and columns: within pairs of rows, within fours, and between the halves of vectors.
#[target_feature(enable = "avx2")]
#[inline]
fn transposed(rows: [__m256; 8]) -> [__m256; 8] {
    let mut fours = [_mm256_setzero_ps(); 8];
    for first in [0, 4] {
        let [a, b, c, d] = [rows[first], rows[first + 1], rows[first + 2], rows[first + 3]];
        let lower = [_mm256_castps_pd(_mm256_unpacklo_ps(a, b)), _mm256_castps_pd(_mm256_unpacklo_ps(c, d))];
        let upper = [_mm256_castps_pd(_mm256_unpackhi_ps(a, b)), _mm256_castps_pd(_mm256_unpackhi_ps(c, d))];
        fours[first] = _mm256_castpd_ps(_mm256_unpacklo_pd(lower[0], lower[1]));
        fours[first + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(lower[0], lower[1]));
        fours[first + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(upper[0], upper[1]));
        fours[first + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(upper[0], upper[1]));
    }
    let mut columns = [_mm256_setzero_ps(); 8];
    for column in 0..4 {
        columns[column] = _mm256_permute2f128_ps::<0x20>(fours[column], fours[4 + column]);
        columns[4 + column] = _mm256_permute2f128_ps::<0x31>(fours[column], fours[4 + column]);
    }
    columns
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
