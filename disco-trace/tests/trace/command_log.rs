//! Command logs: read, damaged, cut off, and written by a recorder.

use std::fs;
use std::path::Path;
use std::sync::mpsc;

use disco_core::activity::{OpDetails, OpState, Record, RecordKind, Recording};
use disco_core::session::Observer as _;
use disco_core::{Command as Submitted, DType, Error, OpKind, RegisterId, Tensor, Value, WorkerId};
use disco_trace::TraceError;
use disco_trace::command_log::{Command, CommandKind, Described, Head, Line, Reader, Recorder, Wait};
use proptest::option;
use proptest::prelude::*;

fn read(bytes: &[u8]) -> Result<Vec<Line>, TraceError> {
    let reader = Reader::new(bytes, Path::new("log"))?;
    let head = Line::Session(reader.head().clone());
    std::iter::once(Ok(head)).chain(reader).collect()
}

fn write(lines: &[Line]) -> Vec<u8> {
    lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect::<String>().into_bytes()
}

fn described() -> impl Strategy<Value = Described> {
    let leaf = prop_oneof![
        Just(Described::None),
        any::<i64>().prop_map(Described::Int),
        any::<f64>().prop_filter("a NaN is not equal to itself", |x| !x.is_nan()).prop_map(Described::Float),
        ".{0,9}".prop_map(|text| Described::Str(text.into())),
        any::<u32>().prop_map(Described::Register),
        proptest::collection::vec(any::<i64>(), 0..4).prop_map(|dims| Described::Tensor(DType::BF16, dims.into())),
        (".{0,5}", any::<u64>()).prop_map(|(kind, bytes)| Described::Sized(kind.into(), bytes)),
    ];
    leaf.prop_recursive(3, 12, 4, |item| {
        prop_oneof![
            proptest::collection::vec(item.clone(), 0..4).prop_map(Described::Array),
            proptest::collection::vec((item.clone(), item), 0..3).prop_map(Described::Map),
        ]
    })
}

fn line() -> impl Strategy<Value = Line> {
    let args = || proptest::collection::vec(described(), 0..4);
    let command = (any::<u64>(), option::of(".{0,9}"), option::of(any::<u32>()), args());
    let command = command.prop_map(|(number, function, register, args)| {
        let mut command = Command::new(number, 7, CommandKind::Call);
        (command.function, command.register, command.args) = (function.map(Into::into), register, args);
        Line::Command(command)
    });
    let wait = (any::<u64>(), option::of(".{0,9}"), args()).prop_map(|(number, error, replies)| {
        let mut wait = Wait::default();
        (wait.number, wait.error, wait.replies) = (number, error, replies);
        Line::Wait(wait)
    });
    prop_oneof![command, wait]
}

fn log() -> impl Strategy<Value = Vec<Line>> {
    proptest::collection::vec(line(), 0..9).prop_map(|mut lines| {
        lines.insert(0, Line::Session(Head::new("train", "threads", 4, 2, 1)));
        lines
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn lines_that_are_written_are_read_back(lines in log()) {
        prop_assert_eq!(read(&write(&lines)).unwrap(), lines);
    }

    #[test]
    fn of_a_log_that_was_cut_off_the_first_lines_are_read(lines in log(), at in any::<usize>()) {
        let whole = write(&lines);
        let cut = &whole[..at % (whole.len() + 1)];
        let ends = cut.iter().filter(|byte| **byte == b'\n').count();
        match read(cut) {
            // The last line may lack its end only.
            Ok(read) => prop_assert!(read.len() - ends <= 1 && read[..] == lines[..read.len()]),
            Err(_) => prop_assert_eq!(ends, 0),
        }
    }

    #[test]
    fn a_damaged_log_is_refused_or_read(lines in log(), at in any::<usize>(), byte in any::<u8>()) {
        let mut bytes = write(&lines);
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(lines) = read(&bytes) {
            prop_assert_eq!(write(&read(&write(&lines)).unwrap()), write(&lines));
        }
    }

    #[test]
    fn bytes_that_are_no_log_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(read(&bytes).is_err());
    }
}

#[test]
fn a_recorder_writes_sizes_of_tensors_and_no_content() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["commands.jsonl", "commands.jsonl.gz"] {
        let path = folder.path().join(name);
        let head = Head::new("train", "threads", 2, 1, 1);
        let recorder = Recorder::create(&path, head, |_, _| None, |warning| panic!("{warning}")).unwrap();
        let register = RegisterId::new;
        recorder.submitted(1, &[], &Submitted::GetGlobalFunc { register: register(0), name: "train.step".into() });
        let tensor = Tensor::from_slice(&[1234.5f32; 6], [2, 3]).unwrap();
        let args = vec![tensor.clone().into(), Value::from("text"), Value::Register(register(5))];
        recorder.submitted(
            2,
            &[register(4)],
            &Submitted::CallPacked { register: register(1), function: register(0), args },
        );
        recorder.submitted(3, &[register(0)], &Submitted::DebugGet { register: register(1), worker: WorkerId::new(1) });
        recorder.waited(3, &Ok(vec![Ok(tensor.into())]));
        let args = Vec::new();
        recorder.submitted(4, &[], &Submitted::CallPacked { register: register(2), function: register(0), args });
        recorder.waited(4, &Err(Error::Closed("get".into())));
        drop(recorder);
        let lines: Vec<Line> = Reader::open(&path).unwrap().collect::<Result<_, _>>().unwrap();
        let [
            Line::Command(_),
            Line::Command(call),
            Line::Command(get),
            Line::Wait(wait),
            Line::Command(unnamed),
            Line::Wait(closed),
        ] = &lines[..]
        else {
            panic!("{lines:?}")
        };
        assert_eq!((call.function.as_deref(), call.callee, &call.freed[..]), (Some("train.step"), Some(0), &[4][..]));
        let described = Described::Tensor(DType::F32, [2, 3].into());
        assert_eq!(call.args, [described.clone(), Described::Str("text".into()), Described::Register(5)]);
        assert_eq!((get.kind, get.worker, get.register), (CommandKind::Get, Some(1), Some(1)));
        assert_eq!((&wait.replies[..], wait.error.as_deref(), wait.thread), (&[described][..], None, 0));
        assert_eq!(unnamed.function, None, "the register was freed");
        assert_eq!(closed.error.as_deref(), Some("get: the session is shut down"));
        let is_plain = name.ends_with("jsonl");
        assert_eq!(fs::read(&path).unwrap().starts_with(b"{\"session\""), is_plain);
    }
}

