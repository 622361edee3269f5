//! Waits for flags of peers if streams share hardware queues, and if HIP waits for flags in some kinds of memory only.

use disco::{LaneSession, WorkerContext, block_on};

use crate::alone::{hip_without, sum, text, works_again};
use crate::on_the_double;
use crate::p2p::{amd_devices_share_memory, call, patient, reason, sharing, sharing_by};

/// Asserts that an endless wait on each of two streams is ended at the deadline, and that the streams continue.
fn waits_end_at_the_deadline(session: &LaneSession, backend: &str) {
    for at_the_side in [false, true] {
        let error = text(block_on(call(session, "tests.p2p.wait_for_nothing", (at_the_side,))));
        assert!(error.contains("no end after 500ms: rank 1 has not signalled slot 5"), "{error}");
        block_on(session.recover()).unwrap();
        block_on(session.init_ccl(backend, &[])).unwrap();
        block_on(call(session, "tests.p2p.around", (3,))).unwrap();
    }
}

on_the_double!(a_wait_ends_where_all_ordinary_streams_share_its_queue, ["CUDA_DEVICE_MAX_CONNECTIONS" = "1"], {
    let session = sharing(2);
    waits_end_at_the_deadline(&session, "cuda_p2p");
});

on_the_double!(a_wait_on_an_amd_device_ends_where_all_ordinary_streams_share_its_queue, ["GPU_MAX_HW_QUEUES" = "1"], {
    let session = sharing_by("rocm_p2p", 2);
    waits_end_at_the_deadline(&session, "rocm_p2p");
});

/// Creates streams and leaks them.
fn make_streams(ctx: &mut WorkerContext, count: i64) -> disco::Result<()> {
    let stream = disco::nccl::cuda::stream(ctx.queue())?;
    (0..count).for_each(|_| std::mem::forget(stream.context().new_stream().unwrap()));
    Ok(())
}

disco::register_function!("tests.waits.make_streams", make_streams);

on_the_double!(
    a_wait_is_ended_by_another_stream_if_the_first_shares_its_hardware_queue,
    ["GPU_DOUBLE_PRIORITIES" = "0", "CUDA_DEVICE_MAX_CONNECTIONS" = "3"],
    {
        let session = patient(2);
        block_on(session.init_ccl("nccl", &[])).unwrap();
        // Of three queues, the worker's stream has the first, and so does the fourth stream, which is made for ends of
        // waits. The fifth is the stream at the side, and the sixth has the last queue.
        block_on(call(&session, "tests.waits.make_streams", (2,))).unwrap();
        block_on(session.init_ccl("cuda_p2p", &[])).unwrap();
        let error = text(block_on(call(&session, "tests.p2p.wait_for_nothing", (false,))));
        assert!(error.contains("no end after 500ms: rank 1 has not signalled slot 5"), "{error}");
        works_again(&session);
    }
);

on_the_double!(
    if_no_stream_can_end_a_wait_nccl_runs_all_operations,
    ["GPU_DOUBLE_PRIORITIES" = "0", "CUDA_DEVICE_MAX_CONNECTIONS" = "1"],
    {
        let session = sharing(2);
        assert_eq!(
            reason(&session),
            "rank 0: a stream that waits for a signal word blocks 3 streams of the highest priority, which should write \
             the word; more hardware queues may help: set CUDA_DEVICE_MAX_CONNECTIONS=32, or GPU_MAX_HW_QUEUES=32 for HIP"
        );
        // A peer has ended the waits.
        works_again(&session);
    }
);

on_the_double!(flags_are_in_signal_memory_if_hip_waits_only_there, ["GPU_STREAMOPS_CP_WAIT" = "1"], {
    let session = amd_devices_share_memory();
    waits_end_at_the_deadline(&session, "rocm_p2p");
    drop(session);
    crate::costs::check_nothing_is_left_of("libamdhip64.so.6");
});

on_the_double!(
    if_hip_can_not_wait_for_flags_rccl_runs_all_operations,
    ["GPU_STREAMOPS_CP_WAIT" = "1", "LD_LIBRARY_PATH" = &hip_without("hipExtMallocWithFlags")],
    {
        let session = sharing_by("rocm_p2p", 2);
        let why = "rank 0: streams can't wait for signal words in shared memory: hip: hipStreamWaitValue32 returned 1: \
                   invalid argument";
        assert_eq!(reason(&session), format!("{why}; HIP lacks hipExtMallocWithFlags"));
        assert_eq!(block_on(sum(&session)).unwrap(), 3.0);
    }
);

on_the_double!(
    if_peers_do_not_see_writes_to_the_memory_rccl_runs_all_operations,
    ["LD_LIBRARY_PATH" = &hip_without("hipExtMallocWithFlags")],
    {
        let session = sharing_by("rocm_p2p", 2);
        assert_eq!(reason(&session), "rank 0: hip: hipStreamWriteValue32 returned 1: invalid argument");
        assert_eq!(block_on(sum(&session)).unwrap(), 3.0);
    }
);
