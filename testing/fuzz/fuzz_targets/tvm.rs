//! The stream of TVM's packets, as a worker, a node and a controller decode it: in one piece and in single bytes it has
//! the same packets; an envelope that was read is written as it came.

#![no_main]

use std::sync::Arc;

use disco_channel::tvm::Packets;
use disco_core::wire::tvm::{self, Envelope, EnvelopeAction, Metadata};
use disco_core::wire::{Packet, WireError, decode_reply};
use disco_core::{Command, Frame, RegisterId, Value, WorkerId};

disco_fuzz::target!(check, seeds);

/// Largest packet, in bytes.
const LIMIT: usize = 64 << 10;

fn check(bytes: &[u8]) -> Result<(), WireError> {
    let whole = packets(&[bytes])?;
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(packets(&single).expect("the division of a stream does not matter"), whole);
    for packet in &whole {
        let content = &packet[Packet::PREFIX..];
        // Each may be garbage.
        _ = Frame::decode(1, packet);
        _ = Packet::read(content).and_then(decode_reply);
        _ = tvm::first_number(content);
        if let Ok(metadata) = Metadata::decode(content) {
            let written = metadata.encode();
            assert_eq!(Metadata::decode(&written[Packet::PREFIX..]).expect("it was read before"), metadata);
        }
        if let Ok((envelope, rest)) = Envelope::unwrap_content(content) {
            let written = envelope.wrap(Some(&rest)).expect("a packet that was read can be written");
            let again = Envelope::unwrap_content(&written[Packet::PREFIX..]).expect("it was read before");
            assert_eq!(again, (envelope, rest));
        }
    }
    Ok(())
}

fn packets(chunks: &[&[u8]]) -> Result<Vec<Vec<u8>>, WireError> {
    let (mut packets, mut found) = (Packets::new(LIMIT), Vec::new());
    for chunk in chunks {
        packets.put(chunk);
        while let Some(packet) = packets.take()? {
            found.push(packet);
        }
    }
    Ok(found)
}

fn seeds() -> Vec<Vec<u8>> {
    let (register, worker) = (RegisterId::new(5), WorkerId::new(1));
    let args =
        vec![Value::Int(7), Value::from("a longer text"), Value::Shape([2, 3].into()), Value::Register(register)];
    let commands = [
        Command::Shutdown,
        Command::KillReg { register },
        Command::GetGlobalFunc { register, name: "demo.function".into() },
        Command::CallPacked { register, function: RegisterId::new(2), args },
        Command::SyncWorker { worker },
        Command::DebugGet { register, worker },
        Command::DebugSet { register, worker, value: Value::from("a longer text") },
    ];
    let encoded = commands.iter().map(|command| tvm::encode(command).expect("TVM understands a command of a seed"));
    let mut seeds: Vec<Vec<u8>> = encoded.collect();
    let failure = Err(Arc::new(disco_fuzz::failure()));
    for reply in [Ok(Value::Float(0.5)), Ok(Value::from(vec![1u8; 20])), failure] {
        seeds.push(tvm::encode_tvm_reply(&commands[5], worker, &reply).expect("a reply of a seed can be written"));
    }
    let send = Envelope::to(EnvelopeAction::Send, worker);
    seeds.push(send.wrap(Some(&seeds[3])).expect("a packet can be wrapped"));
    seeds.push(Envelope::to_all(EnvelopeAction::Shutdown).wrap(None).expect("an envelope can be alone"));
    seeds.push(Metadata { nodes: 2, workers_per_node: 4, groups: 1, node: 1 }.encode());
    let all = seeds.concat();
    seeds.push(all);
    seeds
}
