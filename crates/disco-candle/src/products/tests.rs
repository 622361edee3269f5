use std::ops::Range;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{Device, Module as _, Result, Tensor};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;

use super::elements::Element;
use super::{Dense, Level, Numbers, OwnMatrix as _, Packed};

const TYPES: [GgmlDType; 10] = [
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
];

/// Numbers between -1 and 1 that follow from `seed`.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// For each row of `x` and of `weights`, their product and the sum of its magnitudes.
fn expected(weights: &[f32], x: &[f32], inputs: usize) -> Vec<(f64, f64)> {
    let pair = |x: &[f32], row: &[f32]| {
        let products = x.iter().zip(row).map(|(x, weight)| f64::from(*x) * f64::from(*weight));
        products.fold((0.0, 0.0), |(sum, size), product| (sum + product, size + product.abs()))
    };
    x.chunks(inputs).flat_map(|x| weights.chunks(inputs).map(move |row| pair(x, row))).collect()
}

fn quantized(dtype: GgmlDType, weights: Vec<f32>, inputs: usize) -> Result<QTensor> {
    QTensor::quantize(&Tensor::from_vec(weights, ((), inputs), &Device::Cpu)?, dtype)
}

fn from_block(dtype: GgmlDType, block: Vec<u8>) -> QTensor {
    let storage = QStorage::from_data(block.into(), &Device::Cpu, dtype).unwrap();
    QTensor::new(storage, (1, dtype.block_size())).unwrap()
}

fn floats(tensor: &QTensor) -> Result<Vec<f32>> {
    tensor.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1()
}

