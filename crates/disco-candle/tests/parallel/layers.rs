//! Parallel layers, compared with the same layer on one rank.

use std::ops::Range;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Module, Tensor};
use disco_candle::{
    ColumnParallelLinear, Comm, HeadPlan, Matrix, NodesLinear, RowParallelLinear, VocabParallelEmbedding,
    VocabParallelLogits, cuts,
};

use super::{assert_close, on_ranks, random};

/// The ranges of `count` items on `ranks` ranks.
fn ranges(count: usize, ranks: usize) -> Vec<Range<usize>> {
    let plan = HeadPlan::new(count, count, ranks).unwrap();
    (0..ranks).map(|rank| plan.query(rank)).collect()
}

fn rows(tensor: &Tensor, range: &Range<usize>) -> Tensor {
    tensor.narrow(0, range.start, range.len()).unwrap().contiguous().unwrap()
}

fn columns(tensor: &Tensor, range: &Range<usize>) -> Tensor {
    tensor.narrow(1, range.start, range.len()).unwrap().contiguous().unwrap()
}

#[test]
fn a_column_and_a_row_parallel_layer_equal_the_whole_layers() {
    let (a, b, bias_a, bias_b) = (random(1, &[10, 6]), random(2, &[4, 10]), random(3, &[10]), random(4, &[4]));
    let x = random(5, &[2, 3, 6]);
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let [a, b, bias_a, bias_b, x] = [&a, &b, &bias_a, &bias_b, &x].map(|t| t.to_dtype(dtype).unwrap());
        let hidden = candle_nn::Linear::new(a.clone(), Some(bias_a.clone())).forward(&x).unwrap().relu().unwrap();
        let expected = candle_nn::Linear::new(b.clone(), Some(bias_b.clone())).forward(&hidden).unwrap();
        let tolerance = if dtype == DType::F32 { 1e-5 } else { 0.1 };
        for size in 1..=4 {
            let own = ranges(10, size);
            for y in on_ranks(size, |comm| {
                let own = &own[comm.rank()];
                let (a, b, bias) = (rows(&a, own), columns(&b, own), rows(&bias_a, own));
                let first = ColumnParallelLinear::new(Matrix::dense(a), Some(bias), comm.clone());
                let second = RowParallelLinear::new(Matrix::dense(b), Some(bias_b.clone()), comm.clone());
                second.forward(&first.forward(&x)?.relu()?)
            }) {
                assert_close(&y, &expected, tolerance);
            }
        }
    }
}

#[test]
fn quantised_parts_give_the_product_of_the_quantised_matrix() {
    let (weight, x) = (random(1, &[16, 128]), random(2, &[1, 2, 128]));
    let quantize = |part: &Tensor| Matrix::quantized(QTensor::quantize(part, GgmlDType::Q4_1)?);
    let expected = quantize(&weight).unwrap().forward(&x).unwrap();
    for y in on_ranks(2, |comm| {
        let own = 64 * comm.rank()..64 * (comm.rank() + 1);
        let matrix = quantize(&columns(&weight, &own))?;
        assert_eq!(matrix.bytes(), 16 * 2 * 20, "20 bytes for a block of 32");
        let x = x.narrow(2, own.start, own.len())?.contiguous()?;
        let in_bf16 = matrix.forward(&x.to_dtype(DType::BF16)?)?;
        assert_eq!(in_bf16.dtype(), DType::BF16);
        RowParallelLinear::new(matrix, None, comm.clone()).forward(&x)
    }) {
        assert_close(&y, &expected, 1e-4);
    }
}

/// The bits of the elements.
fn bits(tensor: &Tensor) -> Vec<u32> {
    let all = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    all.into_iter().map(f32::to_bits).collect()
}

#[test]
fn nodes_of_sums_on_any_ranks_give_the_bits_of_the_whole_matrix() {
    // The last shape has more numbers than are exchanged at once.
    for (inputs, outputs, count) in [(64, 3, 1), (576, 40, 2), (1600, 7, 5), (1536, 130, 60)] {
        let (weight, x) = (random(inputs as u64, &[outputs, inputs]), random(9, &[1, count, inputs]));
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let [weight, x] = [&weight, &x].map(|tensor| tensor.to_dtype(dtype).unwrap());
            let expected = bits(&Matrix::inference(weight.clone()).unwrap().forward(&x).unwrap());
            for ranks in 1..=9 {
                // Some ranks may have nothing, and cuts need not be even.
                let all: Vec<_> = cuts(inputs).collect();
                let bound =
                    |rank: usize| if rank == ranks { inputs } else { all[(rank * rank * 16) / (ranks * ranks)] };
                let parts: Vec<_> = (0..ranks).map(|rank| bound(rank)..bound(rank + 1)).collect();
                for y in on_ranks(ranks, |comm| {
                    let own = &parts[comm.rank()];
                    let matrix = |some: &Range<usize>| {
                        Matrix::inference(columns(&weight, &(own.start + some.start..own.start + some.end)))
                    };
                    let load = |all: &[Range<usize>]| all.iter().map(matrix).collect();
                    let linear = NodesLinear::new::<candle_core::Error>([inputs, outputs], &parts, load, comm)?;
                    linear.forward(&x.narrow(2, own.start, own.len())?)
                }) {
                    assert!(bits(&y) == expected, "{inputs} × {outputs}, {count} rows, {dtype:?}, {parts:?}");
                }
            }
        }
    }
}

