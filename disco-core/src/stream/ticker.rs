//! A periodic timer for futures that run on any executor.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use event_listener::{Event, EventListener};

use crate::owner::Owner;
use crate::sync;

/// Time between ticks, and so the largest delay of a deadline.
const TICK_INTERVAL: Duration = Duration::from_millis(50);
/// Number of ticks after the end of the last wait, so that a series of short waits does not wake the thread each time.
const IDLE_TICKS: usize = 20;

/// A thread that ticks during waits and sleeps otherwise. Started at the first wait.
#[derive(Debug, Default)]
pub(crate) struct Ticker(Arc<Shared>, Owner);

#[derive(Debug, Default)]
struct Shared {
    tick: Event,
    waits: AtomicUsize,
    state: Mutex<TickerState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TickerState {
    thread: Option<JoinHandle<()>>,
    asleep: bool,
    stop: bool,
}

/// Keeps the ticker running until it is dropped.
#[derive(Debug)]
pub(crate) struct Ticks<'a>(&'a Shared);

impl Ticker {
    /// Ticks until the result is dropped. If the thread can't be started, there are no ticks, and a wait checks its
    /// deadline only at the next reply.
    pub(crate) fn start(&self) -> Ticks<'_> {
        self.0.waits.fetch_add(1, Ordering::SeqCst);
        let mut state = self.0.lock();
        if state.thread.is_none() {
            let shared = self.0.clone();
            let run = move || shared.run();
            match thread::Builder::new().name("disco-ticker".into()).spawn(run) {
                Ok(handle) => state.thread = Some(handle),
                Err(error) => tracing::error!(%error, "no thread for deadlines"),
            }
        }
        if mem::take(&mut state.asleep) {
            self.0.changed.notify_one();
        }
        Ticks(&self.0)
    }
}

impl Ticks<'_> {
    /// The next tick.
    pub(crate) fn next(&self) -> EventListener {
        self.0.tick.listen()
    }
}

impl Drop for Ticks<'_> {
    fn drop(&mut self) {
        self.0.waits.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        if !self.1.is_here() {
            // A forked child does not have the thread, which may have held the lock.
            return mem::forget(self.0.clone());
        }
        let thread = {
            let mut state = self.0.lock();
            state.stop = true;
            state.thread.take()
        };
        self.0.changed.notify_one();
        // A notification of the ticker thread itself may have dropped the session.
        if let Some(thread) = thread.filter(|handle| handle.thread().id() != thread::current().id())
            && thread.join().is_err()
        {
            tracing::error!("the ticker panicked");
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut idle = 0;
        let mut state = self.lock();
        while !state.stop {
            if idle < IDLE_TICKS {
                state = self.changed.wait_timeout(state, TICK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
            } else {
                state.asleep = true;
                // A wait that has just started did not see this thread asleep and sent no notification: check again.
                while state.asleep && !state.stop && self.waits.load(Ordering::SeqCst) == 0 {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                state.asleep = false;
                idle = 0;
            }
            idle = if self.waits.load(Ordering::SeqCst) > 0 { 0 } else { idle + 1 };
            drop(state);
            self.tick.notify(usize::MAX);
            state = self.lock();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, TickerState> {
        sync::lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ticker_ticks_during_a_wait_that_starts_after_it_went_to_sleep() {
        let ticker = Ticker::default();
        for _ in 0..2 {
            let ticks = ticker.start();
            pollster::block_on(ticks.next());
            drop(ticks);
            while !ticker.0.lock().asleep {
                thread::yield_now();
            }
        }
    }
}
