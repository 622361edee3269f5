//! Records of workers: an error of a broken collective ends with a table of them, and a session's timeline has all of them.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use disco::activity::{CommKind, DataPath, OpState, Record, RecordKind, Recording, span};
use disco::trace::Trace;
use disco::{
    CommunicatorExt as _, DType, Error, LaneSession, Rank, Reduction, Result, Tensor, Timeline, WorkerContext, block_on,
};
use disco_conformance::waiting::{poll, wait_until, wait_until_in_collective, wait_until_inside};
use rustix::process::{Signal, getpid, kill_process};

use super::functions::wait_for_removal;
use super::marker::stay;
use super::{Kind, SOON, builder, call, within};

super::tests![
    records_can_be_read_while_a_worker_hangs,
    a_timeline_has_the_counters_of_the_session,
    a_signal_dumps_the_records_of_workers_that_hang,
];

super::tests![tests_of_processes: a_worker_that_is_killed_during_a_collective_is_in_the_table_of_the_error];

// For sessions whose workers share a machine.
super::tests![
    tests_of_collectives:
    a_worker_that_does_not_call_a_collective_is_named_by_the_table_of_the_error,
    different_calls_of_a_collective_are_shown_by_the_table_of_the_error,
    a_timeline_of_a_failed_session_has_its_collectives_inside_of_their_commands,
    the_records_of_a_split_have_its_own_ranks,
    the_worker_that_comes_last_is_named_by_collectives_of_several_steps,
];

/// No worker has this number.
const NOBODY: i64 = -1;

/// All workers but `late` sum at once; `late` waits until the session is aborted first.
fn sum_late(ctx: &mut WorkerContext, late: i64) -> Result<()> {
    if ctx.worker().index() as i64 == late {
        ctx.store().wait("never", Duration::from_secs(60)).unwrap_err();
    }
    let _span = span("sum");
    let sum = ctx.empty(DType::F32, 64)?;
    ctx.comm()?.all_reduce(&sum, &sum, Reduction::Sum)
}

/// Workers 0 and 2, and 1 and 3, sum in the opposite order of ranks; worker 2 comes last.
fn sum_in_halves(ctx: &mut WorkerContext) -> Result<()> {
    let worker = ctx.worker().index();
    let sum = ctx.empty(DType::F32, 64)?;
    let half = ctx.comm()?.split(Some(worker as u32 % 2), -(worker as i32))?;
    if worker == 2 {
        // Worker 0 does not know when it is in the operation.
        thread::sleep(Duration::from_millis(50));
    }
    half.map_or(Ok(()), |mut half| half.all_reduce(&sum, &sum, Reduction::Sum))
}

/// Sums `count` elements ten times; worker 1 comes late each time.
fn sum_behind_worker_1(ctx: &mut WorkerContext, count: i64) -> Result<()> {
    let sum = ctx.empty(DType::F32, count)?;
    for _ in 0..10 {
        if ctx.worker().index() == 1 {
            // The others do not know when they are in the operation.
            thread::sleep(Duration::from_millis(30));
        }
        ctx.comm()?.all_reduce(&sum, &sum, Reduction::Sum)?;
    }
    Ok(())
}

/// Worker 2 broadcasts where the others sum.
fn sum_or_broadcast(ctx: &mut WorkerContext) -> Result<()> {
    let tensor = ctx.empty(DType::F32, 64)?;
    match ctx.worker().index() {
        2 => ctx.comm()?.broadcast(&tensor, 0.into()),
        _ => ctx.comm()?.all_reduce(&tensor, &tensor, Reduction::Sum),
    }
}

/// Worker 3 takes this time.
fn work(ctx: &mut WorkerContext, seconds: f64) -> Result<()> {
    let start = Instant::now();
    while ctx.worker().index() == 3 && start.elapsed().as_secs_f64() < seconds {
        thread::yield_now();
    }
    Ok(())
}

/// The process of worker 3 kills itself once `file` is removed; the others sum.
fn end_before_sum(ctx: &mut WorkerContext, file: String) -> Result<()> {
    if ctx.worker().index() != 3 {
        return sum_late(ctx, NOBODY);
    }
    wait_for_removal(&file);
    kill_process(getpid(), Signal::KILL).map_err(|error| Error::invalid(error.to_string()))
}

/// Makes a tensor of 4 MiB that peers could map.
fn allocate(ctx: &mut WorkerContext) -> Result<Tensor> {
    ctx.empty(DType::F32, 1 << 20)
}

