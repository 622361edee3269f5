//! Compares Disco's packets with those of TVM (`data/tvm-0.27.tsv`, captured by `testing/scripts/capture_tvm_golden.py`).

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use disco_core::wire::{self, Packet, WireError};
use disco_core::{Command, DType, Device, DeviceKind, Frame, Local, RegisterId, Shape, Tensor, Value, WorkerId};

/// Name and bytes of each row.
fn rows(direction: &str) -> BTreeMap<&'static str, Vec<u8>> {
    let lines = include_str!("../data/tvm-0.27.tsv").lines().filter(|line| !line.starts_with('#'));
    let columns = lines.map(|line| line.split('\t').collect::<Vec<_>>());
    let rows = columns.filter(|columns| columns[0] == direction);
    rows.map(|columns| (columns[1], unhex(columns[3]))).collect()
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn register(id: u32) -> RegisterId {
    RegisterId::new(id)
}

/// `CallPacked reg=… func=1`.
fn call(result: u32, args: Vec<Value>) -> Command {
    Command::CallPacked { register: register(result), function: register(1), args }
}

fn set(value: Value) -> Command {
    Command::DebugSet { register: register(2), worker: WorkerId::new(1), value }
}

fn tensor(dtype: DType, shape: &[i64], bytes: &[u8]) -> Value {
    let tensor = Tensor::zeros(dtype, shape).unwrap();
    tensor.bytes_mut().unwrap().copy_from_slice(bytes);
    Value::Tensor(tensor)
}

/// The content of a value as text, because equality of tensors does not compare their elements.
fn content(value: &Value) -> String {
    match value {
        Value::Tensor(tensor) => format!("{tensor} {:?}", &*tensor.bytes().unwrap()),
        other => format!("{other:?}"),
    }
}

fn decode_reply(bytes: &[u8]) -> Result<Value, WireError> {
    let (packet, rest) = Packet::split(bytes)?;
    assert!(rest.is_empty());
    Ok(wire::decode_reply(packet)?.unwrap())
}

/// The commands of TVM, as described in the table's third column.
fn commands() -> Vec<(&'static str, Command)> {
    let host = || Local(None);
    let mut all = vec![
        (
            "command.get_global_func",
            Command::GetGlobalFunc { register: register(1), name: "tests.disco.add_one".into() },
        ),
        ("command.call_packed", call(2, vec![Value::Int(41)])),
        ("command.debug_get_from_remote", Command::DebugGet { register: register(2), worker: WorkerId::new(1) }),
        ("command.debug_set_register", set(Value::Int(7))),
        ("command.kill_reg", Command::KillReg { register: register(2) }),
        ("command.copy_from_worker0", Command::CopyFromWorker0 { register: register(3), host: host() }),
        ("command.copy_to_worker0", Command::CopyToWorker0 { register: register(3), host: host() }),
        ("command.sync_worker.0", Command::SyncWorker { worker: WorkerId::new(0) }),
        ("command.sync_worker", Command::SyncWorker { worker: WorkerId::new(1) }),
        ("command.shut_down", Command::Shutdown),
        ("call.no_args", call(2, vec![])),
        ("call.arg.dref", call(4, vec![Value::Register(register(2))])),
        ("call.arg.dref.function", call(4, vec![Value::Register(register(1))])),
        ("call.arg.dref.two", call(4, vec![Value::Register(register(3)), Value::Register(register(2))])),
        (
            "call.mixed.short",
            call(4, vec![Value::Int(7), Value::Float(0.5), "hello world".into(), Value::Register(register(2))]),
        ),
    ];
    all.extend(arguments().into_iter().map(|(name, arg)| (name, call(2, vec![arg]))));
    all.extend(debug_values().into_iter().map(|([name, _], value)| (name, set(value))));
    all
}

