//! A clock for futures that must run on any executor.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use event_listener::{Event, EventListener};

use crate::sync;

/// Time between ticks: how late a deadline may be noticed.
const TICK: Duration = Duration::from_millis(50);
/// Ticks that go on after the last wait ended, so that a program of many short waits need not wake the thread for each.
const LINGER: usize = 20;

/// A thread that ticks while somebody waits, and sleeps otherwise. Made at the first wait.
#[derive(Debug, Default)]
pub(super) struct Ticker {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    tick: Event,
    waits: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    asleep: bool,
    stop: bool,
}

/// Keeps the ticker going.
#[derive(Debug)]
pub(super) struct Ticks<'a>(&'a Shared);

impl Ticker {
    /// Ticks until the result is dropped. Where no thread can be made there are none, and deadlines wait for a reply.
    pub(super) fn start(&self) -> Ticks<'_> {
        self.shared.waits.fetch_add(1, Ordering::SeqCst);
        let mut thread = sync::lock(&self.thread);
        if thread.is_none() {
            let shared = self.shared.clone();
            let run = move || shared.run();
            match thread::Builder::new().name("disco-ticker".into()).spawn(run) {
                Ok(handle) => *thread = Some(handle),
                Err(error) => tracing::error!(%error, "no thread for deadlines"),
            }
        }
        drop(thread);
        if std::mem::take(&mut self.shared.lock().asleep) {
            self.shared.changed.notify_one();
        }
        Ticks(&self.shared)
    }
}

impl Ticks<'_> {
    /// The next tick.
    pub(super) fn next(&self) -> EventListener {
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
        self.shared.lock().stop = true;
        self.shared.changed.notify_one();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
        // It may be this thread's own notification that dropped the session.
        if let Some(thread) = thread.take().filter(|handle| handle.thread().id() != thread::current().id())
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
            if idle < LINGER {
                state = self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
            } else {
                state.asleep = true;
                // Whoever started meanwhile saw no sleeper; see them here.
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

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_come_while_somebody_waits_also_after_sleep() {
        let ticker = Ticker::default();
        for _ in 0..2 {
            let ticks = ticker.start();
            pollster::block_on(ticks.next());
            drop(ticks);
            while !ticker.shared.lock().asleep {
                thread::yield_now();
            }
        }
    }
}