disco::register_function!("records.allocate", allocate);
disco::register_function!("records.work", work);
disco::register_function!("records.end_before_sum", end_before_sum);
disco::register_function!("records.sum_late", sum_late);
disco::register_function!("records.sum_behind_worker_1", sum_behind_worker_1);
disco::register_function!("records.sum_in_halves", sum_in_halves);
disco::register_function!("records.sum_or_broadcast", sum_or_broadcast);

fn init_ccl(session: &LaneSession) {
    block_on(session.init_ccl("local", &[])).unwrap();
}

fn sync(session: &LaneSession) -> Result<()> {
    block_on(session.sync_all())
}

fn a_worker_that_does_not_call_a_collective_is_named_by_the_table_of_the_error(kind: Kind) {
    let session = builder(kind).collective_deadline(Duration::from_millis(700)).start().unwrap();
    init_ccl(&session);
    call(&session, "records.sum_late", (NOBODY,)).unwrap();
    call(&session, "records.sum_late", (1,)).unwrap();
    let text = within(SOON, "the session", move || {
        let error = sync(&session).unwrap_err();
        drop(session);
        error.to_string()
    });
    let table = text.split_once('\n').unwrap_or_else(|| panic!("no table: {text}")).1;
    assert!(table.starts_with("Operation 2 of plane "), "{table}");
    assert!(table.contains("worker 1: has finished operation 1, all_reduce sum f32 x 64, "), "{table}");
    assert!(table.contains("; is inside `records.sum_late` (command "), "{table}");
    assert!(table.contains(" operation 2, all_reduce sum f32 x 64, "), "{table}");
    assert!(table.ends_with("\nMissing: worker 1 has not called it."), "{table}");
}

fn different_calls_of_a_collective_are_shown_by_the_table_of_the_error(kind: Kind) {
    let session = builder(kind).check(true).start().unwrap();
    init_ccl(&session);
    call(&session, "records.sum_or_broadcast", ()).unwrap();
    let (first, again) = within(SOON, "the session", move || {
        let error = sync(&session).unwrap_err();
        let again = call(&session, "records.sum_late", (NOBODY,)).unwrap_err();
        (error.to_string(), again.to_string())
    });
    for text in [&first, &again] {
        assert!(text.contains("\nThe workers do not call the same:\n"), "{text}");
        assert!(text.contains("worker 2: broadcast f32 x 64, root rank 0"), "{text}");
        assert!(text.contains("all_reduce sum f32 x 64"), "{text}");
    }
}

fn a_worker_that_is_killed_during_a_collective_is_in_the_table_of_the_error(kind: Kind) {
    let session = builder(kind).start().unwrap();
    init_ccl(&session);
    call(&session, "records.sum_late", (NOBODY,)).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    call(&session, "records.end_before_sum", (file.path().display().to_string(),)).unwrap();
    wait_until_in_collective(&session, 0..3);
    drop(file);
    let error = within(SOON, "the session", move || {
        let error = sync(&session).unwrap_err();
        drop(session);
        error
    });
    let Error::Lost(loss) = &error else { panic!("{error}") };
    let table = loss.records.as_deref().unwrap();
    assert!(table.contains("\n  worker 3: has finished operation 1, all_reduce sum f32 x 64, "), "{table}");
    assert!(table.contains("; is inside `records.end_before_sum` (command "), "{table}");
    assert!(table.ends_with("\nMissing: worker 3 has not called it."), "{table}");
    assert!(error.to_string().starts_with("worker 3 lost: ") && error.to_string().ends_with(table), "{error}");
}

fn records_can_be_read_while_a_worker_hangs(kind: Kind) {
    let session = builder(kind).start().unwrap();
    let inside = stay(&session, 3);
    wait_until("the end of the call on workers 0 to 2", || {
        let status = session.status();
        status.workers[..3].iter().all(|worker| worker.finished == status.commands)
    });
    let recordings = session.observer().recordings(usize::MAX, Duration::from_secs(2)).unwrap();
    assert_eq!(recordings.len(), 4);
    for (worker, recording) in recordings {
        let recording = recording.unwrap();
        let inside = (worker.index() == 3).then_some("kinds.stay");
        assert_eq!(recording.inside.as_deref(), inside, "{worker}");
        assert_eq!(recording.received - recording.finished, u64::from(inside.is_some()), "{worker}");
    }
    drop(inside);
    within(SOON, "the session", move || block_on(session.shutdown()).unwrap());
}

/// Runs `run` in a session with a timeline of `records` records, and returns the timeline.
fn timeline(kind: Kind, records: usize, run: impl FnOnce(LaneSession) + Send + 'static) -> Timeline {
    let kept: Arc<Mutex<Option<Timeline>>> = Arc::default();
    let sink = kept.clone();
    let builder = builder(kind).collective_deadline(Duration::from_millis(700));
    let session = builder.timeline(records, move |timeline| *sink.lock().unwrap() = Some(timeline)).start().unwrap();
    within(SOON, "the session", move || run(session));
    let timeline = kept.lock().unwrap().take();
    timeline.expect("a timeline at the end of the session")
}

