//! Sessions of processes without failures: values, store, output, resources.

use std::fs;
use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use disco::{Builder, DType, Tensor, Value, WorkerId, block_on};
use disco_conformance::waiting::poll;

use super::programs;
use crate::terminal;
use crate::with_session::with_session;
use crate::workers::sorted_lines;

super::tests!(
    a_value_that_can_not_leave_its_process_is_an_error_and_the_session_continues,
    output_of_workers_is_forwarded_by_line_with_a_prefix,
    control_characters_of_workers_are_escaped_on_a_terminal_and_unchanged_elsewhere,
    tracing_events_of_workers_have_a_span_with_the_worker_id,
    shutdown_returns_although_the_output_of_a_worker_is_not_read,
    large_values_for_one_worker_do_not_grow_the_memory_of_others,
    sessions_leave_no_processes_descriptors_mappings_or_threads,
);

fn a_value_that_can_not_leave_its_process_is_an_error_and_the_session_continues() {
    with_session(Builder::processes(2), async |session| {
        let length = session.function("tests.length").await.unwrap();
        let written = Tensor::zeros(DType::U8, [(64 << 10) + 1]).unwrap();
        let _view = written.bytes_mut().unwrap();
        let refused = session.call(&length, (&written,)).await.unwrap_err().to_string();
        let text = "can't be an argument across processes";
        assert!(refused.ends_with(text), "{refused}");
        let handle = session.call(&length, ("four",)).await.unwrap();
        assert_eq!(session.value(&handle, WorkerId::new(1)).await.unwrap(), Value::Int(4));
        let refused =
            session.set(&handle, WorkerId::new(1), Value::Tensor(written.clone())).await.unwrap_err().to_string();
        assert!(refused.ends_with(text), "{refused}");
        let opaque = session.call("tests.opaque", ()).await.unwrap();
        let refused = session.value(&opaque, WorkerId::new(1)).await.unwrap_err().to_string();
        assert!(refused.starts_with("worker 1: get ") && refused.contains("can't leave its worker"), "{refused}");
        session.sync_all().await.unwrap();
    });
}

fn output_of_workers_is_forwarded_by_line_with_a_prefix() {
    let output = programs::command("printer").output().unwrap();
    assert!(output.status.success());
    let out = ["[worker 1] last", "[worker 1] output of worker 1", "[worker 2] last", "[worker 2] output of worker 2"];
    assert_eq!(sorted_lines(output.stdout), out);
    assert_eq!(sorted_lines(output.stderr), ["[worker 1] error of worker 1", "[worker 2] error of worker 2"]);
}

fn control_characters_of_workers_are_escaped_on_a_terminal_and_unchanged_elsewhere() {
    let said = terminal::output(programs::command("painter"));
    assert!(!said.contains(['\x1b', '\x07', '\u{9b}']), "{said:?}");
    assert!(said.contains("[worker 1] \\x1b[31mred\\u{9b}0m \\x1b]0;title\\x07 of worker 1\r\n"), "{said:?}");
    let output = programs::command("painter").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(&format!("[worker 1] {} of worker 1\n", programs::ESCAPES)), "{said:?}");
}

fn tracing_events_of_workers_have_a_span_with_the_worker_id() {
    let output = programs::command("logger").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    for (prefix, worker) in [("", 0), ("[worker 1] ", 1), ("[worker 2] ", 2)] {
        let event = format!("{prefix} INFO worker{{id={worker}}}: sessions::processes::functions: an event");
        assert!(said.lines().any(|line| line == event), "{event} is not in {said}");
    }
}

fn shutdown_returns_although_the_output_of_a_worker_is_not_read() {
    let mut program = programs::command("noise").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    // Standard error ends with the program. Standard output stays open and is not read.
    program.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(program.wait().unwrap().success(), "{said}");
    assert!(
        said.starts_with("not stopped after 500ms: worker 1 (") && said.ends_with("inside `tests.noise`; killed)\n"),
        "{said}"
    );
}

fn large_values_for_one_worker_do_not_grow_the_memory_of_others() {
    with_session(Builder::processes(3), async |session| {
        let resident = session.function("tests.resident").await.unwrap();
        let before = session.call(&resident, ()).await.unwrap();
        let text = "x".repeat(100_000);
        let handle = session.call("tests.length", ("",)).await.unwrap();
        for _ in 0..1000 {
            session.set(&handle, WorkerId::new(1), Value::from(text.as_str())).await.unwrap();
        }
        let after = session.call(&resident, ()).await.unwrap();
        for worker in [1, 2].map(WorkerId::new) {
            let (Value::Int(before), Value::Int(after)) =
                (session.value(&before, worker).await.unwrap(), session.value(&after, worker).await.unwrap())
            else {
                panic!()
            };
            assert!(after - before < 30 << 20, "{worker}: {} bytes more", after - before);
        }
    });
}

/// Numbers of children, descriptors, mapped segments and threads of this process.
pub(crate) fn resources() -> (usize, usize, usize, usize) {
    let count = |folder: &str| fs::read_dir(folder).unwrap().count();
    let children = fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id())).unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let segments = maps.lines().filter(|line| line.contains("memfd:disco")).count();
    (children.split_whitespace().count(), count("/proc/self/fd"), segments, count("/proc/self/task"))
}

/// [`resources`], once they are unchanged for 100 ms: threads of earlier tests end with a delay.
pub(crate) fn steady_resources() -> (usize, usize, usize, usize) {
    let mut before = resources();
    while let Some(now) = poll(Duration::from_millis(100), || Some(resources()).filter(|now| *now != before)) {
        before = now;
    }
    before
}

fn sessions_leave_no_processes_descriptors_mappings_or_threads() {
    let one = |workers: usize, drop_it: bool| {
        let session = Builder::processes(workers).start().unwrap();
        block_on(async {
            session.call("tests.store", (1,)).await.unwrap();
            session.sync_all().await.unwrap();
            if !drop_it {
                session.shutdown().await.unwrap();
            }
        });
    };
    one(2, false);
    let before = steady_resources();
    for round in 0..200 {
        one(2 + round % 2, round % 10 == 9);
    }
    poll(Duration::from_secs(10), || (resources() == before).then_some(()));
    assert_eq!(resources(), before);
}
