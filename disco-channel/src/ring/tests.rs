//! Tests of the ring on one thread, and on many under load; `loom_models` checks interleavings.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::{CAPACITY, Closed, Reader, Refused, Release, WakeTarget, Writer, ring};

fn one<T: Clone>(capacity: usize) -> (Writer<T>, Reader<T>) {
    let (writer, mut readers) = ring(capacity, 1, || ());
    (writer, readers.remove(0))
}

fn pair<T: Clone>(capacity: usize) -> (Writer<T>, Reader<T>, Reader<T>) {
    let (writer, mut readers) = ring(capacity, 2, || ());
    (writer, readers.remove(0), readers.remove(0))
}

fn is_free<T>(item: &Weak<T>) -> bool {
    item.strong_count() == 0
}

#[test]
fn readers_that_items_do_not_wake_get_them_once_the_ring_is_full_or_the_target_sleeps() {
    for (count, target) in [(3, WakeTarget::One(0)), (3, WakeTarget::Nobody), (1, WakeTarget::Nobody)] {
        let (sender, room) = mpsc::channel();
        let (mut writer, readers) = ring(8, count, move || _ = sender.send(()));
        let (done, all_done) = mpsc::channel();
        let read = |mut reader: Reader<Arc<usize>>| {
            let done = done.clone();
            thread::spawn(move || {
                (0..21).for_each(|item| assert_eq!(**reader.recv().unwrap(), item));
                done.send(()).unwrap();
                assert_eq!(reader.recv(), Err(Closed));
            })
        };
        let threads: Vec<_> = readers.into_iter().map(read).collect();
        for item in 0..21 {
            // The readers fall asleep between some of the items. They can't say that they sleep.
            if item % 10 == 0 {
                thread::sleep(Duration::from_millis(20));
            }
            while writer.send_to(&Arc::new(item), target, Release::ByWriter) == Err(Refused::Full) {
                room.recv().unwrap();
            }
        }
        (0..count).for_each(|_| all_done.recv().unwrap());
        drop(writer);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn room_is_that_of_the_slowest_reader() {
    let (mut writer, mut fast, mut slow) = pair(2);
    (0..2).for_each(|item| writer.send(&item).unwrap());
    (0..2).for_each(|item| assert_eq!(fast.recv(), Ok(&item)));
    assert_eq!(slow.recv(), Ok(&0));
    assert_eq!(writer.send(&2), Err(Refused::Full));
    assert_eq!(slow.recv(), Ok(&1));
    writer.send(&2).unwrap();
    assert_eq!(writer.send(&3), Err(Refused::Full));
}

/// A reader finishes with an item when it asks for the next one, also if there is none.
fn finish<T: Send + Sync + 'static>(mut reader: Reader<T>) -> thread::JoinHandle<()> {
    thread::spawn(move || assert!(reader.recv().is_err()))
}

/// Waits until the item is freed.
fn wait_until_free<T>(item: &Weak<T>) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_free(item) {
        assert!(Instant::now() < end, "the item is still in memory");
        thread::yield_now();
    }
}

#[test]
fn the_last_reader_frees_the_item_when_it_asks_for_the_next() {
    let (mut writer, mut first, mut last) = pair(4);
    let item = Arc::new("frame");
    writer.send(&item).unwrap();
    let item = Arc::downgrade(&{ item });
    first.recv().unwrap();
    assert_eq!(Arc::strong_count(last.recv().unwrap()), 1, "readers borrow the item");
    let first = finish(first);
    // Time in which the item would be freed.
    thread::sleep(Duration::from_millis(10));
    assert!(!is_free(&item), "one reader is to come");
    let last = finish(last);
    wait_until_free(&item);
    drop(writer);
    [first, last].into_iter().for_each(|reader| reader.join().unwrap());
}

