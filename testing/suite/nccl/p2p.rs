//! Memory that ranks share: copies and signals by streams, without kernels.

use std::time::Duration;

use disco::nccl::{self, p2p::Workspace};
use disco::{Builder, DRef, DType, IntoArgs, LaneSession, Rank, Scope, Tensor, WorkerContext, block_on};

use crate::alone::{answers, connected, session, sum, synchronize, text, to_host, without, without_nvml, works_again};
use crate::on_the_double;

const LEN: usize = 1000;

/// The memory that this worker's ranks share.
fn workspace(ctx: &mut WorkerContext) -> disco::Result<Workspace> {
    nccl::extension(ctx.comm()?)?.p2p_fast_path()?.workspace().cloned()
}

fn rank(index: usize) -> Rank {
    Rank::new(index as u32)
}

/// A tensor on this worker's device, filled with a number.
fn full(ctx: &mut WorkerContext, number: f32) -> disco::Result<Tensor> {
    let tensor = ctx.empty(DType::F32, [LEN as i64])?;
    ctx.queue().copy_in(&tensor, &Tensor::from_slice(&[number; LEN], [LEN as i64])?)?;
    Ok(tensor)
}

/// Checks that all elements of a tensor equal a number, after synchronizing the stream.
fn check_full(ctx: &mut WorkerContext, tensor: &Tensor, number: f32) -> disco::Result<()> {
    assert_eq!(to_host(ctx, tensor)?.to_vec::<f32>()?, vec![number; tensor.elements()], "{}", ctx.worker());
    Ok(())
}

/// Passes numbers around the ring of ranks: each rank puts its number into the next rank's buffer and signals it; the
/// next rank signals back when it has read it.
fn around(ctx: &mut WorkerContext, rounds: u32) -> disco::Result<()> {
    const OFFSET: usize = 512;
    let (shared, own) = (workspace(ctx)?, ctx.worker().index());
    let (next, previous) = (rank((own + 1) % shared.size()), rank((own + shared.size() - 1) % shared.size()));
    let mine = shared.p2p_buffer(shared.rank(), OFFSET, [LEN as i64], DType::F32)?;
    let mut tensor = full(ctx, own as f32)?;
    for round in 0..rounds {
        if round > 0 {
            shared.main().wait(next, 1)?;
        }
        shared.main().put(&tensor, next, OFFSET)?;
        shared.main().signal(next, 0)?;
        shared.main().wait(previous, 0)?;
        tensor = ctx.empty(DType::F32, [LEN as i64])?;
        ctx.queue().copy_within(&tensor, &mine)?;
        shared.main().signal(previous, 1)?;
    }
    let from = (own + shared.size() - rounds as usize % shared.size()) % shared.size();
    check_full(ctx, &tensor, from as f32)
}

/// Each rank reads all ranks' buffers on the side stream, while the worker's stream runs other work.
fn at_the_side(ctx: &mut WorkerContext) -> disco::Result<()> {
    let (shared, own) = (workspace(ctx)?, ctx.worker().index());
    let tensor = full(ctx, 10.0 + own as f32)?;
    ctx.queue().copy_within(&shared.p2p_buffer(shared.rank(), 0, [LEN as i64], DType::F32)?, &tensor)?;
    shared.main().barrier()?;
    let all: Vec<Tensor> =
        (0..shared.size()).map(|_| ctx.empty(DType::F32, [LEN as i64])).collect::<disco::Result<_>>()?;
    let side = shared.side()?;
    side.after(&shared.main())?;
    for (peer, into) in all.iter().enumerate() {
        side.get(into, rank(peer), 0)?;
    }
    shared.main().after(&side)?;
    for (peer, tensor) in all.iter().enumerate() {
        check_full(ctx, tensor, 10.0 + peer as f32)?;
    }
    // No rank writes its buffer before all ranks have read it.
    shared.main().barrier()?;
    let tensor = full(ctx, 20.0)?;
    ctx.queue().copy_within(&shared.p2p_buffer(shared.rank(), 0, [LEN as i64], DType::F32)?, &tensor)?;
    synchronize(ctx)
}

