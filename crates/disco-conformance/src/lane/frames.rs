//! The frames that cases send.

use std::hash::{DefaultHasher, Hasher as _};
use std::ops::Range;
use std::sync::Arc;

use disco_core::{Command, DType, Frame, RegisterId, Shape, Value};

/// A frame without freed ids.
pub(super) fn plain(seq: u64, command: Command) -> Arc<Frame> {
    Arc::new(Frame::new(seq, [], command))
}

/// A small frame without an effect, to which all workers reply in every dialect.
pub(super) fn small(seq: u64) -> Arc<Frame> {
    plain(seq, Command::GetAll { register: RegisterId::new(seq as u32 % 100) })
}

/// A frame of about 2 KiB: a lane that limits bytes takes a few thousand of them.
pub(super) fn middling(seq: u64) -> Arc<Frame> {
    call(seq, 0, vec![Value::from(vec![7u8; 2 << 10])])
}

/// A frame that names workers.
pub(super) fn naming(seq: u64, workers: &Range<usize>) -> Arc<Frame> {
    call(seq, 0, vec![Value::Int(workers.start as i64), Value::Int(workers.end as i64)])
}

/// The workers that a frame names; none if it names none.
pub(super) fn range(command: &Command) -> Range<usize> {
    match command {
        Command::CallPacked { args, .. } => match args[..] {
            [Value::Int(start), Value::Int(end)] => start as usize..end as usize,
            _ => 0..0,
        },
        _ => 0..0,
    }
}

/// Frames of every size: with freed ids, with values of every kind, up to more than 1 MiB.
pub(super) fn various() -> Vec<Arc<Frame>> {
    let mut frames = vec![
        plain(1, Command::SyncAll),
        plain(2, Command::GetGlobalFunc { register: RegisterId::new(1), name: "a function".into() }),
        call(3, 0, Vec::new()),
        call(4, 3, vec![Value::None, Value::Bool(true), Value::Float(0.5), Value::from("text"), Value::Int(i64::MIN)]),
        call(5, 0, vec![Value::DType(DType::F8E4M3), Value::Shape(Shape::from([2, 3])), Value::Register(7.into())]),
    ];
    for (seq, len) in (6..).zip([0, 1, 100, 4095, 65_536, 70_001, (1 << 20) + 3]) {
        let bytes: Vec<u8> = (0..len).map(|at: usize| (at * 31 + seq) as u8).collect();
        frames.push(call(seq as u64, seq % 9, vec![Value::from(bytes)]));
    }
    frames.push(plain(13, Command::SyncAll));
    frames
}

/// A text about a frame, which is equal on both ends if the frame arrives complete.
pub(super) fn fingerprint(frame: &Frame) -> String {
    let bytes = match frame.bytes() {
        Ok(bytes) => bytes,
        Err(error) => return format!("{error}"),
    };
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    format!(
        "{} {} with {} freed, {} bytes, {:016x}",
        frame.seq(),
        frame.command().name(),
        frame.freed().len(),
        bytes.len(),
        hasher.finish()
    )
}

fn call(seq: u64, freed: usize, args: Vec<Value>) -> Arc<Frame> {
    let freed = (0..freed as u32).map(RegisterId::new);
    let (register, function) = (RegisterId::new(2), RegisterId::new(1));
    Arc::new(Frame::new(seq, freed, Command::CallPacked { register, function, args }))
}
