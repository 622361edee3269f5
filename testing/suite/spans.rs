//! Spans of the crate `tracing` that worker functions enter are in the trace, inside of their commands. Workers are
//! threads, and processes that execute this program again.

use std::process::{Command, ExitCode};
use std::{env, thread};

use disco::activity::{OpState, Record, RecordKind};
use disco::trace::{Trace, WorkerSpans};
use disco::{Builder, Result, SessionKind, WorkerContext, block_on};
use tracing::{debug_span, info_span};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::modules::Module;

/// Variable that makes this program check the spans of a kind of session: its subscriber is the one of the process.
const KIND: &str = "DISCO_TEST_SPANS";

/// Enters a span with two spans inside, and further spans that are not recorded. The second call panics inside of a span.
fn work(_: &mut WorkerContext, panics: bool) -> Result<()> {
    let _outer = info_span!("outer", panics).entered();
    thread::scope(|scope| _ = scope.spawn(|| drop(info_span!("on another thread").entered())));
    for _ in 0..2 {
        let inner = info_span!("inner");
        debug_span!("too fine").in_scope(|| inner.in_scope(|| assert!(!panics, "on purpose")));
    }
    Ok(())
}

disco::register_function!("spans.work", work);

pub(crate) fn module() -> Module {
    [SessionKind::Threads, SessionKind::Processes].into_iter().fold(Module::new("spans", None), |module, kind| {
        module.test(&format!("spans_of_worker_functions_are_inside_of_their_commands::{kind}"), move || {
            let status = Command::new(env::current_exe().unwrap()).env(KIND, kind.to_string()).status();
            assert!(status.unwrap().success());
        })
    })
}

/// Checks the spans, if this program was started for it.
pub(crate) fn run() -> Option<ExitCode> {
    let kind = env::var(KIND).ok()?;
    tracing_subscriber::registry().with(WorkerSpans::new()).init();
    disco::init();
    check(kind.parse().unwrap());
    Some(ExitCode::SUCCESS)
}

fn check(kind: SessionKind) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let session = Builder::new(kind, 3).trace(&path).start().unwrap();
    block_on(async {
        let work = session.function("spans.work").await.unwrap();
        for panics in [false, true] {
            drop(session.call(&work, (panics,)).await.unwrap());
        }
        session.sync_all().await.unwrap_err();
        session.shutdown().await.unwrap();
    });
    let trace = Trace::read(&path).unwrap();
    assert_eq!(trace.workers.len(), 3);
    for worker in &trace.workers {
        let records = &worker.recording.as_ref().unwrap().records;
        let is = |record: &&Record, name: &str| record.name.as_deref() == Some(name);
        let commands: Vec<_> =
            records.iter().filter(|it| it.kind == RecordKind::Command && is(it, "spans.work")).collect();
        let spans: Vec<_> = records.iter().filter(|it| it.kind == RecordKind::Span).collect();
        let names: Vec<_> = spans.iter().map(|span| span.name.as_deref().unwrap()).collect();
        assert_eq!(names, ["outer", "inner", "inner", "outer", "inner"], "{}", worker.worker);
        let is_in = |inner: &Record, outer: &Record| {
            assert_eq!((inner.command, inner.state), (outer.command, OpState::Done), "{inner:?}");
            assert!(outer.start <= inner.start && inner.end.unwrap() <= outer.end.unwrap(), "{inner:?} in {outer:?}");
        };
        is_in(spans[0], commands[0]);
        spans[1..3].iter().for_each(|inner| is_in(inner, spans[0]));
        is_in(spans[3], commands[1]);
        is_in(spans[4], spans[3]);
        assert!(spans[1].end <= Some(spans[2].start));
    }
}