/// The error texts of invalid copies and signals.
fn refusals(ctx: &mut WorkerContext) -> disco::Result<String> {
    let (shared, tensor) = (workspace(ctx)?, full(ctx, 1.0)?);
    let host = Tensor::zeros(DType::F32, [4])?;
    let last = shared.bytes() - 16;
    let all = [
        shared.main().put(&tensor, rank(2), 0),
        shared.main().put(&tensor, rank(1), last),
        shared.main().get(&tensor, rank(1), usize::MAX),
        shared.main().put(&host, rank(1), 0),
        shared.main().signal(rank(0), 64),
        shared.main().wait(rank(7), 0),
        shared.p2p_buffer(rank(0), 2, [1], DType::F32).map(drop),
        shared.p2p_buffer(rank(0), last, [5], DType::F32).map(drop),
        shared.p2p_buffer(rank(0), last, [4], DType::F32).map(drop),
    ];
    Ok(all.into_iter().map(|result| result.err().map_or("fine".to_owned(), |error| error.to_string()) + "\n").collect())
}

/// Waits for a signal that never arrives, on the worker's stream or on the side stream.
fn wait_for_nothing(ctx: &mut WorkerContext, at_the_side: bool) -> disco::Result<()> {
    let shared = workspace(ctx)?;
    match (ctx.worker().index(), at_the_side) {
        (0, false) => shared.main().wait(rank(1), 5)?,
        (0, true) => shared.side()?.wait(rank(1), 5)?,
        _ => {}
    }
    ctx.comm()?.synchronize()
}

/// Waits for a signal that never arrives, and synchronizes the worker's queue.
fn wait_by_queue(ctx: &mut WorkerContext) -> disco::Result<()> {
    let shared = workspace(ctx)?;
    if ctx.worker().index() == 0 {
        shared.main().wait(rank(1), 6)?;
    }
    synchronize(ctx)
}

/// Both streams signal one slot. A rank that sees the first signal also sees the data put before it.
fn by_both_lanes(ctx: &mut WorkerContext) -> disco::Result<()> {
    let (shared, own) = (workspace(ctx)?, ctx.worker().index());
    let other = rank(1 - own);
    let (first, second) = (full(ctx, 1.0 + own as f32)?, full(ctx, 3.0 + own as f32)?);
    let (bytes, side) = (first.byte_len(), shared.side()?);
    // A slow copy.
    let scratch = full(ctx, 0.0)?;
    side.after(&shared.main())?;
    (0..20).try_for_each(|_| side.get(&scratch, other, 4 * bytes))?;
    side.put(&first, other, 0)?;
    side.signal(other, 2)?;
    shared.main().put(&second, other, bytes)?;
    shared.main().signal(other, 2)?;
    shared.main().wait(other, 2)?;
    let theirs = shared.p2p_buffer(shared.rank(), 0, [LEN as i64], DType::F32)?;
    check_full(ctx, &theirs, 2.0 - own as f32)?;
    shared.main().wait(other, 2)?;
    let theirs = shared.p2p_buffer(shared.rank(), bytes, [LEN as i64], DType::F32)?;
    check_full(ctx, &theirs, 4.0 - own as f32)?;
    shared.main().barrier()?;
    side.after(&shared.main())?;
    ctx.comm()?.synchronize()
}

fn why_not(ctx: &mut WorkerContext) -> disco::Result<String> {
    Ok(nccl::extension(ctx.comm()?)?.p2p_fast_path()?.fallback_reason().unwrap_or("kernels are launched").to_owned())
}

/// Drops the communicators; one worker uses its buffer once more.
fn use_late(ctx: &mut WorkerContext) -> disco::Result<Tensor> {
    let shared = workspace(ctx)?;
    let mine = full(ctx, 5.0)?;
    shared.main().put(&mine, rank(1), 0)?;
    shared.main().barrier()?;
    shared.p2p_buffer(rank(1), 0, [LEN as i64], DType::F32)
}

