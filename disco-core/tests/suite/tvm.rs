//! TVM's dialect: the messages that its workers and controllers understand, and the envelopes of its nodes.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use disco_core::wire::tvm::{self, Envelope, EnvelopeAction, Metadata};
use disco_core::wire::{self, Packet};
use disco_core::{Command, DType, Frame, Local, RegisterId, Tensor, Value, WorkerId};
use proptest::collection::vec;
use proptest::prelude::*;

const WORKER: WorkerId = WorkerId::new(1);
const REGISTER: RegisterId = RegisterId::new(5);

fn call(args: Vec<Value>) -> Command {
    Command::CallPacked { register: REGISTER, function: RegisterId::new(2), args }
}

fn set(value: Value) -> Command {
    Command::DebugSet { register: REGISTER, worker: WORKER, value }
}

fn get() -> Command {
    Command::DebugGet { register: REGISTER, worker: WORKER }
}

/// 128 KiB, above the size from which Disco's own packets have no debug objects.
fn large() -> Tensor {
    Tensor::from_slice(&(0..1 << 15).collect::<Vec<i32>>(), [1 << 15]).unwrap()
}

fn content(packet: &[u8]) -> &[u8] {
    &packet[Packet::PREFIX..]
}

/// The type of the last argument of a command or reply before it: a wrapper is an object with the type 0 inside.
fn has_wrapper(packet: &[u8], at: usize) -> bool {
    packet[at + 4..at + 8] == [0; 4]
}

#[test]
fn large_tensors_are_debug_objects_in_tvm_s_dialect_only() {
    let (own, theirs) = (Frame::new(1, [], set(large().into())), tvm::encode(&set(large().into())).unwrap());
    // After length, code, count and three numbers.
    let at = 8 + 8 + 3 * 12;
    assert!(!has_wrapper(own.bytes().unwrap(), at));
    assert!(has_wrapper(&theirs, at));
    let back = Frame::decode(1, &theirs).unwrap();
    let Command::DebugSet { value: Value::Tensor(back), .. } = back.command() else { panic!("{back:?}") };
    assert_eq!(back.to_vec::<i32>().unwrap(), large().to_vec::<i32>().unwrap());
    let reply = tvm::encode_tvm_reply(&get(), WORKER, &Ok(large().into())).unwrap();
    assert!(has_wrapper(&reply, 8 + 8 + 12));
    let reply = wire::decode_reply(Packet::split(&reply).unwrap().0).unwrap().unwrap();
    let Value::Tensor(back) = reply else { panic!("{reply}") };
    assert_eq!(back.to_vec::<i32>().unwrap(), large().to_vec::<i32>().unwrap());
}

#[test]
fn commands_of_disco_alone_are_refused_with_their_name() {
    let refused = |command: Command| tvm::encode(&command).unwrap_err().to_string();
    let this = "TVM's workers do not understand this command";
    assert_eq!(refused(Command::SyncAll), format!("sync_all: {this}"));
    assert_eq!(refused(Command::GetAll { register: REGISTER }), format!("get_all: {this}"));
    assert_eq!(refused(Command::Recover { epoch: 1 }), format!("recover: {this}"));
    let copy = Command::CopyToWorker0 { register: REGISTER, host: Local(None) };
    assert_eq!(refused(copy), format!("copy_to_worker_0: {this}"));
    let tensor = Tensor::zeros(DType::F32, [2]).unwrap();
    assert!(refused(call(vec![tensor.into()])).starts_with("call: TVM's workers do not understand a tensor"));
}

#[test]
fn a_reply_is_recognised_by_the_number_of_its_command() {
    let sync = Command::SyncWorker { worker: WORKER };
    for (command, number) in [(&sync, 4), (&get(), 7), (&set(Value::None), 8)] {
        for answer in 0..100 {
            // 67 is the failure of a worker of Disco.
            assert_eq!(tvm::is_reply_to(answer, command), answer == number || answer == 67, "{command:?}: {answer}");
        }
    }
    assert!(!tvm::is_reply_to(3, &call(vec![])));
}

