//! Floors of signalling: threads that only poll a cache line, or sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

/// A value on its own pair of cache lines.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Line(pub(crate) AtomicU64);

/// A barrier of spinning threads. Each thread counts on its own line.
pub(crate) struct Barrier {
    lines: Vec<Line>,
    crowded: bool,
}

impl Barrier {
    pub(crate) fn new(threads: usize) -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self { lines: (0..threads).map(|_| Line::default()).collect(), crowded: threads > processors }
    }

    /// Waits until all threads have reached `step`, which increases from call to call.
    pub(crate) fn wait(&self, me: usize, step: u64) {
        self.lines[me].0.store(step, Ordering::Release);
        for line in &self.lines {
            spin_until(self.crowded, || line.0.load(Ordering::Acquire) >= step);
        }
    }
}

/// Polls until `ready`. With more threads than CPUs (`crowded`), yields after each poll.
fn spin_until(crowded: bool, ready: impl Fn() -> bool) {
    while !ready() {
        if crowded { thread::yield_now() } else { std::hint::spin_loop() }
    }
}

/// Time of one round trip from a thread to `peers` spinning threads.
pub(crate) fn ping_pong(peers: usize) -> Duration {
    const TRIPS: u64 = 2000;
    let crowded = peers + 1 > available_parallelism().map_or(1, usize::from);
    let (ping, pongs) = (Line::default(), (0..peers).map(|_| Line::default()).collect::<Vec<_>>());
    thread::scope(|scope| {
        for pong in &pongs {
            let ping = &ping;
            scope.spawn(move || {
                for trip in 1..=TRIPS {
                    spin_until(crowded, || ping.0.load(Ordering::Acquire) >= trip);
                    pong.0.store(trip, Ordering::Release);
                }
            });
        }
        let start = Instant::now();
        for trip in 1..=TRIPS {
            ping.0.store(trip, Ordering::Release);
            pongs.iter().for_each(|pong| spin_until(crowded, || pong.0.load(Ordering::Acquire) >= trip));
        }
        start.elapsed() / TRIPS as u32
    })
}

/// Time of one round trip between two threads that park until they are woken.
pub(crate) fn parked() -> Duration {
    const TRIPS: u64 = 500;
    let line = Arc::new(Line::default());
    let (theirs, me) = (line.clone(), thread::current());
    let peer = thread::spawn(move || {
        for trip in 0..TRIPS {
            while theirs.0.load(Ordering::Acquire) != 2 * trip + 1 {
                thread::park();
            }
            theirs.0.store(2 * trip + 2, Ordering::Release);
            me.unpark();
        }
    });
    let start = Instant::now();
    for trip in 0..TRIPS {
        line.0.store(2 * trip + 1, Ordering::Release);
        peer.thread().unpark();
        while line.0.load(Ordering::Acquire) != 2 * trip + 2 {
            thread::park();
        }
    }
    let time = start.elapsed() / TRIPS as u32;
    peer.join().expect("it does not panic");
    time
}
