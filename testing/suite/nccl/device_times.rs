//! Times of operations on the device in timelines, by the clock of the double, which is the host's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use disco::activity::{Record, RecordKind, Recording};
use disco::{Builder, CommunicatorExt as _, DType, LaneSession, OpKind, Reduction, WorkerContext, block_on};
use disco_conformance::waiting::wait_until;

use crate::alone::{hip_without, without};
use crate::costs::becomes;
use crate::on_the_double;

/// The timelines of two workers after `run`. Both libraries' doubles delay each piece of work, if the test asks for it.
fn recordings(run: impl AsyncFnOnce(&LaneSession)) -> Vec<Recording> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let sink = kept.clone();
    let limit = Duration::from_secs(20);
    let builder = Builder::threads(2).collective_deadline(limit).timeline(1 << 14, move |timeline| {
        sink.lock().unwrap().extend(timeline.workers.into_iter().map(|(_, recording)| recording.unwrap()));
    });
    let session = builder.start().unwrap();
    block_on(async {
        run(&session).await;
        session.shutdown().await.unwrap();
    });
    let recordings = std::mem::take(&mut *kept.lock().unwrap());
    assert_eq!(recordings.len(), 2);
    recordings
}

async fn call(session: &LaneSession, name: &str, count: i64) {
    session.call(name, (count,)).await.unwrap();
    session.sync_all().await.unwrap();
}

fn of_kind(recording: &Recording, is: impl Fn(RecordKind) -> bool) -> Vec<&Record> {
    recording.records.iter().filter(|record| is(record.kind)).collect()
}

/// The sums of a recording: the calls, and their times on the device.
fn sums(recording: &Recording) -> [Vec<&Record>; 2] {
    [RecordKind::Op(OpKind::AllReduce), RecordKind::Device(OpKind::AllReduce)]
        .map(|wanted| of_kind(recording, |kind| kind == wanted))
}

fn notes(recording: &Recording) -> Vec<&str> {
    let notes = of_kind(recording, |kind| kind == RecordKind::Note);
    notes.iter().filter_map(|note| note.name.as_deref()).collect()
}

/// Number of events of the double in the shared object `name` that are not destroyed.
fn events_of(name: &str) -> u64 {
    #![allow(unsafe_code, reason = "a function of the test double")]
    let library = disco_dl::Library::open(&disco_dl::Candidate::file(name)).unwrap();
    // SAFETY: this is the signature of the function.
    let live: extern "C" fn() -> u64 = unsafe { library.function(c"gpu_double_events") }.unwrap();
    live()
}

/// Sums with a tensor of its own each, and a group of two sums at the end.
fn several_sums(ctx: &mut WorkerContext, count: i64) -> disco::Result<()> {
    let tensor = ctx.empty(DType::F32, [256])?;
    for _ in 0..count {
        ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Sum)?;
    }
    let other = ctx.empty(DType::F32, [8])?;
    let of = |dst: &disco::Tensor| disco::Op::AllReduce { src: None, dst: dst.clone(), reduction: Reduction::Max };
    ctx.comm()?.enqueue(&[of(&tensor), of(&other)])
}

/// Whether worker 0 has launched all its sums.
static IS_AHEAD: AtomicBool = AtomicBool::new(false);

/// Worker 0 launches all sums before worker 1 launches the first one.
fn sums_ahead(ctx: &mut WorkerContext, count: i64) -> disco::Result<()> {
    if ctx.worker().index() == 1 {
        wait_until("the sums of worker 0", || IS_AHEAD.load(Ordering::Acquire));
    }
    let tensor = ctx.empty(DType::F32, [1])?;
    for _ in 0..count {
        ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Max)?;
    }
    IS_AHEAD.store(true, Ordering::Release);
    Ok(())
}

disco::register_function!("tests.device_times.several_sums", several_sums);
disco::register_function!("tests.device_times.sums_ahead", sums_ahead);

/// Each piece of work takes at least this time, so a sum between two events takes twice of it.
const DELAY: u64 = 200_000;