fn look_late(ctx: &mut WorkerContext, buffer: Tensor) -> disco::Result<()> {
    check_full(ctx, &buffer, 5.0)
}

/// Each group has its own communicators, and so its own shared memory.
fn in_groups(ctx: &mut WorkerContext) -> disco::Result<()> {
    let shared = nccl::extension(ctx.comm_in(&Scope::Group)?)?.p2p_fast_path()?.workspace()?.clone();
    assert_eq!((shared.size(), workspace(ctx)?.size()), (2, 4));
    let (own, other) = (ctx.worker().index() as f32, rank(1 - shared.rank().index()));
    let mine = full(ctx, own)?;
    shared.main().put(&mine, other, 0)?;
    shared.main().barrier()?;
    let group = (ctx.worker().index() / 2 * 2) as f32;
    let buffer = shared.p2p_buffer(shared.rank(), 0, [LEN as i64], DType::F32)?;
    check_full(ctx, &buffer, 2.0 * group + 1.0 - own)
}

disco::register_function!("tests.p2p.in_groups", in_groups);
disco::register_function!("tests.p2p.around", around);
disco::register_function!("tests.p2p.at_the_side", at_the_side);
disco::register_function!("tests.p2p.refusals", refusals);
disco::register_function!("tests.p2p.wait_for_nothing", wait_for_nothing);
disco::register_function!("tests.p2p.wait_by_queue", wait_by_queue);
disco::register_function!("tests.p2p.by_both_lanes", by_both_lanes);
disco::register_function!("tests.p2p.why_not", why_not);
disco::register_function!("tests.p2p.use_late", use_late);
disco::register_function!("tests.p2p.look_late", look_late);

/// A session whose ranks share memory.
pub(crate) fn sharing(workers: usize) -> LaneSession {
    sharing_by("cuda_p2p", workers)
}

/// A session whose ranks share memory by a backend.
pub(crate) fn sharing_by(backend: &str, workers: usize) -> LaneSession {
    let session = patient(workers);
    block_on(session.init_ccl(backend, &[])).unwrap();
    session
}

/// A session with a short collective deadline, and a connect deadline that leaves time for compiling kernels.
pub(crate) fn patient(workers: usize) -> LaneSession {
    let limits = (Duration::from_millis(500), Duration::from_secs(50));
    Builder::threads(workers).collective_deadline(limits.0).connect_deadline(limits.1).start().unwrap()
}

/// Calls a function on all workers and waits for it.
pub(crate) async fn call(session: &LaneSession, name: &str, args: impl IntoArgs) -> disco::Result<DRef> {
    let answer = session.call(name, args).await?;
    session.sync_all().await.map(|()| answer)
}

/// The reason why no kernels are launched.
pub(crate) fn reason(session: &LaneSession) -> String {
    let reasons: Vec<String> = answers(session, "tests.p2p.why_not", ());
    assert!(reasons.iter().all(|reason| *reason == reasons[0]), "{reasons:?}");
    reasons[0].clone()
}

on_the_double!(copies_and_signals_pass_numbers_around_the_ring_of_ranks, ["GPU_DOUBLE_DEVICES" = "8"], {
    for workers in [2, 3, 8] {
        let session = sharing(workers);
        block_on(call(&session, "tests.p2p.around", (2 * workers as i64 + 1,))).unwrap();
    }
});

on_the_double!(copies_on_the_side_stream_are_ordered_with_the_worker_s_stream, ["GPU_DOUBLE_DELAY_US" = "300"], {
    let session = sharing(4);
    for _ in 0..3 {
        block_on(call(&session, "tests.p2p.at_the_side", ())).unwrap();
    }
});

on_the_double!(signals_of_two_streams_to_one_slot_arrive_in_order, ["GPU_DOUBLE_DELAY_US" = "500"], {
    let session = sharing(2);
    for _ in 0..3 {
        block_on(call(&session, "tests.p2p.by_both_lanes", ())).unwrap();
    }
});

