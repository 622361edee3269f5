//! Products with quantised blocks by AVX-512 and AVX2.
#![allow(unsafe_code)] // Functions for instructions that the processor has, which `Level` has found out.

use std::arch::x86_64::*;

use super::blocks::{BLOCK, Block, Codes, Group, LANES};
use super::order::DEPTH;

/// How many bytes ahead of the current ones a kernel prefetches.
const PREFETCHED: usize = 2048;

/// Four columns of a block at a time: 16 vectors of codes in `u8`, times the same four numbers of `x` in each.
///
/// These functions loop over indexes, since closures and the functions of iterators that call them are not compiled for the same
/// instructions, and so are not inlined. A block of 32 columns has `BITS` vectors of codes in `RUNS` runs; arrays spare the checks of slices,
/// which took a quarter of the time of short rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) fn packed_avx512<const BITS: usize, const WORDS: usize, const RUNS: usize, const R: usize>(
    group: &Group<'_>,
    x: &[[Block; R]],
) -> [[f32; LANES]; R] {
    let (mut waiting, mut depth) = ([[_mm512_setzero_ps(); R]; DEPTH], 0);
    let (codes, scales) = (group.codes.as_chunks::<BITS>().0, group.scales.as_chunks::<RUNS>().0);
    let (mins, blocks) = (group.mins.as_chunks::<RUNS>().0, x.len().min(codes.len()).min(scales.len()));
    let nibbles = _mm512_set1_epi8(15);
    let table = group.table.map(|table| bytemuck::cast::<_, __m512i>([table.map(|number| number as u8 ^ 0x80); 4]));
    for shard in group.order.shards() {
        let mut sums = [_mm512_setzero_ps(); R];
        for number in shard.columns.start / BLOCK..blocks.min(shard.columns.end / BLOCK) {
            let (x, codes, scales) = (&x[number], &codes[number], &scales[number]);
            for part_of_block in 0..RUNS {
                let run = &codes[part_of_block * BITS / RUNS..(part_of_block + 1) * BITS / RUNS];
                let mut codes = [nibbles; WORDS];
                for vector in run {
                    prefetch(vector);
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
                let of_run = _mm512_cvtph_ps(bytemuck::cast(scales[part_of_block]));
                for row in 0..R {
                    let (words, sum, scale) = x[row].part::<WORDS>(part_of_block);
                    let mut even = _mm512_set1_epi32(-group.zero * sum);
                    let mut odd = _mm512_setzero_si512();
                    for pair in 0..WORDS / 2 {
                        even = _mm512_dpbusd_epi32(even, codes[2 * pair], _mm512_set1_epi32(words[2 * pair]));
                        odd = _mm512_dpbusd_epi32(odd, codes[2 * pair + 1], _mm512_set1_epi32(words[2 * pair + 1]));
                    }
                    let dots = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
                    sums[row] = _mm512_fmadd_ps(dots, _mm512_mul_ps(of_run, _mm512_set1_ps(scale)), sums[row]);
                    if !group.mins.is_empty() {
                        let mins = _mm512_cvtph_ps(bytemuck::cast(mins[number][part_of_block]));
                        sums[row] = _mm512_fmadd_ps(mins, _mm512_set1_ps(scale * sum as f32), sums[row]);
                    }
                }
            }
        }
        for _ in 0..shard.meetings {
            depth -= 1;
            for row in 0..R {
                sums[row] = _mm512_add_ps(waiting[depth][row], sums[row]);
            }
        }
        waiting[depth] = sums;
        depth += 1;
    }
    let mut products = [[0.0; LANES]; R];
    for row in 0..R {
        products[row] = bytemuck::cast(waiting[0][row]);
    }
    products
}

/// As [`Block::quantize`].
#[target_feature(enable = "avx2")]
pub(super) fn quantized_avx2(x: &[f32]) -> Vec<Block> {
    let mut blocks = Vec::with_capacity(x.len() / BLOCK);
    for x in x.as_chunks::<BLOCK>().0 {
        let x: [__m256; 4] = bytemuck::cast(*x);
        let size = |x: __m256| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(i32::MAX));
        let pairs = [_mm256_max_epi32(size(x[0]), size(x[1])), _mm256_max_epi32(size(x[2]), size(x[3]))];
        let sizes: [i32; 8] = bytemuck::cast(_mm256_max_epi32(pairs[0], pairs[1]));
        let mut largest = 0;
        for size in sizes {
            largest = size.max(largest);
        }
        let (scale, factor) = Block::scale(largest as u32);
        let mut numbers = [_mm256_setzero_si256(); 4];
        for part in 0..4 {
            let moved = _mm256_add_ps(_mm256_mul_ps(x[part], _mm256_set1_ps(factor)), _mm256_set1_ps(Block::ROUND));
            numbers[part] = _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(_mm256_castps_si256(moved)));
        }
        let [a, b, c, d] = numbers;
        let halves: [[i32; 8]; 2] = [bytemuck::cast(_mm256_add_epi32(a, b)), bytemuck::cast(_mm256_add_epi32(c, d))];
        // Packing goes by halves of vectors.
        let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        let words = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        let mut sums = [0; 2];
        for half in 0..2 {
            for number in halves[half] {
                sums[half] += number;
            }
        }
        blocks.push(Block { words: bytemuck::cast(words), scale, sums });
    }
    blocks
}