#[test]
fn packets_of_tvm_s_sockets_have_known_bytes() {
    let int = |number: i64| [&1i32.to_le_bytes()[..], &number.to_le_bytes()].concat();
    let packet = |numbers: &[i64]| {
        let args: Vec<u8> = numbers.iter().flat_map(|number| int(*number)).collect();
        let head = [4i32, numbers.len() as i32].map(i32::to_le_bytes).concat();
        [&((8 + args.len()) as u64).to_le_bytes()[..], &head, &args].concat()
    };
    let metadata = Metadata { nodes: 2, workers_per_node: 4, groups: 1, node: 1 };
    assert_eq!(metadata.encode(), packet(&[2, 4, 1, 1]));
    assert_eq!(Metadata::decode(content(&packet(&[2, 4, 1, 1]))).unwrap(), metadata);
    assert_eq!(Metadata::decode(content(&packet(&[2, 4, 1]))).unwrap_err().to_string(), "expected an int");
    assert!(Metadata::decode(content(&packet(&[2, -4, 1, 1]))).is_err());
    assert_eq!(Envelope::to_all(EnvelopeAction::Shutdown).wrap(None).unwrap(), packet(&[0, -1]));
    assert_eq!(Envelope::to(EnvelopeAction::Receive, WORKER).wrap(None).unwrap(), packet(&[2, 1]));
    let kill = tvm::encode(&Command::KillReg { register: REGISTER }).unwrap();
    assert_eq!(Envelope::to_all(EnvelopeAction::Send).wrap(Some(&kill)).unwrap(), packet(&[1, -1, 1, 5]));
    let unknown = Envelope::unwrap_content(content(&packet(&[3, -1]))).unwrap_err();
    assert_eq!(unknown.to_string(), "unknown action of a node 3");
}

/// Packets of TVM 0.27 to its node 1 of two nodes with one worker each: `SocketSession(2, 1, 1, …)`,
/// `get_global_func("tests.disco.add_one")`, a call of it with 41, `_sync_worker(1)` (two packets) and `shutdown()`.
const CAPTURED: [&str; 6] = [
    "380000000000000004000000040000000100000002000000000000000100000001000000000000000100000001000000\
                00000000010000000100000000000000",
    "5700000000000000040000000500000001000000010000000000000001000000ffffffffffffffff0100000002000000\
                0000000001000000010000000000000008000000130000000000000074657374732e646973636f2e6164645f6f6e65",
    "5000000000000000040000000600000001000000010000000000000001000000ffffffffffffffff0100000003000000\
                00000000010000000200000000000000010000000100000000000000010000002900000000000000",
    "3800000000000000040000000400000001000000010000000000000001000000ffffffffffffffff0100000004000000\
                00000000010000000100000000000000",
    "20000000000000000400000002000000010000000200000000000000010000000100000000000000",
    "2000000000000000040000000200000001000000000000000000000001000000ffffffffffffffff",
];

#[test]
fn packets_captured_from_tvm_s_sockets_are_read_and_written_alike() {
    let captured = CAPTURED.map(|hex| {
        let hex: String = hex.split_whitespace().collect();
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect::<Vec<u8>>()
    });
    let metadata = Metadata { nodes: 2, workers_per_node: 1, groups: 1, node: 1 };
    assert_eq!(Metadata::decode(content(&captured[0])).unwrap(), metadata);
    assert_eq!(metadata.encode(), captured[0]);
    let (result, function) = (RegisterId::new(2), RegisterId::new(1));
    let call = Command::CallPacked { register: result, function, args: vec![Value::Int(41)] };
    let lookup = Command::GetGlobalFunc { register: function, name: "tests.disco.add_one".into() };
    for (packet, command) in captured[1..].iter().zip([lookup, call, Command::SyncWorker { worker: WORKER }]) {
        let (envelope, rest) = Envelope::unwrap_content(content(packet)).unwrap();
        assert_eq!(envelope, Envelope::to_all(EnvelopeAction::Send));
        assert_eq!(Frame::decode(1, &rest).unwrap().command(), &command);
        assert_eq!(envelope.wrap(Some(&tvm::encode(&command).unwrap())).unwrap(), *packet);
    }
    assert_eq!(Envelope::to(EnvelopeAction::Receive, WORKER).wrap(None).unwrap(), captured[4]);
    assert_eq!(Envelope::to_all(EnvelopeAction::Shutdown).wrap(None).unwrap(), captured[5]);
}

