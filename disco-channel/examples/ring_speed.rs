//! How fast is the ring alone? `cargo run --release -p disco-channel --example ring_speed`, also under `taskset -c 0`.
//!
//! `items`: µs for each item that one writer passes to all readers, who only take it. `round trip`: µs from sending one
//! item to having heard from all readers, who may sleep meanwhile; the median. `write`: µs of the writer's own time in
//! the round trip. `hop`: ns that a cache line takes from one processor to the other, before and after.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use disco_channel::ring::{self, Reader, Refused, Writer};

const READERS: [usize; 4] = [1, 4, 8, 16];
const ROUNDS: usize = 5;

fn main() {
    println!("hop {:.0} ns, {} processors", hop(), thread::available_parallelism().map_or(1, usize::from));
    println!("{:>8} {:>12} {:>12} {:>12} {:>12}", "readers", "items best", "median", "round trip", "write");
    for readers in READERS {
        let mut items: Vec<f64> = (0..ROUNDS).map(|_| items(readers, 400_000)).collect();
        items.sort_by(f64::total_cmp);
        let (trip, write) = round_trip(readers, 3000);
        println!("{readers:>8} {:>12.3} {:>12.3} {trip:>12.1} {write:>12.2}", items[0], items[ROUNDS / 2]);
    }
    println!("hop {:.0} ns", hop());
}

/// Lets a writer sleep until the ring has room, as a session does.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap_or_else(|poison| poison.into_inner()) = true;
        self.heard.notify_one();
    }

    fn wait(&self) {
        let rung = self.rung.lock().unwrap_or_else(|poison| poison.into_inner());
        let rung = self.heard.wait_while(rung, |rung| !*rung);
        *rung.unwrap_or_else(|poison| poison.into_inner()) = false;
    }
}

fn start<T: Clone + Send + Sync + 'static>(
    readers: usize,
    each: impl Fn(T) + Clone + Send + 'static,
) -> (Writer<T>, Arc<Bell>, Vec<thread::JoinHandle<()>>) {
    let bell = Arc::new(Bell::default());
    let (writer, readers) = ring::ring(ring::CAPACITY, readers, {
        let bell = bell.clone();
        move || bell.ring()
    });
    let run = |mut reader: Reader<T>| {
        let each = each.clone();
        thread::spawn(move || {
            while let Ok(item) = reader.recv() {
                each(item);
            }
        })
    };
    let threads = readers.into_iter().map(run).collect();
    (writer, bell, threads)
}

fn items(readers: usize, count: u64) -> f64 {
    let left = Arc::new(AtomicUsize::new(readers));
    let controller = thread::current();
    let (mut writer, bell, threads) = start(readers, move |item: Arc<u64>| {
        if *item == count && left.fetch_sub(1, Ordering::AcqRel) == 1 {
            controller.unpark();
        }
    });
    let all_done = Instant::now();
    for number in 1..=count {
        let item = Arc::new(number);
        while writer.send(&item) == Err(Refused::Full) {
            bell.wait();
        }
    }
    // Unparked by the last reader at the last item; closing before that would lose it.
    thread::park();
    let time = all_done.elapsed();
    drop(writer);
    threads.into_iter().for_each(|thread| drop(thread.join()));
    time.as_secs_f64() * 1e6 / count as f64
}

fn round_trip(readers: usize, count: usize) -> (f64, f64) {
    let heard = Arc::new(AtomicUsize::new(0));
    let (controller, each) = (thread::current(), heard.clone());
    let (mut writer, _, threads) = start(readers, move |_: Arc<()>| {
        if each.fetch_add(1, Ordering::AcqRel) + 1 == readers {
            controller.unpark();
        }
    });
    let mut times = Vec::new();
    let mut writes = Vec::new();
    let item = Arc::new(());
    for _ in 0..count {
        let start = Instant::now();
        if writer.send(&item).is_err() {
            break;
        }
        writes.push(start.elapsed());
        while heard.load(Ordering::Acquire) < readers {
            thread::park();
        }
        times.push(start.elapsed());
        heard.store(0, Ordering::Release);
    }
    drop(writer);
    threads.into_iter().for_each(|thread| drop(thread.join()));
    (median(times), median(writes))
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
}

/// One-way time of a cache line between two threads that spin, or NaN on one processor.
fn hop() -> f64 {
    if thread::available_parallelism().map_or(1, usize::from) == 1 {
        return f64::NAN;
    }
    const TRIPS: u64 = 200_000;
    let (ball, quit) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let other = thread::spawn({
        let (ball, quit) = (ball.clone(), quit.clone());
        move || {
            while !quit.load(Ordering::Relaxed) {
                let seen = ball.load(Ordering::Acquire);
                if seen % 2 == 1 {
                    ball.store(seen + 1, Ordering::Release);
                }
            }
        }
    });
    let start = Instant::now();
    for trip in 0..TRIPS {
        ball.store(2 * trip + 1, Ordering::Release);
        while ball.load(Ordering::Acquire) != 2 * trip + 2 {
            std::hint::spin_loop();
        }
    }
    let time = start.elapsed();
    quit.store(true, Ordering::Relaxed);
    drop(other.join());
    time.as_secs_f64() * 1e9 / (2 * TRIPS) as f64
}
