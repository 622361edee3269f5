//! Encoding and decoding of commands, replies and notices; errors for invalid bytes.

#![allow(clippy::unwrap_used)]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use disco_core::channel::{CallOps, Notice, Reply};
use disco_core::error::{ErrorKind, Failure, LossCause, ProcessEnd, UserError};
use disco_core::wire::{self, MappedSnapshot, Message, Packet, Reader, Times, WireError, Writer};
use disco_core::{
    Calling, Command, DType, Device, DeviceKind, Frame, Local, Members, RegisterId, Shape, Tensor, Value, WireObject,
    WorkerId, WorkerRange, World,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::messages::{failure_of_worker_1, messages};

/// An object type of this test.
#[derive(Debug)]
struct Names(Vec<String>);

impl WireObject for Names {
    fn type_index(&self) -> i32 {
        9000
    }

    fn size(&self) -> usize {
        8 + self.0.iter().map(|name| 8 + name.len()).sum::<usize>()
    }

    fn write(&self, to: &mut Writer) {
        to.u64(self.0.len() as u64);
        self.0.iter().for_each(|name| to.bytes(name.as_bytes()));
    }
}

fn read_names(from: &mut Reader<'_>) -> Result<Value, WireError> {
    let count = from.u64()?;
    let names = (0..count).map(|_| Ok(String::from_utf8_lossy(from.bytes()?).into_owned()));
    Ok(Value::Object(Arc::new(Names(names.collect::<Result<_, WireError>>()?))))
}

disco_core::register_object!(9000, read_names);

fn device() -> impl Strategy<Value = Device> {
    let kind = prop_oneof![Just(DeviceKind::Cpu), Just(DeviceKind::Cuda), Just(DeviceKind::Rocm)];
    (kind, any::<i32>()).prop_map(|(kind, ordinal)| Device::new(kind, ordinal))
}

fn dtype() -> impl Strategy<Value = DType> {
    proptest::sample::select(DType::all().collect::<Vec<_>>())
}

fn register() -> impl Strategy<Value = RegisterId> {
    (0..RegisterId::COUNT).prop_map(RegisterId::new)
}

/// Any argument except tensors and NaN, which do not compare equal after decoding.
fn value() -> impl Strategy<Value = Value> {
    let item = plain().prop_filter("no registers in arrays", |value| !matches!(value, Value::Register(_)));
    let nested = item.prop_recursive(3, 12, 4, |item| {
        prop_oneof![
            vec(item.clone(), 0..4).prop_map(Value::from),
            (any::<i32>(), vec(item.clone(), 0..4)).prop_map(|(tag, items)| Value::Tagged(tag, items.into())),
            vec((item.clone(), item), 0..4).prop_map(Value::from),
        ]
    });
    prop_oneof![plain(), nested]
}

fn plain() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::None),
        any::<i64>().prop_map(Value::Int),
        any::<bool>().prop_map(Value::Bool),
        prop_oneof![proptest::num::f64::NORMAL, proptest::num::f64::INFINITE].prop_map(Value::Float),
        ".{0,20}".prop_map(Value::from),
        vec(any::<u8>(), 0..40).prop_map(Value::from),
        dtype().prop_map(Value::DType),
        device().prop_map(Value::Device),
        vec(any::<i64>(), 0..6).prop_map(|dims| Value::Shape(dims.into())),
        register().prop_map(Value::Register),
        vec(".{0,8}", 0..4).prop_map(|names| Value::Object(Arc::new(Names(names)))),
    ]
}

fn tensor() -> impl Strategy<Value = Tensor> {
    (dtype(), vec(0..5i64, 0..4)).prop_flat_map(|(dtype, shape)| {
        let tensor = Tensor::zeros(dtype, shape).unwrap();
        let len = tensor.byte_len();
        (Just(tensor), vec(any::<u8>(), len..=len)).prop_map(|(tensor, bytes)| {
            tensor.bytes_mut().unwrap().copy_from_slice(&bytes);
            tensor
        })
    })
}

fn command() -> impl Strategy<Value = Command> {
    let worker = || any::<u32>().prop_map(WorkerId::new);
    prop_oneof![
        Just(Command::Shutdown),
        register().prop_map(|register| Command::KillReg { register }),
        (register(), ".{0,20}").prop_map(|(register, name)| Command::GetGlobalFunc { register, name: name.into() }),
        (register(), register(), vec(value(), 0..8)).prop_map(|(register, function, args)| Command::CallPacked {
            register,
            function,
            args
        }),
        (register(), register(), vec(value(), 0..8), calling()).prop_map(|(register, function, args, calling)| {
            Command::CallWith { register, function, args, calling: calling.into() }
        }),
        worker().prop_map(|worker| Command::SyncWorker { worker }),
        register().prop_map(|register| Command::CopyFromWorker0 { register, host: Local(None) }),
        register().prop_map(|register| Command::CopyToWorker0 { register, host: Local(None) }),
        (register(), worker()).prop_map(|(register, worker)| Command::DebugGet { register, worker }),
        (register(), worker(), value()).prop_map(|(register, worker, value)| Command::DebugSet {
            register,
            worker,
            value
        }),
        Just(Command::SyncAll),
        register().prop_map(|register| Command::GetAll { register }),
        (0..u64::MAX >> 1).prop_map(|epoch| Command::Recover { epoch }),
        (0..u64::MAX >> 1, members()).prop_map(|(epoch, members)| Command::Resize { epoch, members: members.into() }),
    ]
}