fn each_sum_has_one_time_on_the_device(backend: &str) {
    let recordings = recordings(async |session| {
        session.init_ccl(backend, &[]).await.unwrap();
        for _ in 0..3 {
            call(session, "tests.device_times.several_sums", 10).await;
        }
    });
    for recording in &recordings {
        let [calls, times] = sums(recording);
        // Groups have one time, with the arguments of their first operation.
        let behind = |op: &Record| op.op.as_ref().map(|op| op.behind);
        let firsts: Vec<&&Record> = calls.iter().filter(|call| behind(call) == Some(0)).collect();
        assert_eq!((calls.len(), firsts.len(), times.len()), (3 * 12, 3 * 11, 3 * 11));
        let syncs = of_kind(recording, |kind| kind == RecordKind::Command);
        let syncs: Vec<_> = syncs.into_iter().filter(|command| command.name.as_deref() == Some("sync_all")).collect();
        for (call, time) in firsts.into_iter().zip(&times) {
            assert_eq!((&time.op, time.command), (&call.op, call.command));
            // Possible: after the call began, and before the end of the wait that follows it.
            let (start, end, error) = (time.start, time.end.unwrap(), time.clock_error);
            let sync = syncs.iter().find(|sync| sync.command > call.command).unwrap();
            assert!(start + error >= call.start && end <= sync.end.unwrap() + error, "{call:?} {time:?} {sync:?}");
            assert!(end - start >= 2 * DELAY, "{time:?}");
            assert!(error > 0, "{time:?}");
        }
        // One stream runs one operation after the other, so their places do not contradict that by more than the errors.
        for pair in times.windows(2) {
            let [first, second] = pair else { unreachable!() };
            assert!(first.end.unwrap() <= second.start + first.clock_error + second.clock_error, "{pair:?}");
        }
        assert_eq!(notes(recording), [""; 0]);
    }
}

on_the_double!(each_sum_of_nccl_has_one_time_on_the_device_of_each_rank, ["GPU_DOUBLE_DELAY_US" = "200"], {
    each_sum_has_one_time_on_the_device("nccl");
});

on_the_double!(each_sum_of_rccl_has_one_time_on_the_device_of_each_rank, ["GPU_DOUBLE_DELAY_US" = "200"], {
    each_sum_has_one_time_on_the_device("rccl");
});

on_the_double!(operations_of_a_graph_have_no_times_and_the_graph_works, [], {
    let recordings = recordings(async |session| {
        session.init_ccl("nccl", &[]).await.unwrap();
        // Checks the results of graphs, with sums outside of them in between.
        call(session, "tests.device_times.graphs", 0).await;
    });
    for recording in &recordings {
        let [calls, times] = sums(recording);
        // Three captured ones, and three others.
        assert_eq!((calls.len(), times.len()), (6, 3));
        assert_eq!(notes(recording), [""; 0]);
    }
});

fn graphs(ctx: &mut WorkerContext, _: i64) -> disco::Result<()> {
    crate::graphs::two_graphs(ctx)
}

disco::register_function!("tests.device_times.graphs", graphs);

on_the_double!(events_are_used_again_and_destroyed_at_the_end, [], {
    let recordings = recordings(async |session| {
        session.init_ccl("nccl", &[]).await.unwrap();
        for _ in 0..20 {
            call(session, "tests.device_times.several_sums", 50).await;
            // For each rank: two for each operation between two waits, and the one from which times are measured.
            let live = events_of("libcuda.so.1");
            assert!(live <= 2 * (2 * 51 + 1) + 2, "{live} events");
        }
        // The new communicators measure with the same events.
        session.init_ccl("nccl", &[]).await.unwrap();
        call(session, "tests.device_times.several_sums", 1).await;
        assert!(events_of("libcuda.so.1") <= 2 * (2 * 51 + 1) + 2);
    });
    assert!(recordings.iter().all(|recording| sums(recording)[1].len() == 20 * 51 + 2));
    becomes("events", || events_of("libcuda.so.1"), 0);
});