#[test]
fn an_item_of_the_writer_stays_until_the_writer_sends_later_ones() {
    let (mut writer, mut first, mut last) = pair(4);
    let items: Vec<_> = (0..4).map(Arc::new).collect();
    items.iter().for_each(|item| writer.send_to(item, WakeTarget::All, Release::ByWriter).unwrap());
    let items: Vec<_> = items.into_iter().map(|item| Arc::downgrade(&item)).collect();
    for reader in [&mut first, &mut last] {
        (0..4).for_each(|item| assert_eq!(**reader.recv().unwrap(), item));
    }
    assert!(!items.iter().any(is_free));
    writer.send(&Arc::new(4)).unwrap();
    assert!(is_free(&items[0]), "its slot is reused");
    drop((writer, first, last));
    assert!(items.iter().all(is_free));
}

#[test]
fn an_only_reader_frees_an_item_of_the_writer() {
    let (mut writer, mut reader) = one(4);
    let item = Arc::new("frame");
    writer.send_to(&item, WakeTarget::All, Release::ByWriter).unwrap();
    let item = Arc::downgrade(&{ item });
    reader.recv().unwrap();
    let reader = finish(reader);
    wait_until_free(&item);
    drop(writer);
    reader.join().unwrap();
}

#[test]
fn a_dropped_reader_does_not_block_the_writer() {
    let (mut writer, mut stays, leaves) = pair(2);
    let items = [Arc::new(0), Arc::new(1)];
    items.iter().for_each(|item| writer.send(item).unwrap());
    let items = items.map(|item| Arc::downgrade(&item));
    (0..2).for_each(|item| assert_eq!(**stays.recv().unwrap(), item));
    assert!(!items.iter().any(is_free));
    drop(leaves);
    assert!(is_free(&items[0]), "its shares went with it");
    for item in 2..10 {
        writer.send(&Arc::new(item)).unwrap();
        assert_eq!(**stays.recv().unwrap(), item);
    }
    assert!(is_free(&items[1]));
}

#[test]
fn send_without_readers_returns_closed() {
    let (mut writer, reader) = one(2);
    drop(reader);
    assert_eq!(writer.send(&0), Err(Refused::Closed));
}

#[test]
fn recv_on_a_closed_ring_returns_closed_before_unread_items() {
    let (mut writer, mut reader) = one(4);
    let item = Arc::new(0);
    writer.send(&item).unwrap();
    writer.control().close();
    assert_eq!(reader.recv(), Err(Closed));
    assert_eq!(writer.send(&item), Err(Refused::Closed));
    drop(reader);
    assert_eq!(Arc::strong_count(&item), 1, "what nobody read is freed");
}

#[test]
fn on_room_is_called_once_when_half_is_free() {
    let notified = Arc::new(AtomicUsize::new(0));
    let (mut writer, mut readers) = ring(16, 1, {
        let notified = notified.clone();
        move || _ = notified.fetch_add(1, Ordering::Relaxed)
    });
    let mut read = |items: usize| {
        (0..items).for_each(|_| _ = readers[0].recv().unwrap());
        notified.load(Ordering::Relaxed)
    };
    (0..16).for_each(|item| writer.send(&item).unwrap());
    assert_eq!(read(16), 0, "nobody had asked");

    // The last item is being read, and every second position is stored.
    assert_eq!((16..).find(|item| writer.send(item) == Err(Refused::Full)), Some(30));
    assert_eq!(writer.control().room(), 0);
    assert_eq!(read(6), 0);
    assert_eq!(read(1), 1, "position 22 of 30");
    assert_eq!(read(7), 1);
}

#[test]
fn an_empty_ring_has_its_whole_capacity_as_room() {
    let (mut writer, mut reader) = one(CAPACITY);
    assert_eq!(writer.control().room(), CAPACITY);
    for item in 0..3 * CAPACITY {
        writer.send(&item).unwrap();
        assert_eq!(reader.recv(), Ok(&item));
        assert!(writer.control().room() > 0);
    }
}