/// A sum of products in the documented order.
fn in_order<T: Element>(row: &[T], x: &[f32]) -> f32 {
    /// The leaves `first..end` of 16.
    fn tree<T: Element>(row: &[T], x: &[f32], first: usize, end: usize) -> Option<f32> {
        if end - first == 1 {
            let units = row.len().div_ceil(64);
            let columns = (64 * (first * units / 16))..row.len().min(64 * (end * units / 16));
            let chain = |columns: Range<usize>| columns.fold(0f32, |sum, at| x[at].mul_add(row[at].to_f32(), sum));
            return (!columns.is_empty()).then(|| chain(columns));
        }
        let middle = first + (end - first) / 2;
        let halves = [tree(row, x, first, middle), tree(row, x, middle, end)];
        halves.into_iter().flatten().reduce(|left, right| left + right)
    }
    tree(row, x, 0, 16).unwrap_or(0.0)
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn check_dense<T: Element + candle_core::WithDType>(weights: Vec<T>, x: &[f32], inputs: usize) {
    let products = x.chunks(inputs).flat_map(|x| weights.chunks(inputs).map(move |row| in_order(row, x)));
    let expected = bits(&products.collect::<Vec<_>>());
    for level in Level::all() {
        let matrix = Dense::new(level, &weights, inputs);
        assert!(bits(&matrix.product(x)) == expected, "{level:?}");
        let numbers: Vec<_> = (0..weights.len() / inputs).collect();
        let rows: Vec<T> = matrix.rows(&numbers).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(bytemuck::cast_slice::<T, u8>(&rows), bytemuck::cast_slice::<T, u8>(&weights));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// `x` is rounded to 8 bits for each 32 numbers, weights keep their values but for 11 bits of the scales.
    #[test]
    fn packed_matrices_give_the_products_of_their_weights(
        dtype in select(&TYPES[..]), outputs in 1usize..40, blocks in 1usize..4, rows in 1usize..10, seed: u64,
    ) {
        let inputs = blocks * dtype.block_size();
        let matrix = quantized(dtype, numbers(seed, outputs * inputs), inputs).unwrap();
        let (weights, x) = (floats(&matrix).unwrap(), numbers(!seed, rows * inputs));
        let largest = weights.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
        for level in Level::all() {
            let packed = Packed::new(level, &matrix, 0..inputs).unwrap().unwrap();
            for (row, weights) in weights.chunks(inputs).enumerate() {
                for (found, weight) in packed.row(row).into_iter().zip(weights) {
                    prop_assert!((found - weight).abs() <= largest * 2e-3, "{dtype:?}: {found}, not {weight}");
                }
            }
            let found = packed.product(&x);
            for (row, x) in x.chunks(inputs).enumerate() {
                let alone = packed.product(x);
                prop_assert_eq!(bits(&alone), bits(&found[row * outputs..(row + 1) * outputs]), "a row alone");
            }
            let plain = Packed::new(Level::Scalar, &matrix, 0..inputs).unwrap().unwrap().product(&x);
            prop_assert_eq!(bits(&plain), bits(&found), "the levels differ");
            let expected = expected(&weights, &x, inputs);
            prop_assert_eq!(found.len(), expected.len());
            for (found, (sum, _)) in found.into_iter().zip(expected) {
                // Half of a step of `x` is 1/254; errors are as often up as down.
                let bound = f64::from(largest) * (inputs as f64).sqrt() * 4.0 * (1.0 / 254.0 + 1e-3);
                prop_assert!((f64::from(found) - sum).abs() <= bound, "{dtype:?} {level:?}: {found}, not {sum}");
            }
        }
    }

    /// To the bit, whatever else is computed.
    #[test]
    fn products_of_dense_matrices_are_added_in_the_order_of_the_columns(
        outputs in 0usize..70, inputs in 1usize..400, rows in 0usize..28, seed: u64,
    ) {
        let (weights, x) = (numbers(seed, outputs * inputs), numbers(!seed, rows * inputs));
        check_dense(weights.iter().map(|weight| f16::from_f32(*weight)).collect(), &x, inputs);
        check_dense(weights.iter().map(|weight| bf16::from_f32(*weight)).collect(), &x, inputs);
        check_dense(weights, &x, inputs);
    }
}

/// Each input is one column, which `x` of 8 bits has exactly: products are the weights themselves.
#[test]
fn each_column_of_a_packed_matrix_has_the_weights_of_the_file() {
    for dtype in TYPES {
        let inputs = 256;
        let matrix = quantized(dtype, numbers(7, 3 * inputs), inputs).unwrap();
        let weights = floats(&matrix).unwrap();
        let largest = weights.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
        let x = Tensor::eye(inputs, candle_core::DType::F32, &Device::Cpu).unwrap();
        let x: Vec<f32> = x.flatten_all().unwrap().to_vec1().unwrap();
        for level in Level::all() {
            let found = Packed::new(level, &matrix, 0..inputs).unwrap().unwrap().product(&x);
            for (index, found) in found.into_iter().enumerate() {
                let expected = weights[index % 3 * inputs + index / 3];
                assert!((found - expected).abs() <= largest * 1e-3, "{dtype:?} {level:?} {index}: {found} {expected}");
            }
        }
    }
}

/// As above, for runs of numbers that candle has no type for.
#[test]
fn each_column_of_a_matrix_of_runs_has_its_number_times_the_scale() {
    static TABLE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let (outputs, inputs) = (19, 64);
    let x = Tensor::eye(inputs, candle_core::DType::F32, &Device::Cpu).unwrap();
    let x: Vec<f32> = x.flatten_all().unwrap().to_vec1().unwrap();
    for numbers in [Numbers::Table(&TABLE), Numbers::Small, Numbers::Wide] {
        let number = |random: f32| match numbers {
            Numbers::Table(table) => table[((random + 1.0) * 7.99) as usize],
            Numbers::Small => (random * 31.9) as i8,
            Numbers::Wide => (random * 127.9) as i8,
        };
        for run in [16, 32] {
            let (mut data, mut weights) = (Vec::new(), Vec::new());
            for (index, chunk) in self::numbers(11, outputs * inputs).chunks(run).enumerate() {
                let scale = f16::from_f32(0.01 * (index % 7) as f32);
                data.extend(scale.to_le_bytes());
                data.extend(chunk.iter().map(|random| number(*random) as u8));
                weights.extend(chunk.iter().map(|random| scale.to_f32() * f32::from(number(*random))));
            }
            for level in Level::all() {
                let packed = Packed::of_runs(level, &data, (run, numbers), [outputs, inputs], 0..inputs).unwrap();
                let rows: Vec<_> = (0..outputs).flat_map(|row| packed.row(row)).collect();
                assert_eq!(rows, weights, "{level:?} {numbers:?} {run}");
                for (index, found) in packed.product(&x).into_iter().enumerate() {
                    let expected = weights[index % outputs * inputs + index / outputs];
                    assert!((found - expected).abs() < 1e-5, "{level:?} {numbers:?} {run}: {found} {expected}");
                }
            }
        }
    }
}

/// The blocks of `x` are those of the whole matrix, so that only the order of the sums differs.
#[test]
fn columns_that_cut_blocks_give_their_part_of_the_product() {
    for dtype in TYPES {
        let (outputs, inputs, rows) = (20, 512, 2);
        let matrix = quantized(dtype, numbers(5, outputs * inputs), inputs).unwrap();
        let x = numbers(6, rows * inputs);
        for level in Level::all() {
            let product = |columns: Range<usize>| {
                let x: Vec<_> = x.chunks(inputs).flat_map(|row| row[columns.clone()].to_vec()).collect();
                Packed::new(level, &matrix, columns).unwrap().unwrap().product(&x)
            };
            let (whole, parts) = (product(0..inputs), [0..32, 32..288, 288..512].map(product));
            for (index, whole) in whole.into_iter().enumerate() {
                let sum: f32 = parts.iter().map(|part| part[index]).sum();
                assert!((sum - whole).abs() < 1e-4, "{dtype:?} {level:?}: {sum}, not {whole}");
            }
            for columns in [0..16, 16..48, 480..544, 64..64] {
                assert!(Packed::new(level, &matrix, columns).unwrap().is_none());
            }
        }
    }
}

/// candle rounds `x` as llama.cpp does, in blocks of 256 numbers for K-quants.
#[test]
fn packed_matrices_are_as_precise_as_those_of_candle() {
    for dtype in TYPES {
        let (outputs, inputs, rows) = (64, 1024, 8);
        let matrix = quantized(dtype, numbers(8, outputs * inputs), inputs).unwrap();
        let (weights, x) = (floats(&matrix).unwrap(), numbers(9, rows * inputs));
        let expected = expected(&weights, &x, inputs);
        let error = |found: Vec<f32>| {
            let squares = found.iter().zip(&expected).map(|(found, (sum, _))| (f64::from(*found) - sum).powi(2));
            squares.sum::<f64>().sqrt()
        };
        let packed = Level::all().into_iter().map(|level| Packed::new(level, &matrix, 0..inputs).unwrap().unwrap());
        let found: Vec<_> = packed.map(|packed| error(packed.product(&x))).collect();
        let rows = Tensor::from_vec(x.clone(), (rows, inputs), &Device::Cpu).unwrap();
        let candle = QMatMul::from_qtensor(matrix).unwrap().forward(&rows).unwrap();
        let usual = error(candle.flatten_all().unwrap().to_vec1().unwrap());
        assert!(found.iter().all(|found| *found < 1.05 * usual), "{dtype:?}: {found:?}, candle {usual}");
    }
}

#[test]
fn the_extreme_codes_do_not_overflow() {
    for code in [0x80u8, 0x7f, 0xff] {
        let mut block = f16::ONE.to_le_bytes().to_vec();
        block.extend([code; 32]);
        let matrix = from_block(GgmlDType::Q8_0, block);
        for level in Level::all() {
            let packed = Packed::new(level, &matrix, 0..32).unwrap().unwrap();
            for sign in [1.0, -1.0] {
                assert_eq!(packed.product(&[127.0 * sign; 32]), [127.0 * 32.0 * sign * f32::from(code as i8)]);
            }
        }
    }
}

#[test]
fn scales_beyond_16_bits_are_left_to_candle() {
    // 16 scales of 127, and a factor of 65504.
    let mut block = vec![127; 208];
    block.extend(f16::MAX.to_le_bytes());
    let matrix = from_block(GgmlDType::Q6K, block);
    for level in Level::all() {
        assert!(Packed::new(level, &matrix, 0..256).unwrap().is_none());
    }
}

#[test]
fn an_input_that_is_not_finite_gives_products_that_are_not_finite() {
    let matrix = quantized(GgmlDType::Q8_0, vec![1.0; 64], 64).unwrap();
    for level in Level::all() {
        for number in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = numbers(3, 64);
            x[40] = number;
            assert!(!Packed::new(level, &matrix, 0..64).unwrap().unwrap().product(&x)[0].is_finite());
        }
    }
}

#[test]
fn several_threads_give_the_products_of_one() {
    let (outputs, inputs, rows) = (1000, 512, 5);
    let matrix = quantized(GgmlDType::Q4_0, numbers(1, outputs * inputs), inputs).unwrap();
    let (weights, x) = (numbers(2, outputs * inputs), numbers(4, rows * inputs));
    for level in Level::all() {
        let packed = Packed::new(level, &matrix, 0..inputs).unwrap().unwrap();
        let dense = Dense::new(level, &weights, inputs);
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| (packed.product(&x), dense.product(&x)))
        };
        assert_eq!(on(1), on(3));
    }
}

#[test]
fn no_rows_have_no_products() {
    let (outputs, inputs) = (40, 64);
    let weights = numbers(1, outputs * inputs);
    let matrix = quantized(GgmlDType::Q8_0, weights.clone(), inputs).unwrap();
    for level in Level::all() {
        assert!(Packed::new(level, &matrix, 0..inputs).unwrap().unwrap().product(&[]).is_empty());
        assert!(Dense::new(level, &weights, inputs).product(&[]).is_empty());
    }
}
