//! Sums by kernels over memory that ranks share. The double loads the machine code of the real NVRTC, but runs the
//! kernels' work on the host.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use disco::{CommunicatorExt as _, DType, LaneSession, Op, Reduction, Tensor, WorkerContext, block_on};
use half::{bf16, f16};

use crate::alone::{nvrtc, nvrtc_13, nvrtc_of_the_double, synchronize, text, works_again};
use crate::costs::counts;
use crate::p2p::{call, patient, reason, sharing};
use crate::{on_the_double, with_kernels};

/// The input of a rank: whole numbers that each dtype here sums exactly.
pub(crate) fn number(rank: usize, at: usize, seed: usize) -> f32 {
    ((rank * 7 + at * 3 + seed) % 13) as f32 - 6.0
}

pub(crate) fn encode(dtype: DType, numbers: &[f32]) -> Tensor {
    let shape = [numbers.len() as i64];
    match dtype {
        DType::F16 => Tensor::from_slice(&numbers.iter().map(|&n| f16::from_f32(n)).collect::<Vec<_>>(), shape),
        DType::BF16 => Tensor::from_slice(&numbers.iter().map(|&n| bf16::from_f32(n)).collect::<Vec<_>>(), shape),
        _ => Tensor::from_slice(numbers, shape),
    }
    .unwrap()
}

pub(crate) fn decode(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype() {
        DType::F16 => tensor.to_vec::<f16>().unwrap().into_iter().map(f16::to_f32).collect(),
        DType::BF16 => tensor.to_vec::<bf16>().unwrap().into_iter().map(bf16::to_f32).collect(),
        _ => tensor.to_vec().unwrap(),
    }
}

/// Sums `len` elements from element `offset` on, in place or not, and compares with loops over `f64`.
fn check_sum(ctx: &mut WorkerContext, dtype: DType, len: usize, offset: usize, in_place: bool) -> disco::Result<()> {
    let (ranks, own, seed) = (ctx.world().size(), ctx.worker().index(), len);
    let mine: Vec<f32> = (0..len).map(|at| number(own, at, seed)).collect();
    let window = |ctx: &mut WorkerContext| ctx.empty(dtype, [(offset + len) as i64])?.window(offset, [len as i64]);
    let (src, dst) = (window(ctx)?, window(ctx)?);
    let from = if in_place { &dst } else { &src };
    ctx.queue().copy_in(from, &encode(dtype, &mine))?;
    let comm = ctx.comm()?;
    if in_place {
        comm.all_reduce_in_place(&dst, Reduction::Sum)?
    } else {
        comm.all_reduce(&src, &dst, Reduction::Sum)?
    }
    let host = Tensor::zeros(dtype, [len as i64])?;
    ctx.queue().copy_out(&host, &dst)?;
    ctx.comm()?.synchronize()?;
    synchronize(ctx)?;
    let expected: Vec<f32> =
        (0..len).map(|at| (0..ranks).map(|rank| f64::from(number(rank, at, seed))).sum::<f64>() as f32).collect();
    assert_eq!(decode(&host), expected, "{dtype} x {len} from {offset} on worker {own}");
    Ok(())
}

pub(crate) const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Sums of each dtype; `vectors` lists sizes in vectors of 16 bytes.
fn sums(ctx: &mut WorkerContext, vectors: String) -> disco::Result<()> {
    for dtype in DTYPES {
        for (index, vectors) in vectors.split(' ').enumerate() {
            let bytes = 16 * vectors.parse::<usize>().unwrap();
            check_sum(ctx, dtype, bytes / dtype.size(), 0, index % 2 == 0)?;
        }
    }
    Ok(())
}

/// No rank leaves a barrier before all ranks have entered it.
fn barriers(ctx: &mut WorkerContext) -> disco::Result<()> {
    static ENTERED: AtomicUsize = AtomicUsize::new(0);
    for round in 1..=20 {
        ENTERED.fetch_add(1, Ordering::SeqCst);
        ctx.comm()?.barrier()?;
        assert!(ENTERED.load(Ordering::SeqCst) >= round * ctx.world().size());
        ctx.comm()?.barrier()?;
    }
    Ok(())
}

/// Tensors start at a different offset on each rank.
fn anywhere(ctx: &mut WorkerContext) -> disco::Result<()> {
    let own = ctx.worker().index();
    for in_place in [false, true] {
        check_sum(ctx, DType::F32, 256, own, in_place)?;
        check_sum(ctx, DType::BF16, 512, 3 * own, in_place)?;
    }
    Ok(())
}