on_the_double!(
    if_a_peer_s_write_is_not_visible_nccl_runs_all_operations,
    ["GPU_DOUBLE_FAULTS" = "cuStreamWriteValue32_v2:1:1=801"],
    {
        let session = sharing(2);
        assert_eq!(reason(&session), "rank 0: signal words that the streams of peers write have not arrived");
        assert_eq!(block_on(sum(&session)).unwrap(), 3.0);
    }
);

on_the_double!(
    if_the_host_can_not_end_a_wait_nccl_runs_all_operations,
    ["GPU_DOUBLE_FAULTS" = "cuStreamWriteValue32_v2:1:2=801"],
    {
        let session = sharing(2);
        let why = reason(&session);
        assert!(why.starts_with("rank 1: cuda: cuStreamWriteValue32 returned 801: "), "{why}");
        // The peer has ended the wait: freeing memory waits for the device.
        works_again(&session);
    }
);

on_the_double!(invalid_copies_and_signals_are_rejected, ["DISCO_P2P_BUFFER" = "4096"], {
    let session = sharing(2);
    let texts: Vec<String> = answers(&session, "tests.p2p.refusals", ());
    assert_eq!(
        texts[0].lines().collect::<Vec<_>>(),
        [
            "put: no rank 2 among 2",
            "put: 4000 bytes at offset 4080 exceed the buffer of 4096 bytes",
            "get: 4000 bytes at offset 18446744073709551615 exceed the buffer of 4096 bytes",
            "put: tensor f32[4] on cpu is not contiguous on cuda:0",
            "signal: slot 64 does not exist; the slots are 0 to 63",
            "wait: no rank 7 among 2",
            "p2p_buffer: offset 2 is not a multiple of 4, the size of f32",
            "p2p_buffer: 20 bytes at offset 4080 exceed the buffer of 4096 bytes",
            "fine",
        ]
    );
});

on_the_double!(a_wait_for_a_missing_signal_names_its_rank_and_the_stream_continues, [], {
    let session = sharing(2);
    for at_the_side in [false, true] {
        let error = text(block_on(call(&session, "tests.p2p.wait_for_nothing", (at_the_side,))));
        assert!(error.contains("no end after 500ms: rank 1 has not signalled slot 5"), "{error}");
        block_on(session.recover()).unwrap();
        block_on(session.init_ccl("cuda_p2p", &[])).unwrap();
    }
    let error = text(block_on(call(&session, "tests.p2p.wait_by_queue", ())));
    assert!(error.contains("no end after 500ms: rank 1 has not signalled slot 6"), "{error}");
    // Freeing memory waits for the device, which has no pending wait.
    works_again(&session);
    block_on(session.init_ccl("cuda_p2p", &[])).unwrap();
    block_on(call(&session, "tests.p2p.around", (3,))).unwrap();
});

on_the_double!(buffers_outlive_their_communicators, [], {
    let session = sharing(2);
    block_on(async {
        let buffers = call(&session, "tests.p2p.use_late", ()).await.unwrap();
        session.init_ccl("nccl", &[]).await.unwrap();
        call(&session, "tests.p2p.look_late", (&buffers,)).await.unwrap();
    });
});

on_the_double!(the_backend_nccl_has_no_shared_memory, [], {
    let session = connected(2);
    let error = text(block_on(call(&session, "tests.p2p.around", (3,))));
    assert!(error.contains("this backend has no peer-to-peer memory: cuda_p2p has"), "{error}");
});

on_the_double!(a_buffer_that_is_too_large_makes_nccl_run_all_operations, ["DISCO_P2P_BUFFER" = "2000000000"], {
    let session = sharing(2);
    assert_eq!(reason(&session), "rank 0: no room for 2000000000 bytes on cuda:0");
    assert_eq!(block_on(sum(&session)).unwrap(), 3.0);
    let error = text(block_on(call(&session, "tests.p2p.around", (3,))));
    assert!(error.contains("no peer-to-peer memory: rank 0: no room for 2000000000 bytes on cuda:0"), "{error}");
});

