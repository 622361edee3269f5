//! Loom models of the shared ring, with a bounded number of preemptions.

use loom::thread;

use super::{Memory, Reader, WakeTarget, Writer};
use crate::ring::sync::AtomicBool;

fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(run);
}

fn read(reader: &mut Reader) -> Vec<u8> {
    let mut record = Vec::new();
    while reader.take(&mut record).unwrap().is_none() {
        reader.wait(&AtomicBool::new(false));
    }
    record
}

/// Records come whole and in order, although words are reused, and sleeping readers are woken.
#[test]
fn records_come_in_order_and_wake_sleepers() {
    model(3, || {
        let memory = Memory::new(1, 8);
        let (mut writer, mut reader) = (Writer::new(memory.clone()), Reader::new(memory, 0));
        let writes = thread::spawn(move || {
            for record in [&b"12345678"[..], b"a", b"xy"] {
                while writer.send(7, record, WakeTarget::All).is_err() {
                    writer.room(record.len()).unwrap();
                    thread::yield_now();
                }
            }
        });
        assert_eq!(read(&mut reader), b"12345678");
        assert_eq!(read(&mut reader), b"a");
        assert_eq!(read(&mut reader), b"xy");
        writes.join().unwrap();
    });
}

/// Two sleeping readers both wake up.
#[test]
fn both_readers_get_a_record() {
    model(2, || {
        let memory = Memory::new(2, 4);
        let mut writer = Writer::new(memory.clone());
        let other = {
            let mut reader = Reader::new(memory.clone(), 1);
            thread::spawn(move || assert_eq!(read(&mut reader), b"a"))
        };
        let mut reader = Reader::new(memory, 0);
        let writes = thread::spawn(move || writer.send(7, b"a", WakeTarget::All).unwrap());
        assert_eq!(read(&mut reader), b"a");
        other.join().unwrap();
        writes.join().unwrap();
    });
}

/// A record wakes its target while another reader sleeps.
#[test]
fn a_record_wakes_its_target() {
    model(2, || {
        let memory = Memory::new(2, 8);
        let mut writer = Writer::new(memory.clone());
        let other = {
            let mut reader = Reader::new(memory.clone(), 1);
            thread::spawn(move || [read(&mut reader), read(&mut reader)])
        };
        let writes = thread::spawn(move || {
            writer.send(7, b"a", WakeTarget::One(0)).unwrap();
            writer.send(7, b"b", WakeTarget::One(1)).unwrap();
        });
        assert_eq!(read(&mut Reader::new(memory, 0)), b"a");
        assert_eq!(other.join().unwrap(), [b"a", b"b"]);
        writes.join().unwrap();
    });
}

/// A writer that finds the ring full finds room when it checks again, or a reader tells it.
#[test]
fn the_writer_of_a_full_ring_finds_room_or_is_told_of_it() {
    model(4, || {
        let memory = Memory::new(1, 8);
        let (mut writer, mut reader) = (Writer::new(memory.clone()), Reader::new(memory, 0));
        writer.send(7, b"a", WakeTarget::All).unwrap();
        writer.send(7, b"b", WakeTarget::All).unwrap();
        let reads = thread::spawn(move || {
            let mut record = Vec::new();
            let mut frees_half = false;
            while let Some(taken) = reader.take(&mut record).unwrap() {
                frees_half |= taken.frees_half;
            }
            frees_half
        });
        let room = writer.room(8).unwrap();
        assert!(reads.join().unwrap() || room >= Some(8));
    });
}
