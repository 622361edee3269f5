//! Failures of the library and of ranks, and the error texts that users see.

use std::time::{Duration, Instant};

use disco::{Builder, CommunicatorExt as _, Tensor, WorkerContext, block_on};
use disco_conformance::waiting::wait_until;

use crate::alone::{connected, session, sum, synchronize, text, works_again};
use crate::costs::{counts, end};
use crate::on_the_double;
use crate::p2p::call;

/// A deadline that no working operation reaches.
const UNREACHED_DEADLINE: Duration = Duration::from_secs(30);

/// Enters a barrier on all workers except one.
fn barrier_without(ctx: &mut WorkerContext, worker: u32) -> disco::Result<()> {
    if ctx.worker() == worker.into() { Ok(()) } else { ctx.comm()?.barrier() }
}

/// Enters an all-reduce on all workers except one.
fn all_reduce_without(ctx: &mut WorkerContext, worker: u32) -> disco::Result<()> {
    let tensor = ctx.empty(disco::DType::F32, [4])?;
    if ctx.worker() == worker.into() { Ok(()) } else { ctx.comm()?.all_reduce_in_place(&tensor, disco::Reduction::Sum) }
}

/// Enters an all-reduce; one worker fails instead, after a delay.
fn all_reduce_or_fail(ctx: &mut WorkerContext, worker: u32) -> disco::Result<()> {
    if ctx.worker() == worker.into() {
        // The peers can't say that they are in the collective.
        std::thread::sleep(Duration::from_millis(50));
        return Err(disco::Error::invalid("it can't take part"));
    }
    let tensor = ctx.empty(disco::DType::F32, [4])?;
    ctx.comm()?.all_reduce_in_place(&tensor, disco::Reduction::Sum)
}

/// Copies a result that never completes to the host, and one that does.
fn copy_behind(ctx: &mut WorkerContext) -> disco::Result<()> {
    let tensor = ctx.empty(disco::DType::F32, [2])?;
    let host = Tensor::from_slice(&[7.0f32, 7.0], [2])?;
    ctx.queue().copy_in(&tensor, &host)?;
    host.write(&[8.0f32, 8.0])?;
    ctx.queue().copy_out(&host, &tensor)?;
    ctx.queue().copy_out(&host, &tensor)?;
    synchronize(ctx)?;
    assert_eq!(host.to_vec::<f32>()?, [7.0, 7.0]);
    ctx.comm()?.all_reduce_in_place(&tensor, disco::Reduction::Sum)?;
    ctx.queue().copy_out(&host, &tensor)?;
    synchronize(ctx)
}

/// Another thread aborts the communicator while this one waits; the wait returns once the library has ended the
/// communicator.
fn abort_from_outside(ctx: &mut WorkerContext) -> disco::Result<()> {
    let tensor = ctx.empty(disco::DType::F32, [4])?;
    let mut seen = 0;
    for _ in 0..100 {
        let Some(mut comm) = ctx.comm()?.split(Some(0), 0)? else { panic!() };
        let (aborter, before) = (comm.aborter(), counts().comms);
        comm.all_reduce_in_place(&tensor, disco::Reduction::Sum)?;
        let aborts = std::thread::spawn(move || aborter.abort(&"on purpose".into()));
        let ended = comm.synchronize();
        let after = counts().comms;
        aborts.join().unwrap();
        // Otherwise the abort was too early or too late.
        if matches!(ended, Err(disco::Error::Aborted { .. })) {
            assert_eq!(after, before - 1, "the library has it still");
            seen += 1;
        }
    }
    assert!(seen > 0);
    Ok(())
}

