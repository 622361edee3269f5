//! A writer and readers in the orders of events that the memory model allows, with a bounded number of preemptions.

use loom::thread;

use super::{Memory, Reader, Whom, Writer};
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

/// Records come whole and in order, though words are used again, and whoever sleeps is woken.
#[test]
fn records_come_in_order_and_nobody_sleeps_through_one() {
    model(3, || {
        let memory = Memory::new(1, 8);
        let (mut writer, mut reader) = (Writer::new(memory.clone()), Reader::new(memory, 0));
        let writes = thread::spawn(move || {
            for record in [&b"12345678"[..], b"a", b"xy"] {
                while writer.send(7, record, Whom::All).is_err() {
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

/// Two readers sleep, and both wake up.
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
        let writes = thread::spawn(move || writer.send(7, b"a", Whom::All).unwrap());
        assert_eq!(read(&mut reader), b"a");
        other.join().unwrap();
        writes.join().unwrap();
    });
}

/// One reader is woken for what concerns it, though another sleeps.
#[test]
fn a_record_wakes_the_one_it_concerns() {
    model(2, || {
        let memory = Memory::new(2, 8);
        let mut writer = Writer::new(memory.clone());
        let other = {
            let mut reader = Reader::new(memory.clone(), 1);
            thread::spawn(move || [read(&mut reader), read(&mut reader)])
        };
        let writes = thread::spawn(move || {
            writer.send(7, b"a", Whom::One(0)).unwrap();
            writer.send(7, b"b", Whom::One(1)).unwrap();
        });
        assert_eq!(read(&mut Reader::new(memory, 0)), b"a");
        assert_eq!(other.join().unwrap(), [b"a", b"b"]);
        writes.join().unwrap();
    });
}

/// A writer that finds the ring full either finds room on its second look, or a reader tells.
#[test]
fn a_full_ring_s_writer_hears_of_room() {
    model(4, || {
        let memory = Memory::new(1, 8);
        let (mut writer, mut reader) = (Writer::new(memory.clone()), Reader::new(memory, 0));
        writer.send(7, b"a", Whom::All).unwrap();
        writer.send(7, b"b", Whom::All).unwrap();
        let reads = thread::spawn(move || {
            let mut record = Vec::new();
            let mut tells = false;
            while let Some(taken) = reader.take(&mut record).unwrap() {
                tells |= taken.frees_half;
            }
            tells
        });
        let room = writer.room(8).unwrap();
        assert!(reads.join().unwrap() || room >= Some(8));
    });
}
