//! The collectives, compared with candle's own operations on all ranks' tensors.

use candle_core::{DType, Device, Tensor, Var};
use disco_core::Reduction;

use super::{assert_close, elements, on_ranks, random};

const SIZES: [usize; 3] = [1, 2, 3];

/// Uneven extents of the ranks.
fn uneven(size: usize) -> Vec<usize> {
    (0..size).map(|rank| 2 * rank).collect()
}

fn of_rank(rank: usize, dims: &[usize]) -> Tensor {
    random(rank as u64 + 1, dims)
}

#[test]
fn all_reduce_returns_the_sum_and_in_place_keeps_the_memory() {
    for size in SIZES {
        let expected = (1..size).fold(of_rank(0, &[4, 5]), |sum, rank| (sum + of_rank(rank, &[4, 5])).unwrap());
        for (sum, in_place, same_memory) in on_ranks(size, |comm| {
            let x = of_rank(comm.rank(), &[4, 5]);
            let sum = comm.all_reduce(&x, Reduction::Sum)?;
            let address = |x: &Tensor| match &*x.storage_and_layout().0 {
                candle_core::Storage::Cpu(storage) => storage.as_slice::<f32>().unwrap().as_ptr().addr(),
                _ => 0,
            };
            let before = address(&x);
            comm.all_reduce_in_place(&x, Reduction::Sum)?;
            Ok((sum, x.clone(), before == address(&x)))
        }) {
            assert!(same_memory);
            assert_close(&sum, &expected, 1e-6);
            assert_close(&in_place, &expected, 1e-6);
        }
    }
}

#[test]
fn in_place_collectives_change_only_the_elements_of_their_tensor() {
    on_ranks(2, |comm| {
        let ones = Tensor::ones((4, 3), DType::F64, &Device::Cpu)?;
        comm.all_reduce_in_place(&ones.narrow(0, 1, 2)?, Reduction::Sum)?;
        assert_eq!(elements(&ones), [1., 1., 1., 2., 2., 2., 2., 2., 2., 1., 1., 1.]);
        let columns = ones.narrow(1, 0, 2)?;
        let error = comm.all_reduce_in_place(&columns, Reduction::Sum).unwrap_err().to_string();
        assert_eq!(error, "all_reduce: the tensor is not contiguous; call `contiguous` first");
        Ok(())
    });
}

#[test]
fn all_in_place_forms_use_the_offsets_of_mpi() {
    for size in SIZES {
        let whole = |rank| of_rank(rank, &[2 * size, 3]);
        on_ranks(size, |comm| {
            let rank = comm.rank();
            let x = whole(rank);
            comm.all_gather_in_place(&x)?;
            let blocks: Vec<_> = (0..size).map(|r| whole(r).narrow(0, 2 * r, 2).unwrap()).collect();
            assert_close(&x, &Tensor::cat(&blocks, 0)?, 0.0);

            let x = whole(rank);
            comm.reduce_scatter_in_place(&x)?;
            let own = |r: usize| whole(r).narrow(0, 2 * rank, 2).unwrap();
            let expected = (1..size).fold(own(0), |sum, r| (sum + own(r)).unwrap());
            assert_close(&x.narrow(0, 0, 2)?, &expected, 1e-6);

            let x = whole(rank);
            comm.all_to_all_in_place(&x)?;
            assert_close(&x, &Tensor::cat(&(0..size).map(own).collect::<Vec<_>>(), 0)?, 0.0);

            let x = whole(rank);
            comm.broadcast_in_place(&x, size - 1)?;
            assert_close(&x, &whole(size - 1), 0.0);
            assert_close(&comm.broadcast(&whole(rank), 0)?, &whole(0), 0.0);
            Ok(())
        });
    }
}

#[test]
fn parts_along_any_dimension_are_gathered_and_scattered() {
    for size in SIZES {
        for dim in 0..3 {
            let dims = |extent| {
                let mut dims = vec![2, 3, 2];
                dims[dim] = extent;
                dims
            };
            on_ranks(size, |comm| {
                let rank = comm.rank();
                let extents = uneven(size);
                let part = |r: usize| of_rank(r, &dims(extents[r]));
                let parts: Vec<_> = (0..size).map(part).collect();
                let whole = Tensor::cat(&parts, dim)?;
                assert_close(&comm.all_gather_uneven(&parts[rank], dim, &extents)?, &whole, 0.0);
                assert_close(&comm.scatter_to_ranks(&whole, dim, &extents)?, &parts[rank], 0.0);

                let even: Vec<_> = (0..size).map(|r| of_rank(r, &dims(2))).collect();
                assert_close(&comm.all_gather(&even[rank], dim)?, &Tensor::cat(&even, dim)?, 0.0);

                let all: Vec<_> = (0..size).map(|r| of_rank(r, &dims(2 * size))).collect();
                let own = |x: &Tensor| x.narrow(dim, 2 * rank, 2).unwrap();
                let expected = all[1..].iter().fold(own(&all[0]), |sum, x| (sum + own(x)).unwrap());
                assert_close(&comm.reduce_scatter(&all[rank], dim)?, &expected, 1e-6);
                let expected = Tensor::cat(&all.iter().map(own).collect::<Vec<_>>(), dim)?;
                assert_close(&comm.all_to_all(&all[rank], dim)?, &expected, 0.0);
                Ok(())
            });
        }
    }
}