/// A record of a command or of an operation inside of it.
fn record(number: u64, kind: RecordKind) -> Record {
    let mut record = Record::new(number, kind, number);
    (record.command, record.end, record.state) = (2, Some(number), OpState::Done);
    if let RecordKind::Op(_) = kind {
        record.op = Some(OpDetails::new("plane 1".into(), number));
    }
    record
}

#[test]
fn lines_that_would_be_too_long_are_split_or_lose_values() {
    const FREED: u32 = 1_000_000;
    const OPS: u64 = 60_000;
    let (folder, register) = (tempfile::tempdir().unwrap(), RegisterId::new);
    let path = folder.path().join("commands.jsonl.gz");
    let head = Head::new("train", "threads", 1, 1, 1);
    let mut recording = Recording::default();
    recording.records.push(record(1, RecordKind::Command));
    recording.records.extend((2..OPS + 2).map(|number| record(number, RecordKind::Op(OpKind::Barrier))));
    recording.time = OPS + 3;
    let (told, is_collected) = mpsc::channel();
    let collect = move |_, _| told.send(()).ok().map(|()| vec![(WorkerId::new(0), Ok(recording.clone()))]);
    let recorder = Recorder::create(&path, head, collect, |warning| panic!("{warning}")).unwrap();
    let freed: Vec<RegisterId> = (0..FREED).map(register).collect();
    let args = vec![Value::from("a text of 1024 bytes".repeat(51)); 5_000];
    recorder.submitted(1, &freed, &Submitted::CallPacked { register: register(1), function: register(0), args });
    recorder.submitted(2, &[], &Submitted::CallPacked { register: register(2), function: register(0), args: vec![] });
    recorder.submitted(3, &[], &Submitted::GetAll { register: register(2) });
    let shape = |len: usize| Ok(Value::Shape(vec![1_i64 << 50; len].into()));
    recorder.waited(3, &Ok(vec![shape(150_000), shape(150_001)]));
    is_collected.recv().unwrap();
    drop(recorder);
    let lines: Vec<Line> = Reader::open(&path).unwrap().collect::<Result<_, _>>().unwrap();
    let (mut freed, mut calls) = (Vec::<u32>::new(), Vec::new());
    for line in &lines {
        match line {
            Line::Freed(some) => freed.extend(some),
            Line::Command(command) => {
                assert_eq!(command.args, []);
                freed.extend(&command.freed);
            }
            Line::Wait(wait) => {
                assert!(matches!(&wait.replies[..], [Described::Shape(shape)] if shape.len() == 150_000))
            }
            Line::Call(call) => calls.push((call.number, call.more, call.ns.is_some(), call.ops.len())),
            _ => {}
        }
    }
    assert!(freed.into_iter().eq(0..FREED));
    let (last, before) = calls.split_last().unwrap();
    assert!(before.iter().all(|call| *call == (2, true, false, 1 << 13)) && before.len() == 7, "{calls:?}");
    assert_eq!(*last, (2, false, true, OPS as usize - 7 * (1 << 13)));
}

#[test]
fn a_head_of_uneven_groups_or_another_version_is_refused() {
    let text = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    let uneven = write(&[Line::Session(Head::new("train", "threads", 3, 2, 1))]);
    assert_eq!(text(&uneven), "log, line 1: this is no log of commands that Disco has recorded: 3 workers in 2 groups");
    let later = br#"{"session":{"format":"disco commands 9"}}"#;
    assert_eq!(text(later), "log, line 1: the format is `disco commands 9`; this version reads `disco commands 1`");
    let head = Line::Session(Head::new("train", "threads", 4, 2, 1));
    let twice = write(&[head.clone(), head]);
    assert_eq!(text(&twice), "log, line 2: a second head: two sessions have written to the file");
}