/// Ranks abort one after the other. The first drops its tensor and allocates another while the last is still in the
/// collective.
fn abort_one_after_the_other(ctx: &mut WorkerContext) -> disco::Result<()> {
    let Some(mut comm) = ctx.comm()?.split(Some(0), 0)? else { panic!() };
    let (rank, aborter) = (comm.rank().index(), comm.aborter());
    let zeros = ctx.empty(disco::DType::F32, [1000])?;
    comm.all_reduce_in_place(&zeros, disco::Reduction::Sum)?;
    comm.synchronize()?;
    if rank != 1 {
        comm.all_reduce_in_place(&zeros, disco::Reduction::Sum)?;
    }
    // In the order of ranks. No rank waits for another, because a rank that has aborted may wait for the others' aborts.
    std::thread::sleep(Duration::from_millis(50 + 100 * rank as u64));
    aborter.abort(&"on purpose".into());
    drop(zeros);
    let sevens = Tensor::from_slice(&[7.0f32; 1000], [1000])?;
    let (tensor, found) = (ctx.empty(disco::DType::F32, [1000])?, Tensor::from_slice(&[0.0f32; 1000], [1000])?);
    ctx.queue().copy_in(&tensor, &sevens)?;
    // By now the last rank has aborted.
    std::thread::sleep(Duration::from_millis(300));
    ctx.queue().copy_out(&found, &tensor)?;
    synchronize(ctx)?;
    assert_eq!(found.to_vec::<f32>()?, [7.0; 1000]);
    Ok(())
}

disco::register_function!("tests.nccl.abort_one_after_the_other", abort_one_after_the_other);
disco::register_function!("tests.nccl.abort_from_outside", abort_from_outside);
disco::register_function!("tests.nccl.copy_behind", copy_behind);
disco::register_function!("tests.nccl.barrier_without", barrier_without);
disco::register_function!("tests.nccl.all_reduce_without", all_reduce_without);
disco::register_function!("tests.nccl.all_reduce_or_fail", all_reduce_or_fail);

on_the_double!(an_error_leaves_out_the_text_of_an_earlier_call, [], {
    let session = session(1);
    block_on(async { session.init_ccl("nccl", &[]).await.unwrap() });
    let library = disco::nccl::BACKEND.library().unwrap();
    let error = text(library.check("ncclAllReduce", disco::nccl::disco_ccl::abi::Code::INVALID_ARGUMENT));
    assert_eq!(error, "nccl: ncclAllReduce returned 4: invalid argument (run with NCCL_DEBUG=WARN for details)");
});

on_the_double!(
    a_failing_collective_is_reported_with_the_library_s_message,
    ["GPU_DOUBLE_FAULTS" = "ncclAllReduce:1:1=1"],
    {
        let session = connected(2);
        let error = text(block_on(sum(&session)));
        assert!(error.contains("worker 1: disco.all_reduce (command "), "{error}");
        assert!(error.contains("nccl: ncclAllReduce returned 1: unhandled cuda error"), "{error}");
        works_again(&session);
    }
);

on_the_double!(an_asynchronous_error_ends_a_wait, ["GPU_DOUBLE_FAULTS" = "ncclAllReduce:1:1=async:6"], {
    let session = connected(2);
    let error = text(block_on(sum(&session)));
    assert!(error.contains("worker 1: ") && error.contains("ncclCommGetAsyncError returned 6: "), "{error}");
    works_again(&session);
});

on_the_double!(work_that_never_completes_ends_at_the_deadline, ["GPU_DOUBLE_FAULTS" = "ncclAllReduce:1:1=hang"], {
    let session = connected(2);
    let error = text(block_on(sum(&session)));
    assert!(error.contains("no end after 500ms: "), "{error}");
    works_again(&session);
});

on_the_double!(deadlines_of_the_maximum_duration_never_expire, [], {
    let longest = Duration::MAX;
    let session = Builder::threads(2).collective_deadline(longest).connect_deadline(longest).start().unwrap();
    works_again(&session);
    end(&session);
});

on_the_double!(an_abort_by_another_thread_completes_before_the_rank_returns, ["GPU_DOUBLE_DELAY_US" = "2000"], {
    let session = connected(1);
    block_on(call(&session, "tests.nccl.abort_from_outside", ())).unwrap();
});

on_the_double!(memory_is_not_reused_while_peers_may_write_to_it, [], {
    let session = connected(3);
    block_on(call(&session, "tests.nccl.abort_one_after_the_other", ())).unwrap();
    works_again(&session);
});

fn assert_a_missing_rank_is_named() {
    let session = session(3);
    block_on(async {
        for function in ["tests.nccl.barrier_without", "tests.nccl.all_reduce_without"] {
            session.init_ccl("nccl", &[]).await.unwrap();
            session.call(function, (1,)).await.unwrap();
            let error = text(session.sync_all().await);
            assert!(error.contains("no end after 500ms: rank 1 has not arrived"), "{error}");
        }
    });
    works_again(&session);
}