fn calling() -> impl Strategy<Value = Calling> {
    use proptest::option::of;
    let parts = of(vec(of((0..9u32, 0..9u32).prop_map(|(start, end)| start..end)), 0..5));
    let answers = proptest::option::of(any::<u32>().prop_map(WorkerId::new));
    (parts, any::<bool>(), answers).prop_map(|(parts, streams, answers)| Calling {
        parts: parts.map(Into::into),
        streams,
        answers,
    })
}

fn members() -> impl Strategy<Value = Members> {
    (proptest::collection::btree_set(any::<u32>(), 1..20), 1..3usize).prop_map(|(places, groups)| {
        let world = World::new(places.len(), groups).or_else(|_| World::new(places.len(), places.len()));
        Members::new(world.unwrap(), places.into_iter().map(WorkerId::new)).unwrap()
    })
}

fn failure() -> impl Strategy<Value = Failure> {
    let ids = (any::<u32>().prop_map(WorkerId::new), 0..u64::MAX >> 1, proptest::option::of(register()));
    let user = proptest::option::of((".{0,9}", ".{0,20}"));
    (ids, ".{0,20}", ".{0,20}", vec(".{0,9}", 0..3), any::<bool>(), error_kind(), user).prop_map(
        |((worker, command, register), operation, message, causes, aborted, kind, user)| Failure {
            worker,
            command,
            operation,
            register,
            message,
            causes,
            aborted,
            kind,
            user: user.and_then(|(type_name, content)| UserError::new(type_name, content.into_bytes())),
        },
    )
}

fn error_kind() -> impl Strategy<Value = ErrorKind> {
    let after = || (0..i64::MAX as u64).prop_map(Duration::from_nanos);
    let text = || ".{0,9}".prop_map(|text: String| text.into());
    let plain = [
        ErrorKind::User,
        ErrorKind::Panicked,
        ErrorKind::Aborted,
        ErrorKind::Cancelled,
        ErrorKind::Broken,
        ErrorKind::Stuck,
        ErrorKind::Unavailable,
        ErrorKind::Mismatch,
        ErrorKind::Invalid,
        ErrorKind::Argument,
        ErrorKind::UnknownFunction,
        ErrorKind::Busy,
        ErrorKind::Protocol,
        ErrorKind::Refused,
        ErrorKind::State,
        ErrorKind::Closed,
        ErrorKind::ForeignRef,
        ErrorKind::NoSuchWorker,
        ErrorKind::NoCommunicator,
        ErrorKind::NotRestored { epoch: 3 },
    ];
    prop_oneof![
        proptest::sample::select(plain.to_vec()),
        after().prop_map(|after| ErrorKind::Deadline { after }),
        after().prop_map(|after| ErrorKind::Stalled { after }),
        (any::<u32>(), any::<u32>()).prop_map(|(start, end)| ErrorKind::Lost { workers: WorkerRange::new(start..end) }),
        text().prop_map(|backend| ErrorKind::Unsupported { backend }),
        (text(), text(), any::<i64>()).prop_map(|(backend, function, code)| ErrorKind::Library {
            backend,
            function,
            code
        }),
        any::<Option<i32>>().prop_map(|code| ErrorKind::System { code }),
        (0..i64::MAX as u64).prop_map(|bytes| ErrorKind::OutOfMemory { bytes }),
    ]
}

fn loss_cause() -> impl Strategy<Value = LossCause> {
    let text = || ".{0,20}";
    let end = prop_oneof![
        any::<i32>().prop_map(ProcessEnd::Exited),
        (any::<i32>(), any::<bool>()).prop_map(|(signal, core_dumped)| ProcessEnd::Signaled { signal, core_dumped }),
        Just(ProcessEnd::Unknown),
    ];
    prop_oneof![
        Just(LossCause::ConnectionClosed),
        text().prop_map(LossCause::ConnectionFailed),
        (end, any::<bool>()).prop_map(|(end, connected)| LossCause::ProcessEnded { end, connected }),
        proptest::option::of(text()).prop_map(LossCause::ThreadEnded),
        text().prop_map(LossCause::Panicked),
        (0..i64::MAX as u64).prop_map(|nanos| LossCause::Silent(Duration::from_nanos(nanos))),
        text().prop_map(LossCause::ProtocolViolation),
        (0..usize::MAX >> 1).prop_map(LossCause::Unread),
        (0..usize::MAX >> 1).prop_map(LossCause::Unacknowledged),
        text().prop_map(LossCause::ClosedWithReason),
        text().prop_map(LossCause::Refused),
        Just(LossCause::CommunicatorDropped),
        text().prop_map(LossCause::Other),
    ]
}

fn debug_get() -> Command {
    Command::DebugGet { register: RegisterId::new(0), worker: WorkerId::new(1) }
}

fn debug_set(value: Value) -> Frame {
    Frame::new(1, Vec::new(), Command::DebugSet { register: RegisterId::new(0), worker: WorkerId::new(1), value })
}