#[test]
fn an_embedding_has_the_same_zeros_on_any_ranks() {
    let weight = Tensor::new(&[[-0.0f32, 1.0], [0.0, -0.0], [-1.0, -0.0]], &Device::Cpu).unwrap();
    let tokens = Tensor::new(&[0u32, 1, 2], &Device::Cpu).unwrap();
    for size in [1, 2, 3] {
        let own = ranges(3, size);
        for y in on_ranks(size, |comm| {
            let own = own[comm.rank()].clone();
            let weight = Matrix::inference(rows(&weight, &own))?;
            VocabParallelEmbedding::new(weight, own, comm.clone())?.forward(&tokens)
        }) {
            assert_eq!(bits(&y), [0.0f32, 1.0, 0.0, 0.0, -1.0, 0.0].map(f32::to_bits), "{size} ranks");
        }
    }
}

#[test]
fn a_split_vocabulary_gives_the_embedding_the_logits_and_the_first_largest_token() {
    let weight = random(1, &[7, 4]);
    let tokens = Tensor::new(&[[0u32, 6, 3], [2, 2, 5]], &Device::Cpu).unwrap();
    let embedded = candle_nn::Embedding::new(weight.clone(), 4).forward(&tokens).unwrap();
    let x = random(2, &[5, 4]);
    // Token 5 has the logits of token 1, so both are largest where token 1 is.
    let tied = Tensor::cat(&[rows(&weight, &(0..5)), rows(&weight, &(1..2)), rows(&weight, &(6..7))], 0).unwrap();
    let logits = x.matmul(&tied.t().unwrap()).unwrap();
    let expected: Vec<u32> = logits.argmax(1).unwrap().to_vec1().unwrap();
    // The last of 8 ranks has no token.
    for size in [1, 2, 3, 8] {
        let mut own = ranges(7, size.min(7));
        own.resize(size, 7..7);
        on_ranks(size, |comm| {
            let tokens_of_rank = own[comm.rank()].clone();
            let weight = Matrix::dense(rows(&weight, &tokens_of_rank));
            let layer = VocabParallelEmbedding::new(weight, tokens_of_rank.clone(), comm.clone())?;
            assert_close(&layer.forward(&tokens)?, &embedded, 0.0);

            let extents = own.iter().map(Range::len).collect();
            let layer = VocabParallelLogits::new(Matrix::dense(rows(&tied, &tokens_of_rank)), extents, comm.clone())?;
            assert_close(&layer.forward(&x)?, &logits, 1e-6);
            let best = layer.argmax(&x)?;
            assert_eq!(best.to_vec()?, expected);
            assert_eq!(best.tokens()?.to_vec1::<u32>()?, expected);
            Ok(())
        });
    }
}

#[test]
fn an_embedding_of_quantised_rows_has_their_numbers() {
    let weight = random(1, &[7, 256]);
    let tokens = Tensor::new(&[3u32, 0, 6, 6, 2], &Device::Cpu).unwrap();
    // Blocks of the last type are not packed anew.
    for dtype in [GgmlDType::Q4K, GgmlDType::Q6K, GgmlDType::Q8_0, GgmlDType::Q8K] {
        // candle quantises all of a view's memory.
        let blocks = |rows: &Tensor| QTensor::quantize(&rows.force_contiguous().unwrap(), dtype).unwrap();
        let expected = blocks(&weight).dequantize(&Device::Cpu).unwrap().index_select(&tokens, 0).unwrap();
        for size in [1, 3] {
            let own = ranges(7, size);
            on_ranks(size, |comm| {
                let own = own[comm.rank()].clone();
                let matrix = Matrix::quantized(blocks(&rows(&weight, &own)))?;
                let layer = VocabParallelEmbedding::new(matrix, own, comm.clone())?;
                assert_close(&layer.forward(&tokens)?, &expected, 2e-3);
                Ok(())
            });
        }
    }
    let matrix = Matrix::quantized(QTensor::quantize(&weight, GgmlDType::Q4K).unwrap()).unwrap();
    let error = matrix.rows(&Tensor::new(&[7u32], &Device::Cpu).unwrap()).unwrap_err().to_string();
    assert_eq!(error, "a matrix of 7 rows has no row 7");
}

#[test]
fn the_input_of_a_matrix_without_rows_is_refused() {
    let error = Matrix::dense(random(1, &[3, 2])).forward(&random(2, &[2])).unwrap_err().to_string();
    assert_eq!(error, "the input of a matrix needs two dimensions or more, not [2]");
}

#[test]
fn an_embedding_with_another_number_of_rows_is_refused() {
    let weight = Matrix::dense(random(1, &[3, 2]));
    let error = VocabParallelEmbedding::new(weight, 0..4, Comm::alone()).unwrap_err().to_string();
    assert_eq!(error, "the embedding has 3 rows for 4 tokens of this rank");
}