/// Asks for the memory behind `current`, for which the processor's own prefetching is late.
#[inline]
fn prefetch(current: *const impl Sized) {
    let ahead = current.cast::<i8>().wrapping_add(PREFETCHED);
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
pub(super) fn packed_avx2<const BITS: usize, const WORDS: usize, const RUNS: usize, const R: usize>(
    group: &Group<'_>,
    x: &[[Block; R]],
) -> [[f32; LANES]; R] {
    let (mut waiting, mut depth) = ([[[_mm256_setzero_ps(); 2]; R]; DEPTH], 0);
    let (codes, scales) = (group.codes.as_chunks::<BITS>().0, group.scales.as_chunks::<RUNS>().0);
    let (mins, blocks) = (group.mins.as_chunks::<RUNS>().0, x.len().min(codes.len()).min(scales.len()));
    let table = group.table.map(|table| bytemuck::cast::<_, __m256i>([*table; 2]));
    let is_signed = BITS == 8 || table.is_some();
    let zero = if is_signed { group.zero - 128 } else { group.zero };
    let (nibbles, signs, ones) = (_mm256_set1_epi8(15), _mm256_set1_epi8(-128), _mm256_set1_epi16(1));
    for shard in group.order.shards() {
        let mut sums = [[_mm256_setzero_ps(); 2]; R];
        for number in shard.columns.start / BLOCK..blocks.min(shard.columns.end / BLOCK) {
            let (x, codes, scales) = (&x[number], &codes[number], &scales[number]);
            for part_of_block in 0..RUNS {
                let run = &codes[part_of_block * BITS / RUNS..(part_of_block + 1) * BITS / RUNS];
                #[allow(clippy::needless_range_loop, reason = "`half` is an index of other arrays, too")]
                for half in 0..2 {
                    let mut dots = [_mm256_setzero_si256(); R];
                    for row in 0..R {
                        dots[row] = _mm256_set1_epi32(-zero * x[row].part::<WORDS>(part_of_block).1);
                    }
                    for word in 0..WORDS {
                        prefetch(&run[word % (BITS / RUNS)]);
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
                            let numbers = _mm256_set1_epi32(x[row].part::<WORDS>(part_of_block).0[word]);
                            let numbers = if is_signed { _mm256_sign_epi8(numbers, codes) } else { numbers };
                            let pairs = _mm256_maddubs_epi16(magnitudes, numbers);
                            dots[row] = _mm256_add_epi32(dots[row], _mm256_madd_epi16(pairs, ones));
                        }
                    }
                    let of_half = _mm256_cvtph_ps(bytemuck::cast::<_, [__m128i; 2]>(scales[part_of_block])[half]);
                    for row in 0..R {
                        let (_, total, scale) = x[row].part::<WORDS>(part_of_block);
                        let sum = &mut sums[row][half];
                        let factors = _mm256_mul_ps(of_half, _mm256_set1_ps(scale));
                        *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[row]), factors, *sum);
                        if !group.mins.is_empty() {
                            let mins =
                                _mm256_cvtph_ps(bytemuck::cast::<_, [__m128i; 2]>(mins[number][part_of_block])[half]);
                            *sum = _mm256_fmadd_ps(mins, _mm256_set1_ps(scale * total as f32), *sum);
                        }
                    }
                }
            }
        }
        for _ in 0..shard.meetings {
            depth -= 1;
            for row in 0..R {
                for half in 0..2 {
                    sums[row][half] = _mm256_add_ps(waiting[depth][row][half], sums[row][half]);
                }
            }
        }
        waiting[depth] = sums;
        depth += 1;
    }
    let mut products = [[0.0; LANES]; R];
    for row in 0..R {
        products[row] = bytemuck::cast(waiting[0][row]);
    }
    products
}
