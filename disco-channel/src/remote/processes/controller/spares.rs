//! Worker processes that are started ahead of losses.

use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use disco_core::status::SpareStatus;
use disco_core::{Error, Owner, Result, sync};
use rustix::event::{PollFd, PollFlags};

use super::launch::Launch;
use super::spare::Spare;
use crate::remote::join_timeout;
use crate::remote::output::Pipe;
use crate::remote::process::Process;
use crate::remote::processes::invitation::Invitation;
use crate::remote::reactor::{Waker, poll};

/// Delay before another spare is started in place of one that is used, so that its start does not take time from that of
/// the worker.
const REFILL_DELAY: Duration = Duration::from_millis(100);
/// Delay before another spare is started in place of one that has ended, which doubles with each, and its maximum.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));
/// Limit of the wait for a spare. The thread that has them may be about to start a process.
const TAKE_LIMIT: Duration = Duration::from_secs(1);
/// Limit of the wait for the thread, which kills the spares at the end.
const JOIN_LIMIT: Duration = Duration::from_secs(3);

/// Worker processes that are started ahead, and wait where a worker would take its invitation. Lanes to new workers in
/// the places of lost ones use them, so that a replacement need not wait for the start of a program. Another spare is
/// started for each that is used or ends. Clones share the spares, which are killed when the last one is dropped, except in a
/// forked child.
#[derive(Clone)]
pub struct Spares(Arc<Inner>);

struct Inner {
    count: usize,
    /// `None` before the start and after the end.
    running: Mutex<Option<Running>>,
    status: Mutex<Vec<SpareStatus>>,
    owner: Owner,
}

struct Running {
    requests: Sender<Request>,
    waker: Arc<Waker>,
    thread: JoinHandle<()>,
}

/// Gets a spare, or none.
type Request = Sender<Option<Spare>>;

impl Spares {
    /// `count` spares, once they are [started](Self::start).
    pub fn new(count: usize) -> Self {
        Self(Arc::new(Inner { count, running: Mutex::default(), status: Mutex::default(), owner: Owner::default() }))
    }

    /// Starts the spares in the background, as `launch` starts workers. A spare that can't be started is logged, and tried
    /// again later.
    ///
    /// # Errors
    /// The system refuses a thread, or a descriptor to wake it.
    pub fn start(&self, launch: &Launch) -> Result<()> {
        let mut running = sync::lock(&self.0.running);
        if self.0.count == 0 || running.is_some() {
            return Ok(());
        }
        let refused = |error| Error::system("the system refuses the thread that watches spare workers", error);
        let (waker, (requests, asked)) = (Arc::new(Waker::new().map_err(refused)?), mpsc::channel());
        let pool =
            Pool { launch: launch.clone(), count: self.0.count, spares: Vec::new(), due: Instant::now(), deaths: 0 };
        let (woken, inner) = (waker.clone(), Arc::downgrade(&self.0));
        let publish = move |status| _ = inner.upgrade().map(|inner| *sync::lock(&inner.status) = status);
        let thread = thread::Builder::new().name("disco-spares".into());
        let thread = thread.spawn(move || pool.run(&asked, &woken, publish)).map_err(refused)?;
        *running = Some(Running { requests, waker, thread });
        Ok(())
    }

    /// Kills the spares, and waits until they have ended, for at most 3 s. No spare is given out from now on.
    pub fn end(&self) {
        self.0.end();
    }

    /// The spares, for operators.
    pub(super) fn status(&self) -> Vec<SpareStatus> {
        sync::lock(&self.0.status).clone()
    }

    /// Gives the place of a worker to a spare, and adds the pipes of its output to `pipes`. Returns none if there is no
    /// spare.
    pub(super) fn take(&self, invitation: &Invitation, pipes: &mut Vec<Pipe>) -> Option<Process> {
        loop {
            // A spare that has just ended is not noticed before it is invited.
            match self.0.ask()?.invite(invitation) {
                Ok((process, output)) => {
                    pipes.extend(output);
                    return Some(process);
                }
                Err(error) => tracing::warn!(worker = %invitation.worker, %error, "a spare worker can't be used"),
            }
        }
    }
}