/// A value that can be an argument for workers of TVM.
fn argument() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::None),
        any::<i64>().prop_map(Value::Int),
        any::<bool>().prop_map(Value::Bool),
        (-1e9..1e9).prop_map(Value::Float),
        ".{0,20}".prop_map(Value::from),
        vec(any::<u8>(), 0..40).prop_map(Value::from),
        vec(any::<i64>(), 0..6).prop_map(|dims| Value::Shape(dims.into())),
        (0..RegisterId::COUNT).prop_map(|id| Value::Register(id.into())),
    ]
}

fn action() -> impl Strategy<Value = EnvelopeAction> {
    prop_oneof![Just(EnvelopeAction::Shutdown), Just(EnvelopeAction::Send), Just(EnvelopeAction::Receive)]
}

proptest! {
    #[test]
    fn a_call_in_an_envelope_arrives_complete(args in vec(argument(), 0..6), action in action(), worker: Option<u32>) {
        let envelope = Envelope { action, worker: worker.map(WorkerId::new) };
        let packet = tvm::encode(&call(args.clone())).unwrap();
        let wrapped = envelope.wrap(Some(&packet)).unwrap();
        let (back, rest) = Envelope::unwrap_content(content(&wrapped)).unwrap();
        prop_assert_eq!((back, &rest), (envelope, &packet));
        let frame = Frame::decode(1, &rest).unwrap();
        prop_assert_eq!(frame.command(), &call(args));
    }

    #[test]
    fn a_value_of_a_reply_arrives_complete(value in argument()) {
        prop_assume!(!matches!(value, Value::Register(_)));
        let packet = tvm::encode_tvm_reply(&get(), WORKER, &Ok(value.clone())).unwrap();
        prop_assert!(tvm::is_reply_to(tvm::first_number(content(&packet)).unwrap(), &get()));
        let reply = wire::decode_reply(Packet::split(&packet).unwrap().0).unwrap();
        prop_assert_eq!(reply.unwrap(), value);
    }

    #[test]
    fn a_flipped_byte_of_an_envelope_never_panics(args in vec(argument(), 0..6), at: prop::sample::Index, with: u8) {
        let envelope = Envelope::to(EnvelopeAction::Send, WORKER);
        let mut packet = envelope.wrap(Some(&tvm::encode(&call(args)).unwrap())).unwrap();
        let at = at.index(packet.len());
        packet[at] ^= with;
        if let Some(Ok((_, rest))) = packet.get(Packet::PREFIX..).map(Envelope::unwrap_content) {
            _ = Frame::decode(1, &rest);
        }
        _ = Metadata::decode(content(&packet));
        _ = tvm::first_number(content(&packet));
    }
}

#[test]
fn a_failure_as_a_reply_has_more_arguments_than_tvm_reads() {
    let failure = disco_core::error::Failure {
        worker: WORKER,
        command: 7,
        operation: "f".into(),
        register: None,
        message: "no luck".into(),
        causes: Vec::new(),
        aborted: false,
        kind: disco_core::error::ErrorKind::Invalid,
        user: None,
    };
    let reply = Err(Arc::new(failure));
    for command in [Command::SyncWorker { worker: WORKER }, get(), set(Value::None)] {
        let packet = tvm::encode_tvm_reply(&command, WORKER, &reply).unwrap();
        assert!(Packet::split(&packet).unwrap().0.rest().unwrap().len() > 2);
        assert_eq!(wire::decode_reply(Packet::split(&packet).unwrap().0).unwrap(), reply);
    }
}