#[test]
fn sixteen_bit_floats_and_integers_are_summed() {
    on_ranks(3, |comm| {
        for dtype in [DType::BF16, DType::F16, DType::F64, DType::U32, DType::I64, DType::U8] {
            let x = Tensor::new(&[1f32, 2.0, 4.0], &Device::Cpu)?.to_dtype(dtype)?;
            assert_eq!(elements(&comm.all_reduce(&x, Reduction::Sum)?), [3.0, 6.0, 12.0], "{dtype:?}");
        }
        Ok(())
    });
}

/// The gradient of the sum over all ranks of `f(rank, inputs)`, as each rank finds it for its own input, and as central
/// differences of the whole function do.
fn assert_exact_gradient(
    size: usize,
    dims: &[usize],
    f: fn(&disco_candle::Comm, &Tensor) -> candle_core::Result<Tensor>,
) {
    const STEP: f32 = 1e-2;
    let loss = |changed: usize, change: &Tensor| -> f32 {
        let losses = on_ranks(size, |comm| {
            let mut x = of_rank(comm.rank(), dims);
            if comm.rank() == changed {
                x = (x + change)?;
            }
            weighted(comm.rank(), &f(comm, &x)?)?.to_scalar::<f32>()
        });
        losses.iter().sum()
    };
    let gradients = on_ranks(size, |comm| {
        let x = Var::from_tensor(&of_rank(comm.rank(), dims))?;
        let gradients = weighted(comm.rank(), &f(comm, &x)?)?.backward()?;
        Ok(gradients.get(&x).unwrap().clone())
    });
    for (rank, gradient) in gradients.iter().enumerate() {
        for (index, found) in elements(gradient).into_iter().enumerate() {
            let mut change = vec![0f32; dims.iter().product()];
            change[index] = STEP;
            let change = Tensor::from_vec(change, dims, &Device::Cpu).unwrap();
            let expected = (loss(rank, &change) - loss(rank, &change.neg().unwrap())) / (2.0 * STEP);
            assert!((found - expected).abs() < 2e-3, "rank {rank} element {index}: {found}, not {expected}");
        }
    }
}

/// A loss that differs between ranks and elements.
fn weighted(rank: usize, y: &Tensor) -> candle_core::Result<Tensor> {
    (y * random(100 + rank as u64, y.dims()))?.sum_all()
}

#[test]
fn gradients_of_sums_over_all_ranks_are_exact() {
    assert_exact_gradient(3, &[2, 3], |comm, x| comm.all_reduce(x, Reduction::Sum));
    assert_exact_gradient(2, &[2, 3], |comm, x| comm.all_reduce(&x.sqr()?, Reduction::Avg));
    assert_exact_gradient(2, &[2, 3], |comm, x| comm.all_gather(x, 1));
    assert_exact_gradient(2, &[2, 4], |comm, x| comm.reduce_scatter(x, 1));
    assert_exact_gradient(2, &[2, 4], |comm, x| comm.all_to_all(&x.t()?, 0));
}

#[test]
fn operations_without_a_gradient_say_so() {
    on_ranks(2, |comm| {
        let x = Var::from_tensor(&random(1, &[2]))?;
        let error = comm.all_reduce(&x, Reduction::Max)?.sum_all()?.backward().unwrap_err().to_string();
        assert!(error.contains("all_reduce"), "{error}");
        Ok(())
    });
}

#[test]
fn stats_count_collectives_and_bytes() {
    for stats in on_ranks(2, |comm| {
        comm.all_reduce_in_place(&random(1, &[1]), Reduction::Sum)?;
        assert!(comm.take_stats().unwrap().waiting.is_zero(), "not measured unless requested");
        comm.measure_waits(true).unwrap();
        for _ in 0..3 {
            comm.all_reduce_in_place(&random(1, &[100]), Reduction::Sum)?;
        }
        Ok(comm.take_stats().unwrap())
    }) {
        assert_eq!((stats.collectives, stats.bytes), (3, 1200));
        assert!(!stats.time.is_zero() && !stats.waiting.is_zero());
    }
}