fn arguments() -> Vec<(&'static str, Value)> {
    let float = |bits| Value::Float(f64::from_bits(bits));
    let device = |kind, ordinal| Value::Device(Device::new(kind, ordinal));
    let shape = |dims: &[i64]| Value::Shape(Shape::from(dims));
    vec![
        ("call.arg.none", Value::None),
        ("call.arg.int.zero", Value::Int(0)),
        ("call.arg.int.one", Value::Int(1)),
        ("call.arg.int.minus_one", Value::Int(-1)),
        ("call.arg.int.min", Value::Int(i64::MIN)),
        ("call.arg.int.max", Value::Int(i64::MAX)),
        ("call.arg.int.wide", Value::Int(72_623_859_790_382_856)),
        ("call.arg.bool.true", Value::Bool(true)),
        ("call.arg.bool.false", Value::Bool(false)),
        ("call.arg.float.half", Value::Float(0.5)),
        ("call.arg.float.zero", Value::Float(0.0)),
        ("call.arg.float.negative_zero", Value::Float(-0.0)),
        ("call.arg.float.infinity", Value::Float(f64::INFINITY)),
        ("call.arg.float.negative_infinity", Value::Float(f64::NEG_INFINITY)),
        ("call.arg.float.nan", float(0x7ff8_0000_0000_0000)),
        ("call.arg.float.nan_payload", float(0xfff8_0000_0000_0001)),
        ("call.arg.float.subnormal", float(1)),
        ("call.arg.dtype.bool", DType::Bool.into()),
        ("call.arg.dtype.int8", DType::I8.into()),
        ("call.arg.dtype.int32", DType::I32.into()),
        ("call.arg.dtype.int64", DType::I64.into()),
        ("call.arg.dtype.uint8", DType::U8.into()),
        ("call.arg.dtype.uint64", DType::U64.into()),
        ("call.arg.dtype.float16", DType::F16.into()),
        ("call.arg.dtype.bfloat16", DType::BF16.into()),
        ("call.arg.dtype.float32", DType::F32.into()),
        ("call.arg.dtype.float64", DType::F64.into()),
        ("call.arg.dtype.float8_e4m3fn", DType::F8E4M3.into()),
        ("call.arg.dtype.float8_e5m2", DType::F8E5M2.into()),
        ("call.arg.device.cpu", Device::CPU.into()),
        ("call.arg.device.cuda", device(DeviceKind::Cuda, 1)),
        ("call.arg.device.rocm", device(DeviceKind::Rocm, 2)),
        ("call.arg.str.empty", "".into()),
        ("call.arg.str.short", "abc".into()),
        ("call.arg.str.seven", "1234567".into()),
        ("call.arg.str.eight", "12345678".into()),
        ("call.arg.str.long", "hello world".into()),
        ("call.arg.str.utf8_short", "hé".into()),
        ("call.arg.str.utf8_seven_chars", "größer!".into()),
        ("call.arg.str.utf8_long", "迪斯科 🕺".into()),
        ("call.arg.str.nul", "a\0b".into()),
        ("call.arg.str.nul_long", "abcd\0efgh".into()),
        ("call.arg.bytes.empty", Value::Bytes([].into())),
        ("call.arg.bytes.short", vec![0u8, 0xff, 0x80].into()),
        ("call.arg.bytes.seven", vec![1u8, 2, 3, 4, 5, 6, 7].into()),
        ("call.arg.bytes.eight", vec![1u8, 2, 3, 4, 5, 6, 7, 8].into()),
        ("call.arg.bytes.long", (0xf0..=0xff).collect::<Vec<u8>>().into()),
        ("call.arg.shape.scalar", shape(&[])),
        ("call.arg.shape.one", shape(&[1])),
        ("call.arg.shape.three", shape(&[2, 3, 4])),
        ("call.arg.shape.zero", shape(&[0, 5])),
        ("call.arg.shape.negative", shape(&[-1, 7])),
        ("call.arg.shape.large", shape(&[1 << 40, i64::MAX, i64::MIN])),
    ]
}

