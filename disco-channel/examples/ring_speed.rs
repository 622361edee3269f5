//! Measures the ring alone: `cargo run --release -p disco-channel --example ring_speed`, also under `taskset -c 0`.
//!
//! Medians, in µs:
//! - `items`: per boxed item (allocated by the writer, freed by the last reader) that all readers read;
//! - `plain`: the same for plain numbers, so without the allocator;
//! - `trip`: from sending an item until all readers have answered;
//! - `cold trip`: the same with sleeping readers;
//! - `write`, `cold write`: the time that the writer spends on these.
//!
//! `hop`: one-way latency of a cache line between two processors in ns, before and after.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use disco_channel::ring::{self, Reader, Refused, Writer};

const READERS: [usize; 4] = [1, 4, 8, 16];
const ROUNDS: usize = 5;
const ITEMS: u64 = 400_000;

fn main() {
    println!("hop {:.0} ns, {} processors", hop(), thread::available_parallelism().map_or(1, usize::from));
    let [a, b, c, d, e, f] = ["items", "plain", "trip", "write", "cold trip", "cold write"];
    println!("{:>8} {a:>8} {b:>8} {c:>8} {d:>8} {e:>10} {f:>10}", "readers");
    for readers in READERS {
        let boxed = median((0..ROUNDS).map(|_| items(readers, Arc::new, |item| **item)).collect());
        let plain = median((0..ROUNDS).map(|_| items(readers, |number| number, |item| *item)).collect());
        let (trip, write) = round_trip(readers, 3000, Duration::ZERO);
        let (cold_trip, cold_write) = round_trip(readers, 500, Duration::from_micros(500));
        println!(
            "{readers:>8} {boxed:>8.3} {plain:>8.3} {trip:>8.1} {write:>8.2} {cold_trip:>10.1} {cold_write:>10.2}"
        );
    }
    println!("hop {:.0} ns", hop());
}

/// Lets a writer sleep until the ring has room, as a session does.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    received: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap_or_else(|poison| poison.into_inner()) = true;
        self.received.notify_one();
    }

    fn wait(&self) {
        let rung = self.rung.lock().unwrap_or_else(|poison| poison.into_inner());
        let rung = self.received.wait_while(rung, |rung| !*rung);
        *rung.unwrap_or_else(|poison| poison.into_inner()) = false;
    }
}

fn start<T: Clone + Send + Sync + 'static>(
    readers: usize,
    each: impl Fn(&T) + Clone + Send + 'static,
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

fn items<T: Clone + Send + Sync + 'static>(readers: usize, make: fn(u64) -> T, number: fn(&T) -> u64) -> f64 {
    let left = Arc::new(AtomicUsize::new(readers));
    let controller = thread::current();
    let (mut writer, bell, threads) = start(readers, move |item| {
        if number(item) == ITEMS && left.fetch_sub(1, Ordering::AcqRel) == 1 {
            controller.unpark();
        }
    });
    let start = Instant::now();
    for number in 1..=ITEMS {
        let item = make(number);
        while writer.send(&item) == Err(Refused::Full) {
            bell.wait();
        }
    }
    // Until the last reader has the last item: to close before that would overtake it.
    thread::park();
    let time = start.elapsed();
    drop(writer);
    threads.into_iter().for_each(|thread| drop(thread.join()));
    time.as_secs_f64() * 1e6 / ITEMS as f64
}

fn round_trip(readers: usize, count: usize, pause: Duration) -> (f64, f64) {
    let received = Arc::new(AtomicUsize::new(0));
    let (controller, each) = (thread::current(), received.clone());
    let (mut writer, _, threads) = start(readers, move |_: &Arc<()>| {
        if each.fetch_add(1, Ordering::AcqRel) + 1 == readers {
            controller.unpark();
        }
    });
    let (mut trips, mut writes) = (Vec::new(), Vec::new());
    let item = Arc::new(());
    for _ in 0..count {
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        let start = Instant::now();
        if writer.send(&item).is_err() {
            break;
        }
        writes.push(start.elapsed().as_secs_f64() * 1e6);
        while received.load(Ordering::Acquire) < readers {
            thread::park();
        }
        trips.push(start.elapsed().as_secs_f64() * 1e6);
        received.store(0, Ordering::Release);
    }
    drop(writer);
    threads.into_iter().for_each(|thread| drop(thread.join()));
    (median(trips), median(writes))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
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
