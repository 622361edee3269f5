//! Threads that wait for replies while a session fails, changes or ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use disco::{LaneSession, WorkerId, block_on};

use super::content::Content;
use super::random::Random;
use super::user::Wrong;
use super::watch;

/// Threads that repeatedly wait for replies. Each ends with its first error, or when told to.
pub(crate) struct Bystanders {
    threads: Vec<thread::JoinHandle<Option<String>>>,
    stop: Arc<AtomicBool>,
}

impl Bystanders {
    pub(crate) fn start(session: &Arc<LaneSession>, count: usize, random: &mut Random) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let first = random.below(5);
        let thread = |index: usize| {
            let (session, stop, content) = (session.clone(), stop.clone(), Content::draw(random));
            thread::spawn(move || {
                let last = WorkerId::new(session.world().size() as u32 - 1);
                let wait = async || match (first + index) % 5 {
                    0 => session.sync_all().await,
                    1 => session.sync_worker(last).await,
                    2 => {
                        let (form, size, seed) = content.args();
                        let made = session.call("soak.content", (form, size, seed)).await?;
                        session.values(&made).await.map(drop)
                    }
                    3 => {
                        let held = session.call("soak.hold", (content.value()?,)).await?;
                        session.set(&held, last, content.value()?).await?;
                        session.value(&held, last).await.map(drop)
                    }
                    _ => {
                        let sum = session.call("soak.add", (index as i64, 1i64)).await?;
                        session.value(&sum, last).await.map(drop)
                    }
                };
                while !stop.load(Ordering::Acquire) {
                    if let Err(error) = block_on(wait()) {
                        return Some(error.to_string());
                    }
                }
                None
            })
        };
        Self { threads: (0..count).map(thread).collect(), stop }
    }

    /// Joins the threads. Each of their errors must contain one of `allowed`.
    pub(crate) fn join(self, allowed: &[&str]) -> Wrong<()> {
        watch::step("bystanders end");
        self.stop.store(true, Ordering::Release);
        for thread in self.threads {
            let error = thread.join().map_err(|_| "a bystander panicked".to_owned())?;
            if let Some(error) = error.filter(|error| !allowed.iter().any(|text| error.contains(text))) {
                return Err(format!("a bystander was told: {error}"));
            }
        }
        Ok(())
    }
}
