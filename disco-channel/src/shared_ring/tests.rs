//! Tests of the shared ring within one process, and with corrupted words.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use disco_core::shared_memory::Segment;

use super::{Garbage, Memory, Reader, WakeTarget, Writer};
use crate::ring::Refused;

const CAPACITY: usize = 64;

fn ring(readers: usize) -> (Arc<Segment>, Writer, Vec<Reader>) {
    let segment = Arc::new(Segment::create(8 * Memory::words(readers, CAPACITY)).unwrap());
    let memory = Memory::new(segment.clone(), readers, CAPACITY).unwrap();
    let all = (0..readers).map(|index| Reader::new(memory.clone(), index)).collect();
    (segment, Writer::new(memory), all)
}

#[test]
fn an_empty_record_needs_room_too() {
    let (_, mut writer, _) = ring(1);
    for (bytes, left) in [(8 * (CAPACITY - 5), Some(8)), (8, None)] {
        writer.send(7, &vec![0; bytes], WakeTarget::All).unwrap();
        assert_eq!(writer.room(0).unwrap(), left);
    }
    assert_eq!(writer.send(7, b"", WakeTarget::All), Err(Refused::Full));
}

#[test]
fn a_retired_reader_does_not_block_the_writer() {
    let (_, mut writer, mut readers) = ring(2);
    let mut bytes = Vec::new();
    writer.retire(1);
    for _ in 0..3 * CAPACITY {
        assert!(writer.room(1).unwrap() >= Some(1));
        writer.send(7, b"x", WakeTarget::All).unwrap();
        readers[0].take(&mut bytes).unwrap().unwrap();
    }
}

#[test]
fn a_sleeping_reader_wakes_up_for_its_stop_flag() {
    let (segment, _writer, mut readers) = ring(1);
    let stop = Arc::new(AtomicBool::new(false));
    let sleeper = {
        let (stop, mut reader) = (stop.clone(), readers.remove(0));
        thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                reader.wait(&stop);
            }
        })
    };
    let memory = Memory::new(segment, 1, CAPACITY).unwrap();
    while memory.sleepers().load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    stop.store(true, Ordering::SeqCst);
    Reader::wake(&memory);
    sleeper.join().unwrap();
}

#[test]
fn garbage_in_any_word_is_an_error() {
    let mut bytes = Vec::new();
    let (segment, mut writer, mut readers) = ring(1);
    segment.words()[0].store(1000, Ordering::SeqCst);
    assert_eq!(readers[0].take(&mut bytes), Err(Garbage("its head")));

    let (segment, _, mut readers) = ring(1);
    segment.words()[0].store(2, Ordering::SeqCst);
    for length in [1, 1 << 60, u64::MAX] {
        segment.words()[112].store(length, Ordering::SeqCst);
        assert_eq!(readers[0].take(&mut bytes), Err(Garbage("the length of a record")));
    }

    for cursor in [1, u64::MAX] {
        segment.words()[80].store(0, Ordering::SeqCst);
        let (segment, mut writer, _) = ring(1);
        segment.words()[80].store(cursor, Ordering::SeqCst);
        assert_eq!(writer.room(8 * CAPACITY), Err((0, Garbage("its cursor in the ring"))));
    }
    assert!(writer.send(7, b"x", WakeTarget::All).is_ok());
    assert!(Memory::new(segment.clone(), 1, CAPACITY + 1).is_err() && Memory::new(segment, 9, CAPACITY).is_err());
}