on_the_double!(times_are_measured_from_later_events_in_long_sessions, [], {
    let recordings = recordings(async |session| {
        session.init_ccl("nccl", &[]).await.unwrap();
        for _ in 0..2 {
            // More than the second after which times are measured from a later event.
            call(session, "tests.device_times.sums_with_a_pause", 1_100).await;
            call(session, "tests.device_times.several_sums", 1).await;
        }
    });
    for recording in &recordings {
        let [_, times] = sums(recording);
        assert_eq!((times.len(), notes(recording).len()), (2 * 4, 0));
        let apart = |at: usize| times[at + 1].start + times[at + 1].clock_error - times[at].end.unwrap();
        assert!(apart(0) + times[0].clock_error >= 1_100_000_000, "{times:?}");
        assert!(apart(4) + times[4].clock_error >= 1_100_000_000, "{times:?}");
    }
});

/// Sums before and after a pause in milliseconds.
fn sums_with_a_pause(ctx: &mut WorkerContext, pause: i64) -> disco::Result<()> {
    let tensor = ctx.empty(DType::F32, [8])?;
    ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Max)?;
    // The sums of both workers are over.
    ctx.comm()?.synchronize()?;
    // The device measures this time.
    std::thread::sleep(Duration::from_millis(pause as u64));
    ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Max)
}

disco::register_function!("tests.device_times.sums_with_a_pause", sums_with_a_pause);

on_the_double!(of_more_operations_than_are_measured_at_a_time_the_first_have_times, [], {
    let recordings = recordings(async |session| {
        session.init_ccl("nccl", &[]).await.unwrap();
        call(session, "tests.device_times.several_sums", 1).await;
        call(session, "tests.device_times.sums_ahead", 1_100).await;
        assert!(events_of("libcuda.so.1") <= 2 * (2 * 1_024 + 3));
        // Later operations have times again.
        call(session, "tests.device_times.several_sums", 1).await;
    });
    let skipped = "some device times are missing: the stream was more than 1024 operations behind";
    assert_eq!(notes(&recordings[0]), [skipped]);
    assert_eq!(sums(&recordings[0])[1].len(), 2 + 1_024 + 2);
});

/// Asserts that sums work and have no times, for the reason `why`.
fn works_without_times(backend: &str, why: &str) {
    let recordings = recordings(async |session| {
        session.init_ccl(backend, &[]).await.unwrap();
        call(session, "tests.device_times.several_sums", 5).await;
    });
    for recording in &recordings {
        let [calls, times] = sums(recording);
        assert_eq!((calls.len(), times.len(), notes(recording)), (7, 0, vec![why]));
    }
}

on_the_double!(
    without_the_function_of_cuda_for_times_there_are_none,
    ["LD_LIBRARY_PATH" = &without("cuEventElapsedTime")],
    {
        works_without_times("nccl", "no device times: the CUDA driver lacks cuEventElapsedTime");
    }
);

on_the_double!(
    without_the_function_of_hip_for_times_there_are_none,
    ["LD_LIBRARY_PATH" = &hip_without("hipEventElapsedTime")],
    {
        works_without_times("rccl", "no device times: HIP lacks hipEventElapsedTime");
    }
);

on_the_double!(an_event_that_can_not_be_created_means_no_times, ["GPU_DOUBLE_FAULTS" = "cuEventCreate:*:1=2"], {
    works_without_times("nccl", "no device times: cuda: cuEventCreate returned 2: out of memory");
});

// The first call is that of the anchor.
on_the_double!(
    an_event_that_fails_later_ends_the_times_of_its_rank_and_not_the_program,
    ["GPU_DOUBLE_FAULTS" = "cuEventElapsedTime:0:6=400"],
    {
        let recordings = recordings(async |session| {
            session.init_ccl("nccl", &[]).await.unwrap();
            for _ in 0..5 {
                call(session, "tests.device_times.several_sums", 1).await;
            }
        });
        let [failed, other] = &recordings[..] else { unreachable!() };
        assert_eq!(
            notes(failed),
            ["no device times from here on: cuda: cuEventElapsedTime returned 400: invalid resource handle"]
        );
        assert_eq!(sums(failed)[0].len(), 5 * 3);
        // Two calls for each time, and one for each further anchor.
        assert!((1..=2).contains(&sums(failed)[1].len()), "{}", sums(failed)[1].len());
        assert_eq!((sums(other)[1].len(), notes(other).len()), (5 * 2, 0));
    }
);
