//! One thread of the process that frees memory once the device is done with it.
//!
//! The thread starts with the first job, polls all jobs in the order of their arrival, and ends when no job is left. A
//! job of a stream is polled only after the earlier jobs of that stream. A free may block until the device is idle, and
//! delays only later frees. Work that waits for other ranks, such as the end of a communicator, uses a
//! [`Teardown`](crate::runtime::Teardown) thread instead.

use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::sync;

static JOBS: Mutex<Jobs> = Mutex::new(Jobs { waiting: Vec::new(), has_thread: false });

/// Pause between two passes over the jobs.
const POLL_INTERVAL: Duration = Duration::from_micros(250);

struct Jobs {
    /// Jobs that the thread has not taken over.
    waiting: Vec<Job>,
    has_thread: bool,
}

/// A free that waits until the device is done with the memory.
pub(crate) struct Job {
    /// Names the memory in the log.
    pub(crate) what: String,
    /// Address that all jobs of one stream share, which become ready in order.
    pub(crate) stream: usize,
    /// The memory is leaked if the job is not ready after this time.
    pub(crate) limit: Duration,
    pub(crate) is_ready: Box<dyn FnMut() -> bool + Send>,
    pub(crate) free: Box<dyn FnOnce() + Send>,
}

/// A job with the time of its arrival.
struct Waiting(Job, Instant);

/// Runs `job.free` once `job.is_ready` holds. Returns at once.
pub(crate) fn submit(job: Job) {
    let mut jobs = lock();
    jobs.waiting.push(job);
    if mem::replace(&mut jobs.has_thread, true) {
        return;
    }
    drop(jobs);
    if let Err(error) = thread::Builder::new().name("disco-ccl-reap".into()).spawn(run) {
        let mut jobs = lock();
        jobs.has_thread = false;
        let lost = mem::take(&mut jobs.waiting);
        drop(jobs);
        for Job { what, .. } in lost {
            tracing::warn!(%error, what, "memory is leaked: the thread that frees it can't be started");
        }
    }
}

fn run() {
    let mut waiting = Vec::new();
    loop {
        let mut jobs = lock();
        let arrived = mem::take(&mut jobs.waiting);
        if arrived.is_empty() && waiting.is_empty() {
            jobs.has_thread = false;
            return;
        }
        // A job may submit others, so it runs while the lock is free.
        drop(jobs);
        let now = Instant::now();
        waiting.extend(arrived.into_iter().map(|job| Waiting(job, now)));
        waiting = pass(waiting);
        if !waiting.is_empty() {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

fn lock() -> MutexGuard<'static, Jobs> {
    sync::lock(&JOBS)
}

/// Polls each stream's first job, and the next one after each that is over. Returns the jobs that still wait.
fn pass(jobs: Vec<Waiting>) -> Vec<Waiting> {
    let (mut left, mut busy) = (Vec::new(), Vec::new());
    for Waiting(mut job, since) in jobs {
        if busy.contains(&job.stream) {
            left.push(Waiting(job, since));
            continue;
        }
        match panic::catch_unwind(AssertUnwindSafe(|| (job.is_ready)())) {
            Ok(true) => {
                if panic::catch_unwind(AssertUnwindSafe(job.free)).is_err() {
                    tracing::error!(what = job.what, "freeing memory panicked");
                }
            }
            Ok(false) if since.elapsed() < job.limit => {
                busy.push(job.stream);
                left.push(Waiting(job, since));
            }
            Ok(false) => {
                let (what, after) = (job.what, job.limit);
                tracing::warn!(what, ?after, "memory is leaked: work on its stream does not end");
            }
            Err(_) => tracing::error!(what = job.what, "memory is leaked: the query of its stream panicked"),
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::{Duration, Instant};

    use super::{Job, Waiting, pass};

    fn job(stream: usize, is_ready: bool, limit: Duration, freed: &Sender<usize>) -> Waiting {
        let freed = freed.clone();
        let free = Box::new(move || freed.send(stream).unwrap());
        let job = Job { what: format!("stream {stream}"), stream, limit, is_ready: Box::new(move || is_ready), free };
        Waiting(job, Instant::now())
    }

    #[test]
    fn a_job_waits_for_earlier_jobs_of_its_stream_and_for_no_others() {
        let ((freed, found), limit) = (channel(), Duration::MAX);
        let jobs = [job(1, false, limit, &freed), job(1, true, limit, &freed), job(2, true, limit, &freed)];
        let left = pass(jobs.into());
        assert_eq!(left.iter().map(|Waiting(job, _)| job.stream).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(found.try_iter().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_job_that_passes_its_limit_or_panics_is_leaked_and_later_jobs_run() {
        let (freed, found) = channel();
        let mut panics = job(3, true, Duration::MAX, &freed);
        panics.0.is_ready = Box::new(|| panic!("expected by this test"));
        let jobs = [job(1, false, Duration::ZERO, &freed), panics, job(1, true, Duration::ZERO, &freed)];
        assert!(pass(jobs.into()).is_empty());
        assert_eq!(found.try_iter().collect::<Vec<_>>(), [1]);
    }
}