/// A value that the debug commands wrap, and the text of TVM's debug object.
fn debug_object() -> impl Strategy<Value = (Value, Vec<u8>)> {
    let wrapped = prop_oneof![
        ".{8,20}".prop_map(Value::from),
        vec(any::<u8>(), 8..40).prop_map(Value::from),
        vec(any::<i64>(), 0..6).prop_map(|dims| Value::Shape(dims.into())),
        tensor().prop_map(Value::from),
    ];
    wrapped.prop_map(|value| {
        let text = debug_set(value.clone()).bytes().unwrap()[DEBUG_TEXT..].to_vec();
        (value, text)
    })
}

/// Offset of the text of a `DebugSet`'s debug object: after length, code, count, 3 ints, 2 types, and the text's
/// length.
const DEBUG_TEXT: usize = 8 + 4 + 4 + 3 * 12 + 4 + 4 + 8;

/// Reads a `DebugSet` of a debug object with this text.
fn read_debug(outer: i32, text: &[u8]) -> Result<Value, WireError> {
    let mut bytes = debug_set(Shape::scalar().into()).bytes().unwrap()[..DEBUG_TEXT].to_vec();
    bytes[..8].copy_from_slice(&((DEBUG_TEXT - 8 + text.len()) as u64).to_le_bytes());
    bytes[DEBUG_TEXT - 16..DEBUG_TEXT - 12].copy_from_slice(&outer.to_le_bytes());
    bytes[DEBUG_TEXT - 8..].copy_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend(text);
    match wire::decode_frame(1, &bytes)?.command() {
        Command::DebugSet { value, .. } => Ok(value.clone()),
        other => panic!("{other:?}"),
    }
}

/// The first field of a tensor saved by TVM.
const MAGIC: u64 = 0xdd5e_40f0_96b4_a13f;

/// A saved tensor of `u8` as the text of a debug object.
fn saved(magic: u64, device: i32, axes: i32, extents: &[i64], len: u64, bytes: &[u8]) -> Vec<u8> {
    let mut to = Writer::default();
    to.u64(magic);
    to.u64(0);
    to.i32(device);
    to.i32(0);
    to.i32(axes);
    // The dtype.
    [1, 8, 1, 0].iter().for_each(|byte| to.u8(*byte));
    extents.iter().for_each(|extent| to.i64(*extent));
    to.u64(len);
    to.raw(bytes);
    let mut text = BASE64.encode(to.into_bytes()).into_bytes();
    text.push(b'1');
    text
}

fn packet(bytes: &[u8]) -> Packet<'_> {
    let (packet, rest) = Packet::split(bytes).unwrap();
    assert!(rest.is_empty());
    packet
}