pub(crate) fn commands(recording: &Recording) -> Vec<(u64, &str)> {
    let commands = recording.records.iter().filter(|record| record.kind == RecordKind::Command);
    commands.map(|record| (record.command, record.name.as_deref().unwrap_or("-"))).collect()
}

fn a_timeline_has_the_counters_of_the_session(kind: Kind) {
    // The counters are sampled at a command, at most once in 10 ms: at the last sync at the latest.
    let sample = |session: &LaneSession| {
        sync(session).unwrap();
        let start = Instant::now();
        wait_until("a sample", || {
            let is_last = start.elapsed() > Duration::from_millis(10);
            sync(session).unwrap();
            is_last
        });
    };
    let timeline = timeline(kind, 4096, move |session| {
        let kept: Vec<_> = (0..20).map(|_| call(&session, "records.work", (0.0,)).unwrap()).collect();
        let tensor = call(&session, "records.allocate", ()).unwrap();
        sample(&session);
        drop((kept, tensor));
        sample(&session);
        block_on(session.shutdown()).unwrap();
    });
    let values = |recording: &Recording, name: &str| -> Vec<u64> {
        let counters = recording.records.iter().filter(|record| record.kind == RecordKind::Counter);
        counters.filter(|it| it.name.as_deref().unwrap().starts_with(name)).map(|it| it.value).collect()
    };
    let registers = values(&timeline.controller, "registers in use");
    // The function, 20 results, and that of the allocation.
    assert!(registers.iter().any(|count| *count >= 21), "{registers:?}");
    assert!(*registers.last().unwrap() <= 3, "{registers:?}");
    assert!(!values(&timeline.controller, "room for commands to ").is_empty());
    // Those of the last lane.
    let lane = if kind == Kind::NodesApart { "workers 2" } else { "worker" };
    let sent = values(&timeline.controller, &format!("bytes sent to {lane}"));
    assert!(sent.is_sorted() && sent.is_empty() == (kind == Kind::Threads), "{sent:?}");
    if kind.session() == disco::SessionKind::Processes {
        let (_, worker) = &timeline.workers[3];
        let bytes = values(worker.as_ref().unwrap(), "bytes of shared tensors");
        assert!(bytes.iter().any(|bytes| *bytes >= 4 << 20), "{bytes:?}");
    }
}

fn a_timeline_of_a_failed_session_has_its_collectives_inside_of_their_commands(kind: Kind) {
    let timeline = timeline(kind, 4096, |session| {
        init_ccl(&session);
        for _ in 0..5 {
            call(&session, "records.sum_late", (NOBODY,)).unwrap();
        }
        call(&session, "records.sum_late", (1,)).unwrap();
        let ended = sync(&session);
        assert!(matches!(ended, Err(Error::Worker(_))), "{ended:?}");
    });
    for (worker, recording) in &timeline.workers {
        let recording = recording.as_ref().unwrap();
        let ops: Vec<_> = recording.records.iter().filter_map(|record| Some((record, record.op.as_ref()?))).collect();
        assert!(ops.iter().map(|(_, op)| (op.number, op.count)).eq((1..=6).map(|number| (number, 64))), "{ops:?}");
        assert!(ops.iter().all(|(record, op)| (record.state == OpState::Failed) == (op.number == 6)), "{ops:?}");
        if worker.index() != 1 {
            let failed = ops.last().unwrap().1;
            assert!(failed.waited > 0 && failed.last == Some(Rank::new(1)), "{worker}: {failed:?}");
            assert_eq!(failed.path, DataPath::SharedMemory);
        }
        for (record, _) in ops {
            let is_its_command = |it: &&Record| it.kind == RecordKind::Command && it.command == record.command;
            let command = recording.records.iter().find(is_its_command).unwrap();
            let span = recording.records.iter().find(|it| it.kind == RecordKind::Span && it.command == record.command);
            let span = span.unwrap();
            assert_eq!(span.name.as_deref(), Some("sum"));
            let is_nested = command.start <= span.start && span.start <= record.start;
            assert!(
                is_nested && record.end <= span.end && span.end <= command.end,
                "{worker}: {record:?} in {command:?}"
            );
        }
    }
}