on_the_double!(the_connect_deadline_names_a_missing_rank, ["GPU_DOUBLE_FAULTS" = "ncclCommInitRankConfig:*:1=hang"], {
    let session = session(2);
    let error = text(block_on(session.init_ccl("nccl", &[])));
    let expected =
        "ncclCommInitRankConfig: no end after 500ms: all ranks have arrived, but the library has not connected them";
    assert!(error.contains(expected), "{error}");
    works_again(&session);
});

on_the_double!(
    a_rank_that_fails_to_connect_aborts_the_others,
    ["GPU_DOUBLE_FAULTS" = "ncclCommInitRankConfig:1:1=2"],
    {
        let session = session(3);
        let error = text(block_on(session.init_ccl("nccl", &[])));
        assert!(error.contains("worker 1: ") && error.contains("ncclCommInitRankConfig returned 2: "), "{error}");
        works_again(&session);
    }
);

on_the_double!(a_call_that_does_not_return_ends_at_the_deadline, ["GPU_DOUBLE_FAULTS" = "ncclAllReduce:1:1=block"], {
    let session = connected(2);
    let error = text(block_on(sum(&session)));
    assert!(
        error.contains("all_reduce f32 x 1") && error.contains(": no end after 500ms: all ranks have arrived"),
        "{error}"
    );
    works_again(&session);
    end(&session);
});

on_the_double!(a_call_that_waits_for_peers_ends_when_another_worker_fails, [], {
    let session = Builder::threads(3).collective_deadline(UNREACHED_DEADLINE).start().unwrap();
    block_on(async {
        for of in ["the first launch", "the second"] {
            session.init_ccl("nccl", &[]).await.unwrap();
            if of == "the second" {
                assert_eq!(sum(&session).await.unwrap(), 6.0);
            }
            session.call("tests.nccl.all_reduce_or_fail", (1,)).await.unwrap();
            let (start, error) = (Instant::now(), text(session.sync_all().await));
            assert!(error.contains("worker 1: ") && error.contains("it can't take part"), "{of}: {error}");
            assert!(start.elapsed() < UNREACHED_DEADLINE, "{of}: the deadline ended it");
        }
    });
    works_again(&session);
    end(&session);
});

on_the_double!(
    a_missing_rank_is_named_with_non_blocking_communicators,
    ["GPU_DOUBLE_NCCL_VERSION" = "22105", "GPU_DOUBLE_CONNECT" = "2"],
    { assert_a_missing_rank_is_named() }
);

on_the_double!(a_missing_rank_is_named_if_launches_return_at_once, ["GPU_DOUBLE_NCCL_VERSION" = "22105"], {
    assert_a_missing_rank_is_named()
});

on_the_double!(
    a_library_call_that_never_returns_does_not_block_the_controller,
    ["GPU_DOUBLE_FAULTS" = "ncclAllReduce:1:1=block", "GPU_DOUBLE_NCCL_VERSION" = "22105"],
    {
        use disco::Deadlines;
        let limit = Duration::from_millis(300);
        let deadlines =
            Deadlines::default().with_stall(limit).with_reply(limit).with_collective(limit).with_close(limit);
        let session = disco::Builder::threads(2).deadlines(deadlines).collective_deadline(limit).start().unwrap();
        block_on(session.init_ccl("nccl", &[])).unwrap();
        let error = text(block_on(sum(&session)));
        assert!(error.contains("worker 1") && error.contains("all_reduce"), "{error}");
        let left = text(block_on(session.shutdown()));
        assert!(left.contains("worker 1"), "{left}");
    }
);

on_the_double!(a_program_may_end_with_a_live_communicator, [], {
    let session = session(2);
    works_again(&session);
    std::mem::forget(session);
    println!("the program is over");
    std::process::exit(0);
});

on_the_double!(
    a_communicator_that_can_not_be_destroyed_is_leaked,
    ["GPU_DOUBLE_FAULTS" = "ncclCommFinalize:*:1=hang"],
    {
        let session = session(2);
        works_again(&session);
        block_on(session.shutdown()).unwrap();
    }
);

