//! Replies of workers, also in the encoding of TVM's workers: a decoded value or failure can be encoded, and decodes to
//! the same one.

#![no_main]

use std::sync::Arc;

use disco_core::channel::Reply;
use disco_core::wire::{Packet, WireError, Writer, decode_reply, encode_reply};
use disco_core::{Command, RegisterId, Value, WorkerId};

/// The worker of the replies.
const WORKER: WorkerId = WorkerId::new(1);
/// The command whose reply has a value.
const GET: Command = Command::DebugGet { register: RegisterId::new(5), worker: WORKER };

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), WireError> {
    let reply = read(bytes)?;
    let written = encode_reply(&GET, WORKER, &reply).expect("an answer that was read can be written");
    let again = read(&written).expect("an answer that was written can be read");
    assert_eq!(again.is_ok(), reply.is_ok());
    assert_eq!(encode_reply(&GET, WORKER, &again).expect("it was written before"), written);
    drop(match reply {
        Ok(value) => value.to_string(),
        Err(failure) => failure.to_string(),
    });
    Ok(())
}

fn read(bytes: &[u8]) -> Result<Reply, WireError> {
    Packet::split(bytes).and_then(|(packet, _)| decode_reply(packet))
}

fn seeds() -> Vec<Vec<u8>> {
    let sync = Command::SyncWorker { worker: WORKER };
    let set = Command::DebugSet { register: RegisterId::new(5), worker: WORKER, value: Value::None };
    let mut replies = vec![
        (sync, Ok(Value::None)),
        (Command::SyncAll, Ok(Value::None)),
        (set, Ok(Value::None)),
        (GET, Err(Arc::new(disco_fuzz::failure()))),
    ];
    replies.extend(disco_fuzz::values().into_iter().map(|value| (GET, Ok(value))));
    let written = |(command, reply): &(Command, Reply)| encode_reply(command, WORKER, reply);
    let ours = replies.iter().map(|reply| written(reply).expect("an answer of a seed can be written"));
    let theirs = [("int", "-7"), ("float", "1.5e3"), ("bool", "true"), ("None", "null"), ("ffi.Bytes", "\"AP8Q\"")];
    ours.chain(theirs.map(graph)).collect()
}

/// A reply that TVM writes and Disco never does: a plain or short value as the root of an object graph.
fn graph((kind, data): (&str, &str)) -> Vec<u8> {
    let text = format!(r#"{{"nodes":[{{"type":"None"}},{{"type":"{kind}","data":{data}}}],"root_index":1}}0"#);
    let (mut content, mut packet) = (Writer::default(), Writer::default());
    // Code and number of arguments, then the number of the command and a wrapped object.
    [4, 2, 1].into_iter().for_each(|word| content.i32(word));
    content.i64(7);
    [187, 0].into_iter().for_each(|word| content.i32(word));
    content.bytes(text.as_bytes());
    packet.bytes(&content.into_bytes());
    packet.into_bytes()
}