on_the_double!(a_buffer_size_that_is_not_a_number_is_an_error, ["DISCO_P2P_BUFFER" = "much"], {
    let error = text(block_on(session(2).init_ccl("cuda_p2p", &[])));
    assert!(error.contains("DISCO_P2P_BUFFER=much: that is no number of bytes"), "{error}");
});

on_the_double!(a_threshold_that_is_not_a_number_is_an_error, ["DISCO_P2P_ONE_SHOT" = "10M"], {
    let error = text(block_on(session(2).init_ccl("cuda_p2p", &[])));
    assert!(error.contains("DISCO_P2P_ONE_SHOT=10M: that is no number of bytes"), "{error}");
});

on_the_double!(with_nine_ranks_nccl_runs_all_operations, ["GPU_DOUBLE_DEVICES" = "9"], {
    let session = sharing(9);
    assert_eq!(reason(&session), "peer-to-peer memory needs 2 to 8 ranks, and the communicator has 9");
    assert_eq!(block_on(sum(&session)).unwrap(), 45.0);
});

on_the_double!(without_peer_access_nccl_runs_all_operations, ["GPU_DOUBLE_PEER_ACCESS" = "0"], {
    let session = sharing(2);
    assert_eq!(reason(&session), "rank 0: can't open the memory of rank 1: cuda:0 can't access the memory of cuda:1");
    assert_eq!(block_on(sum(&session)).unwrap(), 3.0);
});

on_the_double!(
    without_the_driver_functions_nccl_runs_all_operations,
    ["LD_LIBRARY_PATH" = &without("cuStreamWaitValue32_v2")],
    {
        let session = sharing(2);
        assert_eq!(reason(&session), "rank 0: the CUDA driver lacks cuStreamWaitValue32_v2");
        assert_eq!(block_on(sum(&session)).unwrap(), 3.0);
    }
);

on_the_double!(with_an_unknown_topology_nccl_runs_sums, [], {
    let session = sharing(2);
    let why = "devices 0 and 1 have no link; it is no hybrid cube mesh: there are 2 devices, not 8";
    assert_eq!(reason(&session), format!("rank 0: topology unknown: {why}"));
    assert_eq!(block_on(sum(&session)).unwrap(), 3.0);
    block_on(call(&session, "tests.p2p.around", (3,))).unwrap();
});

on_the_double!(without_nvml_memory_is_shared_and_nccl_runs_sums, ["LD_LIBRARY_PATH" = &without_nvml()], {
    let session = sharing(2);
    let why = reason(&session);
    assert!(why.starts_with("rank 0: topology unknown: the links are not known: NVML is not available; "), "{why}");
    assert_eq!(block_on(sum(&session)).unwrap(), 3.0);
    block_on(call(&session, "tests.p2p.around", (3,))).unwrap();
});

on_the_double!(each_group_has_its_own_shared_memory, [], {
    let session = disco::Builder::threads(4).groups(2).start().unwrap();
    block_on(async {
        session.init_ccl("cuda_p2p", &[]).await.unwrap();
        call(&session, "tests.p2p.in_groups", ()).await.unwrap();
    });
});

/// A session of three AMD devices, whose memory is shared although their links are not known.
pub(crate) fn amd_devices_share_memory() -> LaneSession {
    let session = sharing_by("rocm_p2p", 3);
    let why = "the links are not known: Disco does not query the links between AMD GPUs";
    assert_eq!(reason(&session), format!("rank 0: topology unknown: {why}"));
    block_on(call(&session, "tests.p2p.around", (7,))).unwrap();
    block_on(call(&session, "tests.p2p.at_the_side", ())).unwrap();
    session
}

on_the_double!(amd_devices_share_memory_and_rccl_runs_sums, ["GPU_DOUBLE_DELAY_US" = "100"], {
    let session = amd_devices_share_memory();
    assert_eq!(block_on(sum(&session)).unwrap(), 6.0);
    let error = text(block_on(call(&session, "tests.p2p.wait_for_nothing", (false,))));
    assert!(error.contains("no end after 500ms: rank 1 has not signalled slot 5"), "{error}");
});