/// The values that debug commands sent to a worker and fetched from it.
fn debug_values() -> Vec<([&'static str; 2], Value)> {
    let row = |set, get, value: Value| ([set, get], value);
    let float = |x: f32| x.to_le_bytes();
    let floats = [1., 2., 3., 4., 5., 6.].map(float).concat();
    vec![
        row("debug.set.int", "debug.get.int", Value::Int(-42)),
        row("debug.set.bool", "debug.get.bool", Value::Bool(true)),
        row("debug.set.float", "debug.get.float", Value::Float(0.5)),
        row("debug.set.dtype", "debug.get.dtype", DType::F16.into()),
        row("debug.set.device", "debug.get.device", Device::new(DeviceKind::Cuda, 1).into()),
        row("debug.set.str.short", "debug.get.str.short", "abc".into()),
        row("debug.set.str.seven", "debug.get.str.seven", "1234567".into()),
        row("debug.set.str.eight", "debug.get.str.eight", "12345678".into()),
        row("debug.set.str.long", "debug.get.str.long", "hello \"wörld\"\n\t\\/\u{1} 🕺".into()),
        row("debug.set.bytes.short", "debug.get.bytes.short", vec![1u8, 255].into()),
        row("debug.set.bytes.long", "debug.get.bytes.long", (0..10).collect::<Vec<u8>>().into()),
        row("debug.set.shape", "debug.get.shape", Shape::from([2, 3, 4]).into()),
        row("debug.set.shape.scalar", "debug.get.shape.scalar", Shape::scalar().into()),
        row("debug.set.tensor.f32", "debug.get.tensor.f32", tensor(DType::F32, &[2, 3], &floats)),
        row("debug.set.tensor.i64_scalar", "debug.get.tensor.i64_scalar", tensor(DType::I64, &[], &1i64.to_le_bytes())),
        row("debug.set.tensor.u8", "debug.get.tensor.u8", tensor(DType::U8, &[5], &[1, 2, 3, 4, 5])),
        row("debug.set.tensor.f16", "debug.get.tensor.f16", tensor(DType::F16, &[2], &[0, 0x3c, 0, 0x40])),
        row("debug.set.tensor.bool", "debug.get.tensor.bool", tensor(DType::Bool, &[3], &[1, 1, 1])),
        row("debug.set.tensor.empty", "debug.get.tensor.empty", tensor(DType::F32, &[0, 4], &[])),
    ]
}

/// The replies of TVM's worker, with their commands.
fn replies() -> Vec<(&'static str, Command, Value)> {
    let get = || Command::DebugGet { register: register(2), worker: WorkerId::new(1) };
    let mut all = vec![
        ("reply.debug_get_from_remote", get(), Value::Int(42)),
        ("reply.debug_set_register", set(Value::Int(7)), Value::None),
        ("reply.sync_worker", Command::SyncWorker { worker: WorkerId::new(1) }, Value::None),
    ];
    all.extend(debug_values().into_iter().map(|([_, name], value)| (name, get(), value)));
    all
}

/// Arguments in encodings that only TVM writes.
fn read_only_arguments() -> Vec<(&'static str, Vec<Value>)> {
    let mixed = vec![
        Value::None,
        Value::Int(-2),
        Value::Bool(true),
        Value::Float(1.5),
        DType::BF16.into(),
        Device::new(DeviceKind::Cuda, 1).into(),
        "abc".into(),
        "hello world".into(),
        vec![1u8].into(),
        b"0123456789"[..].into(),
        Shape::from([2, 3]).into(),
        Value::Register(register(3)),
    ];
    vec![
        ("call.arg.raw_str", vec!["raw string".into()]),
        ("call.arg.byte_array", vec![vec![1u8, 2, 3].into()]),
        ("call.mixed.all", mixed),
    ]
}

/// Replies in encodings that only TVM writes: TVM wraps a short string that the worker received over the wire.
fn read_only_replies() -> Vec<(&'static str, Value)> {
    vec![
        ("debug.get.str.short.received", "abc".into()),
        ("debug.get.str.seven.received", "1234567".into()),
        ("debug.get.bytes.short.received", vec![1u8, 255].into()),
    ]
}

/// Commands with values that Disco does not support, and the errors.
const REFUSED_COMMANDS: &[(&str, &str)] = &[
    ("call.arg.ptr", "unknown argument type"),
    ("call.arg.ptr.null", "unknown argument type"),
    ("call.arg.dltensor", "unknown argument type"),
    ("call.arg.dtype.float4_e2m1fn", "unknown dtype"),
    ("call.arg.dtype.int4", "unknown dtype"),
    ("call.arg.dtype.float32x4", "unknown dtype"),
    ("call.arg.dtype.handle", "unknown dtype"),
    ("call.arg.dtype.void", "unknown dtype"),
    ("call.arg.device.metal", "unknown device kind 8"),
    ("call.arg.device.vulkan", "unknown device kind 7"),
    ("call.arg.device.cuda_host", "unknown device kind 3"),
    ("debug.set.ptr", "unknown argument type"),
];

/// Replies with values that Disco does not support, and the errors.
const REFUSED_REPLIES: &[(&str, &str)] = &[
    ("debug.get.ptr", "unknown argument type"),
    ("debug.get.array", "a debug object of type `ffi.Array`"),
    ("debug.get.map", "a debug object of type `ffi.Map`"),
];

#[test]
fn encoded_commands_equal_the_bytes_of_tvm() {
    let golden = rows("down");
    for (name, command) in commands() {
        let frame = Frame::new(1, Vec::new(), command);
        assert_eq!(frame.bytes().unwrap(), golden[name], "{name}");
    }
}

#[test]
fn commands_of_tvm_are_decoded() {
    let golden = rows("down");
    for (name, command) in commands() {
        let frame = wire::decode_frame(1, &golden[name]).unwrap();
        // Encodes the frame again and compares bytes, since NaN is not equal to itself.
        let again = Frame::new(1, Vec::new(), frame.command().clone());
        assert_eq!(again.bytes().unwrap(), golden[name], "{name}: {command:?}");
    }
    for ([name, _], value) in debug_values() {
        let frame = wire::decode_frame(1, &golden[name]).unwrap();
        let Command::DebugSet { value: back, .. } = frame.command() else { panic!("{frame:?}") };
        assert_eq!(content(back), content(&value), "{name}");
    }
}

#[test]
fn encoded_replies_equal_the_bytes_of_tvm_workers() {
    let golden = rows("up");
    for (name, command, value) in replies() {
        let bytes = wire::encode_reply(&command, WorkerId::new(1), &Ok(value.clone())).unwrap();
        assert_eq!(bytes, golden[name], "{name}");
        assert_eq!(content(&decode_reply(&golden[name]).unwrap()), content(&value), "{name}");
    }
}

#[test]
fn encodings_that_only_tvm_writes_are_decoded() {
    let golden = rows("down");
    for (name, value) in read_only_arguments() {
        let frame = wire::decode_frame(1, &golden[name]).unwrap();
        let Command::CallPacked { args, .. } = frame.command() else { panic!("{frame:?}") };
        assert_eq!(*args, value, "{name}");
    }
    let golden = rows("up");
    for (name, value) in read_only_replies() {
        assert_eq!(decode_reply(&golden[name]).unwrap(), value, "{name}");
    }
}

#[test]
fn decoding_an_unsupported_value_is_an_error_with_the_reason() {
    let golden = rows("down");
    for (name, why) in REFUSED_COMMANDS {
        let refused = wire::decode_frame(1, &golden[name]).unwrap_err().to_string();
        assert!(refused.starts_with(why), "{name}: {refused}");
    }
    let golden = rows("up");
    for (name, why) in REFUSED_REPLIES {
        let refused = decode_reply(&golden[name]).unwrap_err().to_string();
        assert!(refused.starts_with(why), "{name}: {refused}");
    }
}

#[test]
fn every_row_of_the_capture_is_tested() {
    let commands = commands().into_iter().map(|row| row.0);
    let commands = commands.chain(read_only_arguments().into_iter().map(|row| row.0));
    let commands: BTreeSet<_> = commands.chain(REFUSED_COMMANDS.iter().map(|row| row.0)).collect();
    assert_eq!(commands, rows("down").into_keys().collect());

    let replies = replies().into_iter().map(|row| row.0);
    let replies = replies.chain(read_only_replies().into_iter().map(|row| row.0));
    let replies: BTreeSet<_> = replies.chain(REFUSED_REPLIES.iter().map(|row| row.0)).collect();
    assert_eq!(replies, rows("up").into_keys().collect());

    let lines = include_str!("../data/tvm-0.27.tsv").lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.count(), commands.len() + replies.len(), "rows have names of their own");
}

