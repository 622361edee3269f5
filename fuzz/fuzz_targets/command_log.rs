//! Command logs: the lines of an accepted log are written and read again as the same lines.

#![no_main]

use std::path::Path;

use disco_trace::TraceError;
use disco_trace::command_log::{Call, Command, CommandKind, Described, Head, Line, Reader, Wait};

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), TraceError> {
    let lines = read(bytes)?;
    let written = write(&lines);
    assert_eq!(write(&read(&written).expect("lines that were written can be read")), written);
    Ok(())
}

fn read(bytes: &[u8]) -> Result<Vec<Line>, TraceError> {
    let reader = Reader::new(bytes, Path::new("input"))?;
    let head = Line::Session(reader.head().clone());
    std::iter::once(Ok(head)).chain(reader).collect()
}

fn write(lines: &[Line]) -> Vec<u8> {
    let text = |line| serde_json::to_string(line).expect("a line has a text") + "\n";
    lines.iter().map(text).collect::<String>().into_bytes()
}

fn seeds() -> Vec<Vec<u8>> {
    let mut call = Command::new(1, 10, CommandKind::Call);
    call.args = vec![Described::Float(f64::NAN), Described::Array(vec![Described::Register(3)])];
    let mut wait = Wait::default();
    (wait.number, wait.replies) = (1, vec![Described::Sized("bytes".into(), 7)]);
    let mut part = Call::default();
    (part.number, part.more) = (1, true);
    let head = Line::Session(Head::new("train", "threads", 4, 2, 1));
    let whole = write(&[head, Line::Freed(vec![2, 3]), Line::Command(call), Line::Call(part), Line::Wait(wait)]);
    vec![whole[..whole.len() - 3].to_vec(), whole]
}