proptest! {
    #[test]
    fn decoding_an_encoded_frame_returns_it(seq: u64, freed in vec(register(), 0..5), command in command()) {
        let frame = Frame::new(seq, freed.clone(), command.clone());
        let back = wire::decode_frame(seq, frame.bytes().unwrap()).unwrap();
        prop_assert_eq!(back.command(), &command);
        prop_assert_eq!(back.freed(), &freed[..]);
        prop_assert_eq!(back.seq(), seq);
    }

    #[test]
    fn decoding_frames_in_one_place_returns_each(
        frames in vec((any::<u64>(), vec(register(), 0..5), command(), any::<bool>()), 1..6),
    ) {
        let mut place = Frame::new(0, [], Command::SyncAll);
        for (seq, freed, command, is_encoded) in frames {
            let frame = Frame::new(seq, freed.clone(), command.clone());
            place.decode_again(seq, frame.bytes().unwrap()).unwrap();
            prop_assert_eq!((place.seq(), place.freed(), place.command()), (seq, &freed[..], &command));
            if is_encoded {
                prop_assert_eq!(place.bytes().unwrap(), frame.bytes().unwrap());
            }
        }
    }

    #[test]
    fn decoding_an_encoded_reply_or_notice_returns_it(value in value(), failure in failure(), epoch in 0..u64::MAX >> 1) {
        let get = debug_get();
        let result = wire::encode_value(&value).unwrap();
        prop_assert_eq!(&wire::decode_value(&result).unwrap(), &value);
        for reply in [Reply::Ok(value), Reply::Err(Arc::new(failure.clone()))] {
            let bytes = wire::encode_reply(&get, WorkerId::new(1), &reply).unwrap();
            prop_assert_eq!(wire::decode_reply(packet(&bytes)).unwrap(), reply);
        }
        let (failure, command) = (Arc::new(failure), epoch);
        let notices = [
            Notice::Failed { epoch, failure: failure.clone() },
            Notice::Cancelled { command, has_left: true, ops: CallOps::Collectives(3) },
            Notice::Cancelled { command, has_left: false, ops: CallOps::Other },
            Notice::Result { command, number: 5, value: result.into() },
            Notice::ResultsEnd { command, count: 1 << 40, outcome: Ok(()) },
            Notice::ResultsEnd { command, count: 0, outcome: Err(failure) },
        ];
        for notice in notices {
            let decoded = wire::decode_notice(packet(&wire::encode_notice(&notice).unwrap())).unwrap();
            prop_assert_eq!(format!("{decoded:?}"), format!("{notice:?}"));
        }
    }

    #[test]
    fn decoding_a_truncated_frame_is_an_error(freed in vec(register(), 0..3), command in command(), at: prop::sample::Index) {
        let frame = Frame::new(1, freed, command);
        let bytes = frame.bytes().unwrap();
        prop_assert!(wire::decode_frame(1, &bytes[..at.index(bytes.len())]).is_err());
    }

    #[test]
    fn debug_commands_carry_a_tensor_with_its_content(tensor in tensor()) {
        let content = |tensor: &Tensor| {
            (tensor.dtype(), tensor.shape().clone(), tensor.device(), tensor.bytes().unwrap().to_vec())
        };
        let set = wire::decode_frame(1, debug_set(tensor.clone().into()).bytes().unwrap()).unwrap();
        let reply = wire::encode_reply(&debug_get(), WorkerId::new(1), &Reply::Ok(tensor.clone().into())).unwrap();
        let reply = wire::decode_reply(packet(&reply)).unwrap().unwrap();
        match (set.command(), reply) {
            (Command::DebugSet { value: Value::Tensor(set), .. }, Value::Tensor(get)) => {
                prop_assert_eq!(content(set), content(&tensor));
                prop_assert_eq!(content(&get), content(&tensor));
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }

    #[test]
    fn a_debug_object_with_any_type_index_is_decoded((value, text) in debug_object(), outer in 64..i32::MAX) {
        let back = read_debug(outer, &text);
        match (outer, value) {
            (68 | 73, _) => prop_assert!(back.is_err()),
            (_, Value::Tensor(tensor)) => match back.unwrap() {
                Value::Tensor(back) => prop_assert_eq!(back.to_string(), tensor.to_string()),
                other => prop_assert!(false, "{other:?}"),
            },
            (_, value) => prop_assert_eq!(back.unwrap(), value),
        }
    }

    #[test]
    fn decoding_a_truncated_debug_object_is_an_error((_, text) in debug_object(), at: prop::sample::Index) {
        let (kind, content) = text.split_last().unwrap();
        let cut = &content[..at.index(content.len())];
        prop_assert!(read_debug(187, cut).is_err());
        prop_assert!(read_debug(187, &[cut, &[*kind]].concat()).is_err());
    }

    #[test]
    fn a_debug_object_with_another_byte_never_panics((_, text) in debug_object(), at: prop::sample::Index, with: u8) {
        let mut text = text;
        let at = at.index(text.len());
        text[at] = with;
        _ = read_debug(187, &text);
    }

    #[test]
    fn garbage_in_a_debug_object_never_panics(
        bytes in vec(any::<u8>(), 0..80),
        json in "[{}\\[\\]\":,0-9a-z\\\\]{0,60}",
        (axes, extents, len) in (-1..5, vec(any::<i64>(), 0..4), any::<u64>()),
    ) {
        _ = read_debug(187, &bytes);
        for kind in ["0", "1"] {
            _ = read_debug(187, &[&bytes, kind.as_bytes()].concat());
            _ = read_debug(187, format!("{json}{kind}").as_bytes());
            _ = read_debug(187, format!(r#"{{"root_index":0,"nodes":[{json}]}}{kind}"#).as_bytes());
            for node in ["ffi.String", "ffi.Bytes", "ffi.Shape", "int", "float", "bool", "None"] {
                let graph = format!(r#"{{"root_index":0,"nodes":[{{"type":"{node}","data":{json}}}]}}{kind}"#);
                _ = read_debug(187, graph.as_bytes());
            }
        }
        _ = read_debug(187, &saved(MAGIC, 1, axes, &extents, len, &bytes));
        _ = read_debug(187, &saved(MAGIC, 1, axes, &extents, bytes.len() as u64, &bytes));
    }

    #[test]
    fn decoding_an_encoded_cause_of_a_loss_returns_it(cause in loss_cause()) {
        let message = Message::From { workers: WorkerRange::new(3..4), message: Box::new(Message::Lost { cause: cause.clone(), whole: false }) };
        let bytes = message.encode().unwrap();
        let Message::From { message, .. } = Message::decode(packet(&bytes)).unwrap() else { panic!() };
        let Message::Lost { cause: back, .. } = *message else { panic!() };
        prop_assert_eq!(back, cause);
    }

}

#[test]
fn decoding_a_message_returns_it_and_decoding_a_truncated_message_is_an_error() {
    for message in messages() {
        let bytes = message.encode().unwrap();
        let back = Message::decode(packet(&bytes)).unwrap();
        assert_eq!(format!("{back:?}"), format!("{message:?}"));
        assert_eq!(back.encode().unwrap(), bytes);
        for end in 0..bytes.len() {
            assert!(Packet::split(&bytes[..end]).is_err(), "{message:?} cut at {end}");
            // The same bytes with a matching packet length, so that the decoder of the message detects the truncation.
            if let Some(content) = bytes[..end].get(Packet::PREFIX..) {
                assert!(Packet::read(content).and_then(Message::decode).is_err(), "{message:?} cut at {end}");
            }
        }
    }
}

fn call(args: Vec<Value>) -> Frame {
    let (register, function) = (RegisterId::new(1), RegisterId::new(0));
    Frame::new(1, Vec::new(), Command::CallPacked { register, function, args })
}

#[test]
fn a_small_tensor_is_encoded_inside_the_packet() {
    let tensor = Tensor::from_slice(&[1i32, -2, 3, 4, 5, 6], [2, 3]).unwrap();
    let frame = wire::decode_frame(1, call(vec![tensor.into()]).bytes().unwrap()).unwrap();
    let Command::CallPacked { args, .. } = frame.command() else { panic!("{frame:?}") };
    let [Value::Tensor(back)] = &args[..] else { panic!("{args:?}") };
    assert_eq!((back.shape(), back.to_vec::<i32>().unwrap()), (&Shape::from([2, 3]), vec![1, -2, 3, 4, 5, 6]));
}

/// The bytes of a frame, and its large tensors in memory beside them.
fn beside(frame: &Frame) -> (Vec<u8>, Arc<MappedSnapshot>) {
    let (bytes, snapshot) = frame.bytes_and_snapshot().unwrap();
    let fd = snapshot.as_fd().try_clone_to_owned().unwrap();
    (bytes, MappedSnapshot::open(&fd, None).unwrap())
}

#[test]
fn a_large_tensor_is_decoded_from_the_packet_and_from_memory_beside_it() {
    let tensor =
        |len: usize| Tensor::from_slice(&(0..len).map(|at| at as u8).collect::<Vec<_>>(), [len as i64]).unwrap();
    let sent = [tensor(65_537), tensor(10), tensor(300_000)];
    let args = || sent.iter().map(Value::from).collect::<Vec<_>>();
    let is_same = |frame: &Frame| {
        let same = |(arg, sent): (&Value, &Tensor)| matches!(arg, Value::Tensor(back) if *back.bytes().unwrap() == *sent.bytes().unwrap());
        frame.command().values().iter().zip(&sent).all(same)
    };
    let frame = call(args());
    assert!(frame.bytes().unwrap().len() > 365_000);
    assert!(is_same(&wire::decode_frame(1, frame.bytes().unwrap()).unwrap()));
    let (bytes, memory) = beside(&frame);
    assert!(bytes.len() < 500, "{} bytes", bytes.len());
    let back = wire::decode_frame_beside(1, &bytes, Some(memory.clone())).unwrap();
    drop(memory);
    assert!(is_same(&back));
    let [Value::Tensor(first), ..] = back.command().values() else { panic!() };
    first.bytes_mut().unwrap().fill(0);
    assert!(is_same(&frame), "the reader has a copy");
    let small = call(vec![tensor(65_536).into()]);
    assert!(small.bytes_and_snapshot().is_none());
}

#[test]
fn the_pieces_of_a_frame_concatenate_to_its_packet() {
    let tensor =
        |len: usize| Tensor::from_slice(&(0..len).map(|at| at as u8).collect::<Vec<_>>(), [len as i64]).unwrap();
    let (first, second) = (tensor(65_537), tensor(200_000));
    let call = call(vec![first.clone().into(), "between".into(), tensor(10).into(), second.into()]);
    let freed = Frame::new(9, [RegisterId::new(4)], debug_set(first.clone().into()).command().clone());
    for frame in [call, freed] {
        let whole =
            Message::Frame { seq: frame.seq(), bytes: frame.bytes().unwrap().into(), transfer: None }.encode().unwrap();
        let pieces = frame.pieces().unwrap().unwrap();
        assert_eq!((pieces.byte_len(), pieces.frame_len()), (whole.len(), frame.bytes().unwrap().len()));
        assert!(pieces.read(0, usize::MAX).unwrap() == whole);
        for step in [1000, 61_440] {
            let read: Vec<u8> = (0..whole.len()).step_by(step).flat_map(|at| pieces.read(at, step).unwrap()).collect();
            assert!(read == whole);
        }
        let again = frame.pieces().unwrap().unwrap();
        assert!(std::sync::Arc::ptr_eq(&pieces, &again), "lanes send the same");
        drop(pieces);
        assert!(first.bytes_mut().is_err(), "it is still to be sent");
    }
    first.bytes_mut().unwrap();
    assert!(debug_set(tensor(65_536).into()).pieces().unwrap().is_none());
}

#[test]
fn an_invalid_offset_beside_a_packet_is_an_error() {
    let tensor = || Value::from(Tensor::zeros(DType::U8, [65_537]).unwrap());
    let refused = |bytes: &[u8], memory| wire::decode_frame_beside(1, bytes, memory).unwrap_err().to_string();
    let (bytes, memory) = beside(&call(vec![tensor(), tensor()]));
    assert_eq!(refused(&bytes, None), "expected shared memory with the elements of a tensor");
    // The offset of the second tensor is the last field.
    let end = bytes.len();
    for place in [0u64, 64, 65_535, 65_664 + 1, 65_664 + 64, 1 << 20, u64::MAX, u64::MAX - 63] {
        let mut moved = bytes.to_vec();
        moved[end - 8..].copy_from_slice(&place.to_le_bytes());
        let refused = refused(&moved, Some(memory.clone()));
        assert_eq!(refused, "expected the place of a tensor in shared memory", "{place}");
    }
    let mut wide = bytes.to_vec();
    wide[end - 16..end - 8].copy_from_slice(&i64::MAX.to_le_bytes());
    assert_eq!(refused(&wide, Some(memory.clone())), "expected the place of a tensor in shared memory");
    assert!(wire::decode_frame_beside(1, &bytes, Some(memory)).is_ok());
}

#[test]
fn a_packet_with_too_large_a_length_is_an_error_before_any_allocation() {
    let refused = |bytes: &[u8]| wire::decode_frame(1, bytes).unwrap_err().to_string();
    let claim = (1u64 << 60).to_le_bytes();
    assert_eq!(refused(&claim), "a packet of 1152921504606846976 bytes; the limit is 68719476736");

    let mut many = call(Vec::new()).bytes().unwrap().to_vec();
    many[12..16].copy_from_slice(&i32::MAX.to_le_bytes());
    assert_eq!(refused(&many), "unknown number of arguments 2147483647");

    let mut axes = call(vec![Shape::from([1]).into()]).bytes().unwrap().to_vec();
    let at = axes.len() - 16;
    axes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(refused(&axes).contains("more bytes wanted"), "{}", refused(&axes));
}

#[test]
fn invalid_content_of_a_debug_object_is_an_error() {
    let graph = |graph: &str| read_debug(187, format!("{graph}0").as_bytes()).map_err(|error| error.to_string());
    let node = |node: &str| graph(&format!(r#"{{"root_index":0,"nodes":[{node}]}}"#));
    assert_eq!(node(r#"{"type":"int","data":-3}"#), Ok(Value::Int(-3)));
    assert_eq!(node(r#"{"type":"float","data":2}"#), Ok(Value::Float(2.)));
    assert_eq!(node(r#"{"type":"bool","data":true}"#), Ok(Value::Bool(true)));
    assert_eq!(node(r#"{"type":"None"}"#), Ok(Value::None));
    assert_eq!(graph(r#"{"nodes":[{"type":"ffi.Array","data":[1]},{"type":"None"}],"root_index":1}"#), Ok(Value::None));

    let data = "expected data of the node's type in a debug object";
    for (text, why) in [
        (r#"{"type":"ffi.String","data":1}"#, data),
        (r#"{"type":"ffi.String"}"#, data),
        (r#"{"type":"ffi.String","data":"\ud800"}"#, data),
        (r#"{"type":"ffi.Bytes","data":"AA="}"#, "expected base64 in a debug object"),
        (r#"{"type":"ffi.Shape","data":[2,3.5]}"#, data),
        (r#"{"type":"ffi.Shape","data":[9223372036854775808]}"#, data),
        (r#"{"type":"int","data":1e3}"#, data),
        (r#"{"data":1}"#, "expected a JSON graph in a debug object"),
        ("", "expected a root in a debug object's graph"),
    ] {
        assert_eq!(node(text).unwrap_err(), why, "{text}");
    }
    let deep = format!(r#"{{"type":"ffi.Array","data":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert!(node(&deep).is_err(), "and the stack holds");
    for text in ["", "null", "[]", r#"{"root_index":-1,"nodes":[]}"#, r#"{"root_index":0}"#, "\u{feff}{}"] {
        assert_eq!(graph(text).unwrap_err(), "expected a JSON graph in a debug object", "{text}");
    }
    assert!(graph(r#"{"root_index":0,"nodes":[{"type":"None"}]} 0"#).is_err(), "text after the graph");
    for text in ["", "2", "{}"] {
        let refused = read_debug(187, text.as_bytes()).unwrap_err().to_string();
        assert_eq!(refused, "expected 0 or 1 at the end of a debug object");
    }
    for outer in [68, 73] {
        let refused = read_debug(outer, br#"{"root_index":0,"nodes":[{"type":"None"}]}0"#).unwrap_err().to_string();
        assert_eq!(refused, format!("unknown argument type {outer}"));
    }
}

#[test]
fn an_invalid_saved_tensor_is_an_error() {
    let refused = |text: &[u8]| read_debug(187, text).unwrap_err().to_string();
    assert!(read_debug(187, &saved(MAGIC, 1, 2, &[1, 2], 2, &[1, 2])).is_ok());
    let elements = "expected as many bytes as the tensor's shape says";
    for (text, why) in [
        (saved(1, 1, 1, &[2], 2, &[1, 2]), "expected a saved tensor's magic number in a debug object"),
        (saved(MAGIC, 2, 1, &[2], 2, &[1, 2]), "expected a saved tensor on the CPU in a debug object"),
        (saved(MAGIC, 1, -1, &[2], 2, &[1, 2]), "unknown number of axes -1"),
        (saved(MAGIC, 1, 1, &[3], 2, &[1, 2]), elements),
        (saved(MAGIC, 1, 1, &[-2], 2, &[1, 2]), elements),
        (saved(MAGIC, 1, 2, &[i64::MAX, 4], 2, &[1, 2]), elements),
        (saved(MAGIC, 1, 1, &[2], 2, &[1, 2, 3]), "expected nothing after a saved tensor's elements"),
        (b"AAA1".to_vec(), "expected base64 in a debug object"),
    ] {
        assert_eq!(refused(&text), why);
    }
    for text in [
        saved(MAGIC, 1, i32::MAX, &[2], 2, &[1, 2]),
        saved(MAGIC, 1, 1, &[2], u64::MAX, &[1, 2]),
        saved(MAGIC, 1, 1, &[2], 2, &[1]),
    ] {
        assert!(refused(&text).contains("more bytes wanted"), "{}", refused(&text));
    }
    let large = vec![0; 65_537];
    assert!(read_debug(187, &saved(MAGIC, 1, 1, &[65_537], 65_537, &large)).is_ok());
    // Base64 takes a third more space.
    for (len, written) in [(65_536, 87_000..88_000), (65_537, 65_600..65_700)] {
        let tensor = Tensor::zeros(DType::U8, [len]).unwrap();
        let frame = debug_set(tensor.into());
        assert!(written.contains(&frame.bytes().unwrap().len()), "{}", frame.bytes().unwrap().len());
        assert!(wire::decode_frame(1, frame.bytes().unwrap()).is_ok());
    }
}

#[test]
fn unknown_numbers_are_errors() {
    let mut action = Frame::new(1, Vec::new(), Command::SyncAll).bytes().unwrap().to_vec();
    action[20] = 99;
    assert_eq!(wire::decode_frame(1, &action).unwrap_err().to_string(), "unknown command 99");

    let mut code = Frame::new(1, Vec::new(), Command::SyncAll).bytes().unwrap().to_vec();
    code[8] = 5;
    assert_eq!(wire::decode_frame(1, &code).unwrap_err().to_string(), "unknown packet code 5");

    let mut dtype = call(vec![DType::F32.into()]).bytes().unwrap().to_vec();
    let lanes = dtype.len() - 6;
    dtype[lanes] = 4;
    assert!(wire::decode_frame(1, &dtype).unwrap_err().to_string().starts_with("unknown dtype"));
}

#[test]
fn write_frame_appends_the_packet_of_a_frame_message() {
    let (mut to, mut all) = (Writer::default(), Vec::new());
    for (seq, len) in [(1, 0), (2, 7), (3, 8), (1 << 40, 1000)] {
        let bytes = vec![9; len];
        wire::write_frame(seq, &bytes, None, &mut to).unwrap();
        all.extend(Message::Frame { seq, bytes: bytes.into(), transfer: None }.encode().unwrap());
    }
    assert_eq!(to.into_bytes(), all);
}

#[test]
fn a_message_of_a_nodes_worker_cannot_contain_messages_of_a_node() {
    let inner = Message::From { workers: WorkerRange::new(4..5), message: Box::new(Message::Alive(Times::default())) };
    let outer = Message::From { workers: WorkerId::new(5).into(), message: Box::new(inner) };
    let refused = Message::decode(packet(&outer.encode().unwrap())).unwrap_err();
    assert!(matches!(refused, WireError::Unknown { what: "message", .. }), "{refused}");
}

#[test]
fn the_text_of_a_long_message_is_truncated() {
    assert_eq!(Message::Ready.to_string(), "Ready");
    let shown = Message::Bye("x".repeat(1 << 20)).to_string();
    assert!(shown.starts_with("Bye(\"xxx") && shown.ends_with("xxx…"), "{}", shown.len());
    assert_eq!(shown.chars().count(), 101);
}

#[test]
fn long_texts_of_a_failure_are_truncated_by_encoding() {
    let long = || "é".repeat(1 << 20);
    let causes = (0..100).map(|_| long()).collect();
    let failure = Failure { operation: long(), message: long(), causes, ..failure_of_worker_1() };
    let bytes = wire::encode_reply(&debug_get(), WorkerId::new(1), &Err(Arc::new(failure))).unwrap();
    let Ok(Err(back)) = wire::decode_reply(packet(&bytes)) else { panic!() };
    assert_eq!((back.operation.len(), back.message.len(), back.causes.len()), (64 << 10, 64 << 10, 32));
}

#[test]
fn the_reply_to_get_all_is_the_plain_value() {
    let command = Command::GetAll { register: RegisterId::new(3) };
    for value in [Value::Int(7), Value::from("a text of more than eight bytes"), Value::None] {
        let bytes = wire::encode_reply(&command, WorkerId::new(1), &Ok(value.clone())).unwrap();
        assert_eq!(wire::decode_reply(Packet::split(&bytes).unwrap().0).unwrap().unwrap(), value);
    }
    let frame = Frame::new(1, Vec::new(), command);
    let golden = "2000000000000000 04000000 02000000 01000000 5e00000000000000 01000000 0300000000000000";
    let golden: Vec<u8> = golden.replace(' ', "").as_bytes().chunks(2).map(hex).collect();
    assert_eq!(frame.bytes().unwrap(), golden);
}

fn hex(digits: &[u8]) -> u8 {
    u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap()
}

#[test]
fn a_user_error_above_64_kib_is_not_encoded() {
    assert!(UserError::new("tests::Diverged", vec![b'x'; UserError::MAX_BYTES]).is_some());
    assert!(UserError::new("tests::Diverged", vec![b'x'; UserError::MAX_BYTES + 1]).is_none());
    let user = UserError::new("tests::Diverged", vec![b'x'; UserError::MAX_BYTES]);
    let failure = Failure { user, ..failure_of_worker_1() };
    let bytes = wire::encode_reply(&debug_get(), WorkerId::new(1), &Err(Arc::new(failure.clone()))).unwrap();
    let reply = wire::decode_reply(Packet::split(&bytes).unwrap().0).unwrap();
    assert_eq!(*reply.unwrap_err(), failure);
    // A content that is one byte too long, as a faulty peer might send it.
    let len = [(UserError::MAX_BYTES as u64).to_le_bytes().as_slice(), b"x"].concat();
    let at = bytes.windows(9).position(|window| window == len).unwrap();
    let mut more = bytes.clone();
    more.splice(at..at + 8, (UserError::MAX_BYTES as u64 + 1).to_le_bytes());
    more.insert(at + 8, b'x');
    let packet = (u64::from_le_bytes(bytes[..8].try_into().unwrap()) + 1).to_le_bytes();
    more.splice(..8, packet);
    let refused = wire::decode_reply(Packet::split(&more).unwrap().0).unwrap_err();
    assert_eq!(refused, WireError::Expected("an error of at most 64 KiB"));
}

/// An int inside of `depth` arrays.
fn nested(depth: usize) -> Value {
    (0..depth).fold(Value::Int(7), |value, _| Value::from(vec![value]))
}

fn call_with(value: Value) -> Frame {
    let call = Command::CallPacked { register: RegisterId::new(1), function: RegisterId::new(2), args: vec![value] };
    Frame::new(1, Vec::new(), call)
}

#[test]
fn arrays_that_are_nested_too_deep_are_neither_written_nor_read() {
    let deepest = call_with(nested(Value::MAX_DEPTH));
    let mut bytes = deepest.bytes().unwrap().to_vec();
    assert!(wire::decode_frame(1, &bytes).is_ok());
    let error = call_with(nested(Value::MAX_DEPTH + 1)).bytes().unwrap_err().to_string();
    assert!(error.ends_with("expected arrays and maps that are nested at most 16 deep"), "{error}");
    // The innermost value is an int of 12 bytes. An array with this int instead is one level deeper.
    let int = bytes.split_off(bytes.len() - 12);
    bytes.extend([71u32, 71, 1, 0].into_iter().flat_map(u32::to_le_bytes));
    bytes.extend(int);
    let length = bytes.len() as u64 - 8;
    bytes[..8].copy_from_slice(&length.to_le_bytes());
    assert!(wire::decode_frame(1, &bytes).unwrap_err().to_string().contains("at most 16 deep"));
}

#[test]
fn an_array_that_claims_more_items_than_bytes_is_an_error() {
    let frame = call_with(Value::from(vec![Value::Int(1)]));
    let mut bytes = frame.bytes().unwrap().to_vec();
    let count = bytes.len() - 12 - 8;
    bytes[count..count + 8].copy_from_slice(&(1u64 << 60).to_le_bytes());
    let error = wire::decode_frame(1, &bytes).unwrap_err().to_string();
    assert!(error.contains("expected as many items as the packet has bytes for"), "{error}");
}

#[test]
fn a_register_in_an_array_is_an_error() {
    let error = call_with(Value::from(vec![Value::Register(RegisterId::new(3))])).bytes().unwrap_err().to_string();
    assert!(error.ends_with("expected no register in an array or map"), "{error}");
}

#[test]
fn large_tensors_in_arrays_and_maps_lie_beside_the_packet_in_their_order() {
    let tensor = |byte: u8, len: usize| Tensor::from_vec(vec![byte; len], len as i64).unwrap();
    let large = wire::INLINE_LIMIT + 1;
    let sent = [tensor(1, large), tensor(2, 10), tensor(3, large + 70), tensor(4, large), tensor(5, large)];
    let [a, b, c, d, e] = sent.each_ref().map(Value::from);
    let map = Value::from(vec![(Value::from("key"), c), (d, Value::Int(4))]);
    let frame = call(vec![Value::from(vec![a, b, map]), e]);
    let found = |frame: &Frame| {
        let mut found = Vec::new();
        let mut add = |tensor: &Tensor| found.push(tensor.to_vec::<u8>().unwrap());
        frame.command().values().iter().for_each(|value| value.visit_tensors(&mut add));
        found
    };
    let expected = sent.each_ref().map(|tensor| tensor.to_vec::<u8>().unwrap());
    assert_eq!(found(&wire::decode_frame(1, frame.bytes().unwrap()).unwrap()), expected);
    let (bytes, memory) = beside(&frame);
    assert!(bytes.len() < 500, "{} bytes", bytes.len());
    assert_eq!(found(&wire::decode_frame_beside(1, &bytes, Some(memory)).unwrap()), expected);
    let whole = Message::Frame { seq: frame.seq(), bytes: frame.bytes().unwrap().into(), transfer: None };
    assert!(frame.pieces().unwrap().unwrap().read(0, usize::MAX).unwrap() == whole.encode().unwrap());
}

#[test]
fn places_that_no_workers_can_have_are_refused() {
    // A packet with the integers 105, epoch, groups, nodes, and for each range of places its first one and their number.
    let decode = |numbers: &[i64]| {
        let args: Vec<i64> = [105, 1].iter().chain(numbers).copied().collect();
        let mut content = [4_i32, args.len() as i32].map(i32::to_le_bytes).concat();
        args.iter().for_each(|number| content.extend([&1_i32.to_le_bytes()[..], &number.to_le_bytes()].concat()));
        wire::decode_frame(1, &[&(content.len() as u64).to_le_bytes()[..], &content].concat())
    };
    let frame = decode(&[2, 1, 0, 2, 3, 2]).unwrap();
    let places = [0, 1, 3, 4].map(WorkerId::new);
    let members = Members::new(World::new(4, 2).unwrap(), places).unwrap().into();
    assert_eq!(*frame.command(), Command::Resize { epoch: 1, members });
    let most = i64::from(u32::MAX);
    let bad: [&[i64]; 10] = [
        &[],
        &[1, 1],
        &[1, 1, 0],
        &[0, 1, 0, 2],
        &[3, 1, 0, 2],
        &[1, 2, 0, 3],
        &[1, 1, 3, 2, 0, 1],
        &[1, 1, 0, 2, 2, 1],
        &[1, 1, 0, 0],
        &[1, 1, most, 2],
    ];
    for numbers in bad {
        assert!(decode(numbers).is_err(), "{numbers:?}");
    }
}
