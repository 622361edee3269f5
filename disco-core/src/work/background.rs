//! A thread that runs the operations of a communicator while the worker computes.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use super::{Work, policy};
use crate::error::{Error, Result, panic_text};
use crate::sync;

/// The state of one rank, which its operations use in turn: on the calling thread, or on a thread of their own.
///
/// The thread starts with the first [`Background::start`] and ends with this value, once the operations before have
/// ended; the state is dropped then. While no operation runs there, the state is here, and [`Background::state`] costs a
/// branch.
pub struct Background<T> {
    /// `None` while the thread has it.
    here: Option<T>,
    thread: Option<Arc<Queue<T>>>,
}

/// The operations that the thread runs next.
struct Queue<T> {
    turn: Mutex<Turn<T>>,
    changed: Condvar,
}

struct Turn<T> {
    jobs: VecDeque<Job<T>>,
    /// `None` while the thread uses it, or the calling thread has it.
    state: Option<T>,
    is_closed: bool,
}

type Job<T> = Box<dyn FnOnce(&mut T) + Send>;

impl<T: Send + 'static> Background<T> {
    /// The state, without a thread.
    pub const fn new(state: T) -> Self {
        Self { here: Some(state), thread: None }
    }

    /// The state for the calling thread, once all operations that were started before have ended.
    #[inline]
    pub fn state(&mut self) -> Result<&mut T> {
        if self.here.is_none() {
            self.here = self.thread.as_ref().and_then(|queue| queue.take());
        }
        self.here.as_mut().ok_or_else(|| Error::state("the state of a communicator is lost"))
    }

    /// Runs `job` on the thread, after all operations that were started before. A panic is an error of the job.
    ///
    /// # Errors
    /// The thread can't be started; nothing has changed.
    pub fn start(&mut self, job: impl FnOnce(&mut T) -> Result<()> + Send + 'static) -> Result<Work> {
        let queue = match &self.thread {
            Some(queue) => queue,
            None => self.thread.insert(Queue::start()?),
        };
        let (work, ending) = Work::pending();
        let run = move |state: &mut T| {
            let result = panic::catch_unwind(AssertUnwindSafe(|| job(state)));
            let panicked = |panic: Box<dyn Any + Send>| {
                Err(Error::state(format!("an operation panicked: {}", panic_text(&*panic))))
            };
            ending.end(result.unwrap_or_else(panicked));
        };
        let mut turn = sync::lock(&queue.turn);
        turn.jobs.push_back(Box::new(run));
        if let Some(state) = self.here.take() {
            turn.state = Some(state);
        }
        drop(turn);
        queue.changed.notify_all();
        Ok(work)
    }
}

impl<T: Send + 'static> Queue<T> {
    /// A queue and its thread.
    fn start() -> Result<Arc<Self>> {
        let turn = Turn { jobs: VecDeque::new(), state: None, is_closed: false };
        let queue = Arc::new(Self { turn: Mutex::new(turn), changed: Condvar::new() });
        let served = queue.clone();
        let thread = thread::Builder::new().name("disco-operations".to_owned()).spawn(move || served.serve());
        thread.map(|_| queue).map_err(|error| Error::system("no thread for started operations", error))
    }

    /// Runs jobs until the queue is closed and empty.
    fn serve(&self) {
        policy::wake_up_behind_others();
        let mut turn = sync::lock(&self.turn);
        loop {
            let Turn { jobs, state, is_closed } = &mut *turn;
            if let Some(mut state) = state.take_if(|_| !jobs.is_empty()) {
                let job = jobs.pop_front();
                drop(turn);
                job.into_iter().for_each(|job| job(&mut state));
                turn = sync::lock(&self.turn);
                turn.state = Some(state);
                if turn.jobs.is_empty() {
                    self.changed.notify_all();
                }
            } else if *is_closed {
                let state = state.take();
                drop(turn);
                return drop(state);
            } else {
                turn = sync::wait(&self.changed, turn);
            }
        }
    }

    /// The state, once no jobs are left.
    fn take(&self) -> Option<T> {
        let mut turn = sync::lock(&self.turn);
        loop {
            let Turn { jobs, state, .. } = &mut *turn;
            match state.take_if(|_| jobs.is_empty()) {
                Some(state) => return Some(state),
                None => turn = sync::wait(&self.changed, turn),
            }
        }
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        let Some(queue) = &self.thread else { return };
        let mut turn = sync::lock(&queue.turn);
        turn.is_closed = true;
        // Dropped on this thread if no operation needs it: in the order of the program, before MPI is finalised.
        let Turn { jobs, state, .. } = &mut *turn;
        let idle = state.take_if(|_| jobs.is_empty());
        drop(turn);
        drop(idle);
        queue.changed.notify_all();
    }
}

impl<T> fmt::Debug for Background<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.here.is_some() { "<idle>" } else { "<with started operations>" })
    }
}