/// The expected text is from `to_json_graph_str` of apache-tvm-ffi 0.1.15.post2, with which TVM wraps debug values.
#[test]
fn json_is_escaped_as_tvm_escapes_it() {
    let text = |value: Value| {
        let frame = Frame::new(1, Vec::new(), set(value));
        String::from_utf8(frame.bytes().unwrap()[68..].to_vec()).unwrap()
    };
    let ascii: String = (0..128u8).map(char::from).collect();
    assert_eq!(
        text(ascii.into()),
        concat!(
            r#"{"root_index":0,"nodes":[{"type":"ffi.String","data":"\u0000\u0001\u0002\u0003\u0004\u0005\u0006\u0007\b\t\n"#,
            r#"\u000b\f\r\u000e\u000f\u0010\u0011\u0012\u0013\u0014\u0015\u0016\u0017\u0018\u0019\u001a\u001b\u001c\u001d"#,
            r##"\u001e\u001f !\"#$%&'()*+,-.\/0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwx"##,
            r#"yz{|}~\u007f"}]}0"#,
        )
    );
    assert_eq!(
        text([0xfbu8, 0xff, 0xbf].repeat(3).into()),
        r#"{"root_index":0,"nodes":[{"type":"ffi.Bytes","data":"+\/+\/+\/+\/+\/+\/"}]}0"#
    );
}
