//! Sums whose inputs are scaled first, by functions that only NCCL and RCCL have.

use disco::{DType, Op, Reduction, Tensor, WorkerContext, block_on};

use crate::alone::{connected, synchronize};
use crate::p2p::call;
use crate::{on_the_double, on_the_double_or_a_gpu};

/// Rank r's input is (1, 2, …) and its factor r + 1.
fn scaled(ctx: &mut WorkerContext) -> disco::Result<()> {
    let size = ctx.world().size();
    let factor = 1.0 + ctx.worker().index() as f64;
    let sum: f64 = (1..=size).map(|factor| factor as f64).sum();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let elements: Vec<f64> = (1..=2 * size).map(|element| element as f64).collect();
        let encode = |value: f64| match dtype {
            DType::F32 => (value as f32).to_le_bytes().to_vec(),
            DType::F64 => value.to_le_bytes().to_vec(),
            DType::F16 => half::f16::from_f64(value).to_le_bytes().to_vec(),
            _ => half::bf16::from_f64(value).to_le_bytes().to_vec(),
        };
        let bytes = |values: &mut dyn Iterator<Item = f64>| values.flat_map(encode).collect::<Vec<u8>>();
        let host = Tensor::zeros(dtype, [2 * size as i64])?;
        host.bytes_mut()?.copy_from_slice(&bytes(&mut elements.iter().copied()));
        let (src, all) = (ctx.empty(dtype, [2 * size as i64])?, ctx.empty(dtype, [2 * size as i64])?);
        let own = ctx.empty(dtype, [2])?;
        ctx.queue().copy_in(&src, &host)?;
        let (me, reduction) = (ctx.worker().index(), Reduction::Sum);
        let mut comm = disco::nccl::extension(ctx.comm()?)?;
        comm.premul_sum(&Op::AllReduce { src: Some(src.clone()), dst: all.clone(), reduction }, factor)?;
        comm.premul_sum(&Op::ReduceScatter { src: Some(src.clone()), dst: own.clone(), reduction }, factor)?;
        let (first, second) = (Tensor::zeros(dtype, [2 * size as i64])?, Tensor::zeros(dtype, [2])?);
        ctx.queue().copy_out(&first, &all)?;
        ctx.queue().copy_out(&second, &own)?;
        synchronize(ctx)?;
        let expected = bytes(&mut elements.iter().map(|element| element * sum));
        assert_eq!(first.bytes()?[..], expected[..], "{dtype}");
        assert_eq!(second.bytes()?[..], expected[2 * me * dtype.size()..][..2 * dtype.size()], "{dtype}");
    }
    let x = ctx.empty(DType::I32, [1])?;
    let refused = |op: &Op, comm: &mut dyn disco::Communicator| {
        disco::nccl::extension(comm).unwrap().premul_sum(op, 2.0).unwrap_err().to_string()
    };
    let comm = ctx.comm()?;
    let op = Op::AllReduce { src: None, dst: x.clone(), reduction: Reduction::Sum };
    assert_eq!(refused(&op, comm), "nccl does not support premul_sum of i32");
    let op = Op::AllReduce { src: None, dst: x, reduction: Reduction::Max };
    assert_eq!(refused(&op, comm), "premul_sum: all_reduce is not a sum");
    comm.synchronize()
}

/// Scales more elements than a block of NCCL's kernel has, on one rank, and compares each of them.
fn scaled_alone(ctx: &mut WorkerContext) -> disco::Result<()> {
    for count in [1, 2053, 2054, 4101, 70_001] {
        let (numbers, elements) = ((0..count).map(f64::from).collect::<Vec<_>>(), i64::from(count));
        let (src, dst) = (ctx.empty(DType::F64, [elements])?, ctx.empty(DType::F64, [elements])?);
        let (host, reduction) = (Tensor::from_slice(&numbers, [elements])?, Reduction::Sum);
        ctx.queue().copy_in(&src, &host)?;
        let scaled =
            |src: Option<&Tensor>, dst: &Tensor| Op::AllReduce { src: src.cloned(), dst: dst.clone(), reduction };
        let ops = [
            scaled(Some(&src), &dst),
            scaled(None, &dst),
            Op::ReduceScatter { src: Some(dst.clone()), dst: src.clone(), reduction },
            Op::Reduce { src: Some(src), dst: Some(dst.clone()), reduction, root: 0.into() },
        ];
        let mut comm = disco::nccl::extension(ctx.comm()?)?;
        ops.iter().try_for_each(|op| comm.premul_sum(op, 3.0))?;
        ctx.queue().copy_out(&host, &dst)?;
        synchronize(ctx)?;
        let expected: Vec<_> = numbers.iter().map(|number| 81.0 * number).collect();
        assert_eq!(host.to_vec::<f64>()?, expected, "{count} elements");
    }
    Ok(())
}

disco::register_function!("tests.nccl.scaled", scaled);
disco::register_function!("tests.nccl.scaled_alone", scaled_alone);

on_the_double!(scaled_sums_multiply_inputs_before_the_sum, [], { assert_scaled_sums_are_right_and_run_by_nccl() });

on_the_double_or_a_gpu!(one_rank_scales_all_elements, [], {
    let session = connected(1);
    block_on(call(&session, "tests.nccl.scaled_alone", ())).unwrap();
});

on_the_double!(scaled_sums_work_with_non_blocking_communicators, ["GPU_DOUBLE_NCCL_VERSION" = "22105"], {
    assert_scaled_sums_are_right_and_run_by_nccl()
});

fn assert_scaled_sums_are_right_and_run_by_nccl() {
    let session = connected(3);
    block_on(async {
        let function = session.function("tests.nccl.scaled").await.unwrap();
        session.call(&function, ()).await.unwrap();
        session.sync_all().await.unwrap();
        session.init_ccl("local", &[]).await.unwrap();
        session.call(&function, ()).await.unwrap();
        let error = crate::alone::text(session.sync_all().await);
        assert!(error.contains("this backend does not support what only NCCL and RCCL have"), "{error}");
    });
}
