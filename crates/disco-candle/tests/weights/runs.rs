//! Blocks of GGUF that candle lacks give the products of their elements.

use candle_core::{D, DType, Device, Module as _, Tensor};
use disco_candle::Matrix;
use disco_candle::weights::{Part, Weights};

use super::gguf_faults::Header;

/// Kinds of blocks: code, elements and bytes. The first two and NVFP4 have a scale for each 16 elements, two have small numbers, and
/// the last five those of a table.
const KINDS: [(u32, usize, usize); 10] = [
    (17, 256, 74),
    (22, 256, 82),
    (18, 256, 98),
    (21, 256, 110),
    (19, 256, 50),
    (20, 32, 18),
    (MXFP4, 32, 17),
    (NVFP4, 64, 36),
    (TQ1, 256, 54),
    (TQ2, 256, 66),
];

const MXFP4: u32 = 39;
const NVFP4: u32 = 40;
const TQ1: u32 = 34;
const TQ2: u32 = 35;

const ROWS: u64 = 20;
const COLUMNS: u64 = 512;

/// A file with a matrix of random blocks and a stack of two such matrices.
fn write((code, elements, bytes): (u32, usize, usize)) -> (tempfile::TempDir, Weights) {
    let size = (ROWS * COLUMNS) as usize / elements * bytes;
    let start = size.next_multiple_of(32);
    let header = Header::new(2, 0).tensor("matrix", &[COLUMNS, ROWS], code, 0);
    let mut header = header.tensor("stack", &[COLUMNS, ROWS, 2], code, start as u64).data(start + 2 * size);
    let data = header.0.len() - start - 2 * size;
    let mut state = 1u64;
    for byte in &mut header.0[data..] {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (state >> 33) as u8;
    }
    for first in [data, data + start] {
        for block in header.0[first..].chunks_exact_mut(bytes) {
            // A scale of 0.0687.
            let scale = 0x2c66u16.to_le_bytes();
            match code {
                MXFP4 => block[0] = 125,
                NVFP4 => block[..4].iter_mut().for_each(|scale| *scale = 0x30 | *scale & 7),
                TQ1 | TQ2 => block[bytes - 2..].copy_from_slice(&scale),
                _ => block[..2].copy_from_slice(&scale),
            }
        }
    }
    let (folder, path) = header.write();
    (folder, Weights::open(path).unwrap())
}

#[test]
fn blocks_that_candle_lacks_give_the_products_of_their_elements() {
    for kind @ (code, ..) in KINDS {
        let (_folder, weights) = write(kind);
        for name in ["matrix", "stack"] {
            let last = weights.info(name).unwrap().shape().len() - 1;
            for part in [Part::Whole, Part::Range { dim: last, range: 32..288 }] {
                let dense = weights.read(name, &part, DType::F32, &Device::Cpu).unwrap();
                let x = Tensor::randn(0f32, 1.0, (3, dense.dim(D::Minus1).unwrap()), &Device::Cpu).unwrap();
                let (runs, columns) = weights.read_runs(name, &part).unwrap();
                let Some(mut all) = runs.matrices(columns) else {
                    println!("skipped: {code}, {name}, {part}: the blocks are not multiplied here");
                    continue;
                };
                if name == "matrix" && weights.info(name).unwrap().encoding().quantized().is_some() {
                    let (blocks, columns) = weights.read_covering(name, &part, &Device::Cpu).unwrap();
                    all = all.into_iter().chain(Matrix::quantized_columns(blocks.into(), columns).unwrap()).collect();
                }
                let dense = if name == "matrix" { Tensor::stack(&vec![dense; all.len()], 0).unwrap() } else { dense };
                let stack = dense.reshape((all.len(), ROWS as usize, ())).unwrap();
                for (number, matrix) in all.iter().enumerate() {
                    let expected = x.matmul(&stack.get(number).unwrap().t().unwrap()).unwrap();
                    let difference = (matrix.forward(&x).unwrap() - &expected).unwrap().abs().unwrap();
                    let [difference, size] = [difference, expected.abs().unwrap()]
                        .map(|tensor| tensor.max_all().unwrap().to_scalar::<f32>().unwrap());
                    assert!(difference < 0.02 * size, "{code}, {name}, {part}: {difference} of {size}");
                }
            }
        }
    }
}
