//! `disco status PID --stacks`

use std::fs;
use std::io::Write;
use std::process::ExitCode;

use disco::programs;
use disco::status::Program;
use serde::Serialize;
use serde_json::json;

use crate::output;
use crate::stacks::{Frame, Reader, Stack, threads};

/// Beginnings of the names of functions that call a program's functions: those of Rust's runtime and of Disco's loop of
/// commands. Text leaves out the first one of them, and its callers.
const RUNTIME: [&str; 4] = [
    "__rust_begin_short_backtrace",
    "std::sys::backtrace::__rust_begin_short_backtrace",
    "disco_core::function::invoke",
    "disco_core::worker::",
];
/// Longest name of a function in text.
const MAX_NAME_CHARS: usize = 120;

/// A thread of a program, and its stack.
#[derive(Serialize)]
struct Thread {
    /// The index of the worker's session in the program; `None` for other threads.
    session: Option<usize>,
    worker: Option<usize>,
    /// The thread's name, or the worker's number.
    name: String,
    #[serde(flatten)]
    stack: Stack,
}

/// Shows a program with the stacks of its workers and of its main thread. Of a process that does not answer, it shows the
/// threads, and returns why it does not answer.
pub(super) fn run(out: &mut impl Write, process: u32, as_json: bool) -> anyhow::Result<ExitCode> {
    let mut reader = Reader::default();
    let asked = programs::ask(process);
    let stacks = match &asked {
        // Other ids mean that the program is in a container, with process ids of its own.
        Ok(program) if program.process != process => {
            anyhow::bail!("process {process} has the id {} in its container: run this command there", program.process)
        }
        Ok(program) => of_program(&mut reader, program),
        Err(_) => {
            threads(process).into_iter().map(|(thread, name)| of_thread(&mut reader, process, thread, name)).collect()
        }
    };
    if as_json {
        let mut answer = match &asked {
            Ok(program) => json!(program),
            Err(error) => json!({ "process": process, "error": error.to_string() }),
        };
        answer["stacks"] = json!(stacks);
        output::json(out, &answer)?;
    } else {
        if let Ok(program) = &asked {
            super::show(out, program)?;
            writeln!(out)?;
            missing(out, program)?;
        }
        print(out, &stacks)?;
    }
    out.flush()?;
    asked?;
    Ok(ExitCode::SUCCESS)
}

/// The stacks of all workers on this machine, then that of the main thread.
fn of_program(reader: &mut Reader, program: &Program) -> Vec<Thread> {
    let mut stacks = Vec::new();
    for (session, status) in program.sessions.iter().enumerate() {
        for worker in &status.workers {
            let Some((process, thread)) = worker.process.zip(worker.thread) else { continue };
            // A program may answer anything.
            if !is_of_same_user(program.process, process, thread) {
                continue;
            }
            let mut name = format!("worker {}", worker.worker);
            if program.sessions.len() > 1 {
                name += &format!(" of session {}", session + 1);
            }
            let stack = reader.stack(process, thread);
            stacks.push(Thread { session: Some(session), worker: Some(worker.worker), name, stack });
        }
    }
    let main = program.process;
    if stacks.iter().all(|shown| shown.stack.thread != main) {
        stacks.push(of_thread(reader, main, main, "main thread".to_owned()));
    }
    stacks
}

/// Whether `thread` is one of `process`, and that of the user of `program`.
fn is_of_same_user(program: u32, process: u32, thread: u32) -> bool {
    let user = |path: String| {
        let status = fs::read_to_string(path).ok()?;
        status.lines().find_map(|line| line.strip_prefix("Uid:")).map(str::to_owned)
    };
    let program = user(format!("/proc/{program}/status"));
    program.is_some() && user(format!("/proc/{process}/task/{thread}/status")) == program
}

fn of_thread(reader: &mut Reader, process: u32, thread: u32, name: String) -> Thread {
    Thread { session: None, worker: None, name, stack: reader.stack(process, thread) }
}

/// Names the workers whose stacks can't be read here.
fn missing(out: &mut impl Write, program: &Program) -> anyhow::Result<()> {
    for status in &program.sessions {
        let missing = status.workers.iter().filter(|worker| worker.process.is_none());
        let missing: Vec<String> = missing.map(|worker| worker.worker.to_string()).collect();
        if missing.is_empty() {
            continue;
        }
        writeln!(
            out,
            "no stacks of workers {}, which belong to other nodes: on their machines, `disco status` lists the node's \
             process, and `disco status PID --stacks` shows its workers\n",
            missing.join(", ")
        )?;
    }
    Ok(())
}

/// Prints each stack once, below all threads that have it.
fn print(out: &mut impl Write, stacks: &[Thread]) -> anyhow::Result<()> {
    let mut printed: Vec<&[Frame]> = Vec::new();
    for thread in stacks {
        let frames = &thread.stack.frames[..];
        if printed.iter().any(|printed| are_equal(printed, frames)) {
            continue;
        }
        let is_alike = |other: &&Thread| std::ptr::eq(*other, thread) || are_equal(&other.stack.frames, frames);
        for Thread { name, stack, .. } in stacks.iter().filter(is_alike) {
            writeln!(out, "{name}: process {}, thread {}, {}", stack.process, stack.thread, stack.state)?;
        }
        if let Some(problem) = &thread.stack.problem {
            writeln!(out, "    no stack: {problem}")?;
        }
        let is_runtime =
            |frame: &Frame| frame.function.as_deref().is_some_and(|name| RUNTIME.iter().any(|it| name.starts_with(it)));
        for frame in frames.iter().take_while(|frame| !is_runtime(frame)) {
            let function = shortened(frame.function.as_deref().unwrap_or(&frame.code));
            match &frame.location {
                Some(location) => writeln!(out, "    {function}\n        at {location}")?,
                None if frame.function.is_some() => writeln!(out, "    {function}\n        in {}", frame.code)?,
                None => writeln!(out, "    {function}")?,
            }
        }
        writeln!(out)?;
        printed.push(frames);
    }
    Ok(())
}

/// The begin of a name, if it is long: generic parameters make names of many hundred characters.
fn shortened(name: &str) -> String {
    let mut chars = name.chars();
    let mut start: String = chars.by_ref().take(MAX_NAME_CHARS).collect();
    if chars.next().is_some() {
        start.push('…');
    }
    start
}

/// Whether two threads are inside the same functions. Threads without stacks are not alike.
fn are_equal(one: &[Frame], other: &[Frame]) -> bool {
    !one.is_empty() && one == other
}