/// Operations without a kernel, which NCCL runs.
fn others(ctx: &mut WorkerContext) -> disco::Result<()> {
    let (short, odd) = (ctx.empty(DType::F32, [4])?, ctx.empty(DType::F32, [5])?);
    let another = ctx.empty(DType::F32, [4])?;
    let (whole, large) = (ctx.empty(DType::I32, [4])?, ctx.empty(DType::F32, [2048])?);
    let all = |dst: &Tensor, reduction| Op::AllReduce { src: None, dst: dst.clone(), reduction };
    let comm = ctx.comm()?;
    comm.enqueue(&[all(&short, Reduction::Max)])?;
    comm.enqueue(&[all(&odd, Reduction::Sum)])?;
    comm.enqueue(&[all(&whole, Reduction::Sum)])?;
    comm.enqueue(&[all(&large, Reduction::Sum)])?;
    comm.enqueue(&[Op::Broadcast { src: None, dst: short.clone(), root: 0.into() }])?;
    // The group is one group of the library.
    comm.enqueue(&[all(&short, Reduction::Sum), all(&another, Reduction::Sum)])?;
    comm.synchronize()
}

/// Runs a sum that worker 1 skips.
fn skip(ctx: &mut WorkerContext) -> disco::Result<()> {
    let tensor = ctx.empty(DType::F32, [64])?;
    match ctx.worker().index() {
        1 => Ok(()),
        _ => {
            let comm = ctx.comm()?;
            comm.all_reduce_in_place(&tensor, Reduction::Sum)?;
            comm.synchronize()
        }
    }
}

/// Runs a sum that worker 1 skips, and copies its result on the others.
fn copy_what_failed(ctx: &mut WorkerContext) -> disco::Result<()> {
    if ctx.worker().index() == 1 {
        return Ok(());
    }
    let (tensor, host) = (ctx.empty(DType::F32, [64])?, Tensor::zeros(DType::F32, [64])?);
    ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Sum)?;
    ctx.queue().copy_out(&host, &tensor)?;
    ctx.queue().synchronize(Duration::from_secs(20))
}

/// Kernels do not write to the user's other memory.
fn leave_alone(ctx: &mut WorkerContext) -> disco::Result<()> {
    let shared = disco::nccl::extension(ctx.comm()?)?.p2p_fast_path()?.workspace()?.clone();
    let mine: Vec<f32> = (0..shared.bytes() / 4).map(|at| at as f32).collect();
    let buffer = shared.p2p_buffer(shared.rank(), 0, [mine.len() as i64], DType::F32)?;
    ctx.queue().copy_in(&buffer, &encode(DType::F32, &mine))?;
    for _ in 0..2 {
        check_sum(ctx, DType::F32, 256, 0, true)?;
        check_sum(ctx, DType::F32, shared.bytes() / 4, 0, true)?;
    }
    let host = Tensor::zeros(DType::F32, [mine.len() as i64])?;
    ctx.queue().copy_out(&host, &buffer)?;
    ctx.queue().synchronize(Duration::from_secs(20))?;
    assert_eq!(decode(&host), mine);
    Ok(())
}

/// Runs a sum; worker 1 panics instead.
fn panics(ctx: &mut WorkerContext) -> disco::Result<()> {
    assert!(ctx.worker().index() != 1, "worker 1 has had enough");
    skip(ctx)
}

disco::register_function!("tests.kernels.barriers", barriers);
disco::register_function!("tests.kernels.sums", sums);
disco::register_function!("tests.kernels.anywhere", anywhere);
disco::register_function!("tests.kernels.others", others);
disco::register_function!("tests.kernels.skip", skip);
disco::register_function!("tests.kernels.panics", panics);
disco::register_function!("tests.kernels.copy_what_failed", copy_what_failed);
disco::register_function!("tests.kernels.leave_alone", leave_alone);

/// NVRTC, or `None` if it was not fetched.
macro_rules! with_nvrtc {
    () => {
        if !crate::alone::has_nvrtc() {
            return;
        }
    };
}

/// Number of NCCL calls that a function makes on all workers.
fn calls(session: &LaneSession, name: &str, args: impl disco::IntoArgs) -> u64 {
    let before = counts().calls;
    block_on(call(session, name, args)).unwrap();
    counts().calls - before
}

/// Sizes around those of slices, lines, warps and blocks; beyond 64 vectors by two-shot.
pub(crate) const SIZES: &str = "1 2 3 7 8 9 31 32 33 63 64 65 72 127 129 160 511 512 513 1000";

on_the_double!(
    kernels_sum_where_devices_are_connected,
    [
        "GPU_DOUBLE_DEVICES" = "8",
        "GPU_DOUBLE_NVLINK" = "h100",
        "DISCO_P2P_ONE_SHOT" = "1024",
        "DISCO_NVRTC_LIBRARY" = &nvrtc()
    ],
    {
        with_nvrtc!();
        for workers in [2, 3, 5, 8] {
            let session = sharing(workers);
            assert_eq!(reason(&session), "kernels are launched");
            assert_eq!(calls(&session, "tests.kernels.sums", (SIZES,)), 0, "{workers} workers");
        }
    }
);

on_the_double!(
    nvrtc_13_compiles_kernels_with_the_driver_it_opens,
    ["DISCO_P2P_TOPOLOGY" = "fully_connected", "DISCO_NVRTC_LIBRARY" = &nvrtc_13()],
    {
        with_nvrtc!();
        let session = sharing(2);
        assert_eq!(reason(&session), "kernels are launched");
        assert_eq!(calls(&session, "tests.kernels.sums", (SIZES,)), 0);
    }
);