on_the_double!(
    a_communicator_whose_end_fails_is_logged_with_the_function,
    ["GPU_DOUBLE_FAULTS" = "ncclCommDestroy:*:1=1"],
    {
        let log = tempfile::NamedTempFile::new().unwrap();
        tracing_subscriber::fmt().with_writer(std::sync::Mutex::new(log.reopen().unwrap())).init();
        block_on(connected(2).shutdown()).unwrap();
        wait_until("the failure in the log", || {
            let text = std::fs::read_to_string(log.path()).unwrap();
            text.contains("nccl: ncclCommDestroy returned 1: ")
        });
    }
);

/// A session of two groups, whose communicators are split off the world's.
fn in_groups() -> disco::LaneSession {
    let limit = Duration::from_millis(500);
    disco::Builder::threads(4).groups(2).collective_deadline(limit).connect_deadline(limit).start().unwrap()
}

on_the_double!(a_split_that_fails_on_one_rank_aborts_the_others, ["GPU_DOUBLE_FAULTS" = "ncclCommSplit:1:1=2"], {
    let session = in_groups();
    let error = text(block_on(session.init_ccl("nccl", &[])));
    assert!(error.contains("worker 1: ") && error.contains("ncclCommSplit returned 2: "), "{error}");
    works_again(&session);
});

on_the_double!(a_split_that_never_completes_ends_at_the_deadline, ["GPU_DOUBLE_FAULTS" = "ncclCommSplit:*:1=hang"], {
    assert_init_ccl_fails_with("split: no end after 500ms: ");
});

on_the_double!(
    a_polled_split_that_never_completes_ends_at_the_deadline,
    ["GPU_DOUBLE_FAULTS" = "ncclCommSplit:*:1=hang", "GPU_DOUBLE_NCCL_VERSION" = "22105"],
    { assert_init_ccl_fails_with("split: no end after 500ms: ") }
);

on_the_double!(
    a_connect_that_never_completes_ends_at_the_deadline_with_non_blocking_communicators,
    ["GPU_DOUBLE_FAULTS" = "ncclCommInitRankConfig:*:1=hang", "GPU_DOUBLE_NCCL_VERSION" = "22105"],
    { assert_init_ccl_fails_with("ncclCommInitRankConfig: no end after 500ms: ") }
);

fn assert_init_ccl_fails_with(expected: &str) {
    let session = in_groups();
    let error = text(block_on(session.init_ccl("nccl", &[])));
    assert!(error.contains(expected), "{error}");
    works_again(&session);
}

on_the_double!(
    copies_behind_work_that_never_completes_end_at_the_deadline,
    ["GPU_DOUBLE_FAULTS" = "ncclAllReduce:1:1=hang"],
    {
        let session = connected(2);
        block_on(async {
            session.call("tests.nccl.copy_behind", ()).await.unwrap();
            let error = text(session.sync_all().await);
            assert!(error.contains("synchronize: no end after 500ms: work on cuda:"), "{error}");
        });
        works_again(&session);
    }
);

on_the_double!(
    a_call_of_an_old_library_that_never_returns_stays_on_its_thread,
    [
        "LD_LIBRARY_PATH" = &crate::alone::old(),
        "GPU_DOUBLE_NCCL_VERSION" = "2804",
        "GPU_DOUBLE_FAULTS" = "ncclCommInitRank:1:1=block",
    ],
    {
        let session = session(2);
        let error = text(block_on(session.init_ccl("nccl", &[])));
        let expected = "ncclCommInitRank: no end after 500ms: the call has not returned and stays on its thread, because \
                        2.8.4 can't interrupt it";
        assert!(error.contains(expected), "{error}");
        works_again(&session);
    }
);

mod rccl {
    use super::*;

    on_the_double!(
        ranks_that_are_not_connected_get_an_error,
        ["GPU_DOUBLE_FAULTS" = "ncclCommInitRankConfig:*:1=hang"],
        {
            let session = session(2);
            let error = text(block_on(session.init_ccl("rccl", &[])));
            assert!(error.contains("ncclCommInitRankConfig: no end after 500ms: "), "{error}");
            block_on(async {
                session.init_ccl("rccl", &[]).await.unwrap();
                assert_eq!(sum(&session).await.unwrap(), 3.0);
            });
        }
    );
}
