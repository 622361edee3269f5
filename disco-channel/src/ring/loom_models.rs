//! Loom runs these through the orders of events that the memory model allows, with a bounded number of preemptions
//! (`LOOM_MAX_PREEMPTIONS` sets another bound).
#![cfg(loom)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use loom::thread;

use super::{Closed, Reader, Refused, Release, WakeTarget, Writer, ring};

type Item = Arc<usize>;

fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(run);
}

fn pair(capacity: usize) -> (Writer<Item>, Reader<Item>, Reader<Item>) {
    let (writer, mut readers) = ring(capacity, 2, || ());
    let (second, first) = (readers.remove(1), readers.remove(0));
    (writer, first, second)
}

/// Reads all of `items`, then drops the reader.
fn reads(mut reader: Reader<Item>, items: std::ops::Range<usize>) -> thread::JoinHandle<()> {
    thread::spawn(move || items.for_each(|item| assert_eq!(**reader.recv().unwrap(), item)))
}

/// Sends an item, and returns once the ring has taken it.
fn send(writer: &mut Writer<Item>, item: usize) -> Weak<usize> {
    send_to(writer, item, Release::ByLastReader)
}

fn send_to(writer: &mut Writer<Item>, item: usize, release: Release) -> Weak<usize> {
    let item = Arc::new(item);
    while writer.send_to(&item, WakeTarget::All, release) == Err(Refused::Full) {
        thread::yield_now();
    }
    Arc::downgrade(&item)
}

#[test]
fn two_readers_get_every_item_in_order_and_free_it() {
    model(3, || {
        let (mut writer, first, second) = pair(2);
        let readers = [reads(first, 0..2), reads(second, 0..2)];
        let items: Vec<_> = (0..2).map(|item| send(&mut writer, item)).collect();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert!(items.iter().all(|item| item.upgrade().is_none()));
    });
}

#[test]
fn a_slot_is_reused_only_after_its_readers() {
    model(3, || {
        let (mut writer, mut readers) = ring(2, 1, || ());
        let reader = reads(readers.remove(0), 0..4);
        (0..4).for_each(|item| drop(send(&mut writer, item)));
        reader.join().unwrap();
    });
}

/// The writer drops an item, or reuses its slot, only after both readers have finished with it.
#[test]
fn the_writer_drops_an_item_after_its_readers() {
    model(2, || {
        let (mut writer, first, second) = pair(1);
        let readers = [reads(first, 0..2), reads(second, 0..2)];
        let items: Vec<_> = (0..2).map(|item| send_to(&mut writer, item, Release::ByWriter)).collect();
        assert!(items[0].upgrade().is_none(), "its slot was reused");
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        drop(writer);
        assert!(items[1].upgrade().is_none());
    });
}

#[test]
fn a_sleeping_reader_is_woken_for_each_item() {
    model(3, || {
        let (mut writer, mut readers) = ring(4, 1, || ());
        let reader = reads(readers.remove(0), 0..3);
        (0..3).for_each(|item| drop(send(&mut writer, item)));
        reader.join().unwrap();
    });
}

#[test]
fn woken_readers_wake_the_others() {
    model(2, || {
        let (mut writer, readers) = ring(4, 3, || ());
        let readers: Vec<_> = readers.into_iter().map(|reader| reads(reader, 0..1)).collect();
        send(&mut writer, 0);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// An item for one reader wakes that reader; the other sleeps on until an item for all readers.
#[test]
fn a_reader_that_was_passed_over_gets_the_next_item_for_all() {
    model(2, || {
        let (mut writer, first, second) = pair(4);
        let readers = [reads(first, 0..2), reads(second, 0..2)];
        writer.send_to(&Arc::new(0), WakeTarget::One(1), Release::ByWriter).unwrap();
        writer.send(&Arc::new(1)).unwrap();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// A reader that sleeps after an item of its own wakes the reader that was passed over.
#[test]
fn the_target_of_an_item_wakes_the_rest_before_it_sleeps_for_long() {
    model(2, || {
        let (mut writer, first, mut second) = pair(4);
        let passed_over = reads(first, 0..1);
        let target = thread::spawn(move || while second.recv().is_ok() {});
        writer.send_to(&Arc::new(0), WakeTarget::One(1), Release::ByWriter).unwrap();
        passed_over.join().unwrap();
        drop(writer);
        target.join().unwrap();
    });
}

/// The only reader sleeps for an interval at most after an item that did not concern it.
#[test]
fn the_only_reader_gets_items_for_nobody() {
    model(3, || {
        let (mut writer, mut readers) = ring(4, 1, || ());
        let reader = reads(readers.remove(0), 0..2);
        for item in 0..2 {
            writer.send_to(&Arc::new(item), WakeTarget::Nobody, Release::ByWriter).unwrap();
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_dropped_reader_gives_up_its_shares() {
    model(2, || {
        let (mut writer, first, second) = pair(2);
        let mut items = vec![send(&mut writer, 0)];
        let leaver = thread::spawn(move || drop(second));
        let reader = reads(first, 0..3);
        // The last item is dropped by the writer if both readers are live when it is published.
        let rest = [Release::ByLastReader, Release::ByWriter].into_iter();
        items.extend((1..).zip(rest).map(|(item, release)| send_to(&mut writer, item, release)));
        leaver.join().unwrap();
        reader.join().unwrap();
        drop(writer);
        assert!(items.iter().all(|item| item.upgrade().is_none()));
    });
}

#[test]
fn dropping_the_last_reader_closes_the_ring() {
    model(3, || {
        let (mut writer, mut readers) = ring(2, 1, || ());
        let leaver = thread::spawn(move || drop(readers.remove(0)));
        let item = Arc::new(0);
        let _ = writer.send(&item);
        leaver.join().unwrap();
        assert_eq!(writer.send(&item), Err(Refused::Closed));
        assert_eq!(Arc::strong_count(&item), 1);
    });
}

#[test]
fn closing_wakes_sleepers() {
    model(3, || {
        let (writer, first, second) = pair(2);
        let readers = [first, second].map(|mut reader| thread::spawn(move || assert_eq!(reader.recv(), Err(Closed))));
        writer.control().close();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn on_room_is_called_after_the_ring_was_found_full() {
    model(3, || {
        let notified = Arc::new(AtomicUsize::new(0));
        // On a thread of its own, since loom takes an unpark for the end of a join.
        let writing = thread::spawn({
            let notified = notified.clone();
            move || {
                let waiter = thread::current();
                let on_room = move || {
                    notified.fetch_add(1, Ordering::Relaxed);
                    waiter.unpark();
                };
                let (mut writer, mut readers) = ring(2, 1, on_room);
                let mut reader = readers.remove(0);
                let item = Arc::new(0);
                (0..2).for_each(|_| writer.send(&item).unwrap());
                let reading = thread::spawn(move || (0..3).for_each(|_| _ = reader.recv().unwrap()));
                while writer.send(&item) == Err(Refused::Full) {
                    thread::park();
                }
                (writer, reading)
            }
        });
        let (_writer, reading) = writing.join().unwrap();
        reading.join().unwrap();
        assert!(notified.load(Ordering::Relaxed) <= 1);
    });
}