on_the_double!(
    kernels_sum_over_relays_in_a_hybrid_cube_mesh,
    ["GPU_DOUBLE_DEVICES" = "8", "GPU_DOUBLE_NVLINK" = "dgx1", "DISCO_NVRTC_LIBRARY" = &nvrtc()],
    {
        with_nvrtc!();
        let session = sharing(8);
        assert_eq!(calls(&session, "tests.kernels.sums", (SIZES,)), 0);
    }
);

on_the_double!(
    devices_in_another_order_have_other_relays,
    ["GPU_DOUBLE_DEVICES" = "8", "GPU_DOUBLE_NVLINK" = "dgx1", "DISCO_NVRTC_LIBRARY" = &nvrtc_of_the_double()],
    {
        with_nvrtc!();
        let session = patient(8);
        block_on(session.init_ccl("cuda_p2p", &[0, 4, 1, 5, 2, 6, 3, 7])).unwrap();
        assert_eq!(calls(&session, "tests.kernels.sums", (SIZES,)), 0);
    }
);

with_kernels!(kernels_take_tensors_at_any_offset_and_run_barriers, [], {
    let session = sharing(3);
    assert_eq!(calls(&session, "tests.kernels.anywhere", ()), 0);
    assert_eq!(calls(&session, "tests.kernels.barriers", ()), 0);
});

with_kernels!(
    kernels_do_not_touch_other_memory_of_the_user,
    ["DISCO_P2P_BUFFER" = "16400", "DISCO_P2P_ONE_SHOT" = "1024"],
    {
        assert_eq!(calls(&sharing(3), "tests.kernels.leave_alone", ()), 0);
    }
);

with_kernels!(nccl_runs_operations_without_a_kernel, ["DISCO_P2P_BUFFER" = "4096"], {
    assert_eq!(calls(&sharing(2), "tests.kernels.others", ()), 2 * 7);
});

with_kernels!(the_deadline_names_a_rank_that_skips_a_sum, [], {
    let session = sharing(3);
    let error = text(block_on(call(&session, "tests.kernels.skip", ())));
    // The kernel's report or the attendance check names the rank, whichever is first.
    let expected = "no end after 500ms: rank 1 has not arrived";
    assert!(error.contains(expected) && error.contains("all_reduce"), "{error}");
    for _ in 0..2 {
        block_on(session.recover()).unwrap();
        block_on(session.init_ccl("cuda_p2p", &[])).unwrap();
        assert_eq!(calls(&session, "tests.kernels.sums", ("8 64",)), 0);
        // A wait for the stream returns the error, too.
        let error = text(block_on(call(&session, "tests.kernels.copy_what_failed", ())));
        assert!(error.contains("rank 1 has not arrived at the leading handshake"), "{error}");
    }
});

with_kernels!(a_panic_on_one_worker_aborts_the_sums_of_others, [], {
    let session = disco::Builder::threads(3).collective_deadline(Duration::from_secs(30)).start().unwrap();
    block_on(session.init_ccl("cuda_p2p", &[])).unwrap();
    let start = Instant::now();
    let error = text(block_on(call(&session, "tests.kernels.panics", ())));
    assert!(error.contains("worker 1 has had enough"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "the others wait for their deadline");
    works_again(&session);
});

with_kernels!(kernels_free_all_device_resources, [], {
    for _ in 0..3 {
        let session = sharing(3);
        block_on(async {
            call(&session, "tests.kernels.sums", ("8 64",)).await.unwrap();
            call(&session, "tests.p2p.at_the_side", ()).await.unwrap();
            session.shutdown().await.unwrap();
        });
    }
    crate::costs::check_nothing_is_left();
});

on_the_double!(
    without_nvrtc_nccl_runs_sums,
    ["DISCO_P2P_TOPOLOGY" = "fully_connected", "DISCO_NVRTC_LIBRARY" = "/nowhere/libnvrtc.so"],
    {
        let session = sharing(2);
        let why = reason(&session);
        assert!(why.starts_with("rank 0: NVRTC is not available; tried /nowhere/libnvrtc.so: "), "{why}");
        works_again(&session);
    }
);

with_kernels!(
    if_the_driver_rejects_the_machine_code_nccl_runs_sums,
    ["GPU_DOUBLE_FAULTS" = "cuModuleLoadData:1:1=209"],
    {
        let session = sharing(2);
        let why = reason(&session);
        assert!(why.starts_with("rank 1: cuda: cuModuleLoadData returned 209: "), "{why}");
        works_again(&session);
    }
);

with_kernels!(a_launch_that_fails_is_an_error, ["GPU_DOUBLE_FAULTS" = "cuLaunchKernel:1:2=701"], {
    let session = sharing(2);
    let error = text(block_on(call(&session, "tests.kernels.sums", ("8",))));
    assert!(error.contains("cuda: cuLaunchKernel returned 701: "), "{error}");
    works_again(&session);
});
