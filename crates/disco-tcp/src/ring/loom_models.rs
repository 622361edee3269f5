//! Loom models of the ring, with a bounded number of preemptions.

use loom::sync::{Arc, Notify};
use loom::thread;

use super::{CAPACITY, Memory, Reader, Writer};

fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(run);
}

/// The connection beside the ring, which wakes each end.
#[derive(Default)]
struct Connection {
    reader: Notify,
    writer: Notify,
}

/// Writes a stream, and sleeps whenever the ring is full.
fn write(mut writer: Writer, stream: &[u8], connection: &Connection) {
    let mut sent = 0;
    while sent < stream.len() {
        let (head, rest) = stream[sent..].split_at(1);
        let (count, wakes) = writer.write([head, rest]).unwrap();
        if wakes {
            connection.reader.notify();
        }
        sent += count;
        if count == 0 && !writer.may_go_on(true).unwrap() {
            connection.writer.wait();
        }
    }
}

/// Reads a stream, and sleeps whenever the ring is empty.
fn read(mut reader: Reader, stream: &mut [u8], connection: &Connection) {
    let mut received = 0;
    while received < stream.len() {
        let (count, wakes) = reader.read(&mut stream[received..]).unwrap();
        if wakes {
            connection.writer.notify();
        }
        received += count;
        if count == 0 && !reader.may_go_on(true).unwrap() {
            connection.reader.wait();
        }
    }
}

/// Bytes come in order, although their places are used again, and an end that sleeps is woken.
#[test]
fn a_stream_longer_than_the_ring_arrives_while_its_ends_sleep() {
    model(2, || {
        const STREAM: [u8; CAPACITY + 2] = [1, 2, 3, 4, 5, 6];
        let (memory, connection) = (Memory::new(), Arc::new(Connection::default()));
        let (writer, other) = (Writer::new(memory.clone()), connection.clone());
        let writes = thread::spawn(move || write(writer, &STREAM, &other));
        let mut received = [0; STREAM.len()];
        read(Reader::new(memory), &mut received, &connection);
        assert_eq!(received, STREAM);
        writes.join().unwrap();
    });
}