impl Inner {
    fn ask(&self) -> Option<Spare> {
        let (answer, answered) = mpsc::channel();
        {
            let running = sync::lock(&self.running);
            let Running { requests, waker, .. } = running.as_ref()?;
            requests.send(answer).ok()?;
            waker.wake();
        }
        answered.recv_timeout(TAKE_LIMIT).ok().flatten()
    }

    fn end(&self) {
        let Some(Running { requests, waker, thread }) = sync::lock(&self.running).take() else { return };
        drop(requests);
        waker.wake();
        if join_timeout::within(thread, JOIN_LIMIT).is_none() {
            tracing::warn!("spare workers do not end");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.owner.is_here() {
            self.end();
        }
    }
}

/// The spares, of the thread that starts and watches them.
struct Pool {
    launch: Launch,
    count: usize,
    spares: Vec<Spare>,
    /// When the next missing spare is started.
    due: Instant,
    /// Spares that have ended or could not be started since one was used.
    deaths: u32,
}

impl Pool {
    /// Runs until the senders of `asked` are dropped. Dropping the spares kills them.
    fn run(mut self, asked: &Receiver<Request>, waker: &Waker, publish: impl Fn(Vec<SpareStatus>)) {
        loop {
            self.spares.iter_mut().for_each(Spare::look);
            self.bury();
            match asked.try_recv() {
                Ok(answer) => {
                    self.give(&answer);
                    continue;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return publish(Vec::new()),
            }
            let is_missing = self.spares.len() < self.count;
            if is_missing && Instant::now() >= self.due {
                // One by one, so that requests are answered meanwhile.
                self.start_one();
            }
            let status = |spare: &Spare| SpareStatus::process(spare.process.child_id(), spare.is_ready);
            publish(self.spares.iter().map(status).collect());
            self.wait(waker);
        }
    }

    /// Gives the first spare that is ready, else the first.
    fn give(&mut self, answer: &Request) {
        let first = self.spares.iter().position(|spare| spare.is_ready).or((!self.spares.is_empty()).then_some(0));
        let spare = first.map(|at| self.spares.remove(at));
        if spare.is_some() {
            (self.due, self.deaths) = (Instant::now() + REFILL_DELAY, 0);
        }
        // The caller may have given up.
        if let Err(mpsc::SendError(Some(unused))) = answer.send(spare) {
            self.spares.push(unused);
        }
    }

    fn start_one(&mut self) {
        match self.launch.start_spare() {
            Ok(spare) => self.spares.push(spare),
            Err(error) => {
                tracing::warn!(%error, "no spare worker");
                self.pause();
            }
        }
    }

    /// Removes spares that have ended or can't be invited. The latter are killed.
    fn bury(&mut self) {
        let is_dead = |spare: &mut Spare| spare.is_closed || spare.process.has_ended();
        let dead: Vec<Spare> = self.spares.extract_if(.., is_dead).collect();
        for Spare { process, is_ready, .. } in dead {
            let status = process.status().map_or_else(|| "unknown".to_owned(), |status| status.to_string());
            tracing::warn!(status, is_ready, "a spare worker has ended");
            self.pause();
        }
    }

    fn pause(&mut self) {
        let delay = RETRY_DELAY.0.saturating_mul(1 << self.deaths.min(16));
        (self.due, self.deaths) = (Instant::now() + delay.min(RETRY_DELAY.1), self.deaths + 1);
    }

    /// Waits for a request, news of a spare, or the time to start one.
    fn wait(&self, waker: &Waker) {
        let mut polled = vec![PollFd::new(waker, PollFlags::IN)];
        for spare in &self.spares {
            polled.extend(spare.process.exit().map(|exit| PollFd::from_borrowed_fd(exit.as_fd(), PollFlags::IN)));
            polled.extend((!spare.is_ready).then(|| PollFd::new(&spare.socket, PollFlags::IN)));
        }
        let left = if self.spares.len() < self.count {
            self.due.saturating_duration_since(Instant::now())
        } else {
            Duration::MAX
        };
        poll(&mut polled, left);
        waker.reset();
    }
}

disco_core::format_as!(Debug for Spares, |it| "Spares {{ count: {:?}, .. }}", it.0.count);