fn the_records_of_a_split_have_its_own_ranks(kind: Kind) {
    let timeline = timeline(kind, 4096, |session| {
        init_ccl(&session);
        call(&session, "records.sum_in_halves", ()).unwrap();
        block_on(session.shutdown()).unwrap();
    });
    let ops: Vec<_> = timeline
        .workers
        .iter()
        .map(|(_, recording)| {
            let records = &recording.as_ref().unwrap().records;
            records.iter().filter_map(|record| record.op.clone()).next_back().unwrap()
        })
        .collect();
    assert!(ops[0].comm.ends_with(", split 1 color Some(0)") && ops[0].comm == ops[2].comm, "{ops:?}");
    assert_eq!([0, 1, 2, 3].map(|worker| ops[worker].kind), [1, 1, 0, 0].map(|rank| CommKind::Split(Rank::new(rank))));
    // Rank 0 is worker 2.
    assert!(ops[0].waited > 0 && ops[0].last == Some(Rank::new(0)), "{ops:?}");
}

/// Ranks wait for each other in each step, for different ranks.
fn the_worker_that_comes_last_is_named_by_collectives_of_several_steps(kind: Kind) {
    for count in [64, 1 << 20] {
        let timeline = timeline(kind, 4096, move |session| {
            init_ccl(&session);
            call(&session, "records.sum_behind_worker_1", (count,)).unwrap();
            block_on(session.shutdown()).unwrap();
        });
        let others = timeline.workers.iter().filter(|(worker, _)| worker.index() != 1);
        let records = others.flat_map(|(_, recording)| &recording.as_ref().unwrap().records);
        let ops: Vec<_> = records.filter_map(|record| record.op.as_ref()).collect();
        let waited = |ops: &mut dyn Iterator<Item = &&disco::activity::OpDetails>| ops.map(|op| op.waited).sum::<u64>();
        let for_worker_1 = waited(&mut ops.iter().filter(|op| op.last == Some(Rank::new(1))));
        // A rank that gets no processor is the last one, too.
        assert!(2 * for_worker_1 > waited(&mut ops.iter()), "{ops:?}");
    }
}

/// Executes this program again for the test alone, with `DISCO_DUMP`.
fn a_signal_dumps_the_records_of_workers_that_hang(kind: Kind) {
    let Some(file) = env::var_os("DISCO_DUMP").map(PathBuf::from) else {
        let folder = tempfile::tempdir().unwrap();
        let mut alone = Command::new(env::current_exe().unwrap());
        alone.arg("--exact").arg(format!("kinds::a_signal_dumps_the_records_of_workers_that_hang::{kind}"));
        let output = alone.env("DISCO_DUMP", folder.path().join("dump.json.gz")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    };
    let session = builder(kind).start().unwrap();
    // Collectives of `local` do not reach other nodes.
    let sums = !kind.is_nodes();
    if sums {
        init_ccl(&session);
        call(&session, "records.sum_late", (NOBODY,)).unwrap();
    }
    let stays = stay(&session, 3);
    wait_until_inside(&session, "kinds.stay", [3]);
    let inside = |trace: &Trace| -> Vec<Option<String>> {
        let recordings = trace.workers.iter().map(|worker| worker.recording.as_ref().unwrap());
        recordings.map(|recording| recording.inside.as_deref().map(str::to_owned)).collect()
    };
    let expected = [None, None, None, Some("kinds.stay".to_owned())];
    // Each signal writes a file, the first ones perhaps before the workers are inside of their functions.
    let path = file.parent().unwrap().to_owned();
    let (trace, files) = within(SOON, "a dump", move || {
        loop {
            kill_process(getpid(), Signal::USR1).unwrap();
            let found = poll(Duration::from_millis(100), || {
                let files: Vec<PathBuf> = path.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
                let traces = files.iter().filter_map(|path| Trace::read(path).ok()).filter(|it| it.missing.is_empty());
                let found = traces.into_iter().find(|trace| inside(trace) == expected);
                found.filter(|_| files.len() > 1).map(|trace| (trace, files))
            });
            if let Some(found) = found {
                return found;
            }
        }
    });
    assert!(files.contains(&file) && files.contains(&file.with_file_name("dump-2.json.gz")));
    drop(stays);
    assert_eq!(trace.controller, None);
    for worker in &trace.workers {
        let records = &worker.recording.as_ref().unwrap().records;
        let ops: Vec<_> = records.iter().filter_map(Record::signature).collect();
        let expected = if sums { &["all_reduce sum f32 x 64"][..] } else { &[] };
        assert_eq!(ops, expected, "{}", worker.worker);
    }
    within(SOON, "the session", move || block_on(session.shutdown()).unwrap());
    // The signal has no effect any more.
    kill_process(getpid(), Signal::USR1).unwrap();
}
