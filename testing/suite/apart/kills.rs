//! Workers die in any way while calls, values and collectives are under way, and are replaced.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::thread;

use disco::{
    Builder, DRef, DType, Error, Json, LaneSession, Placement, Reduction, Scope, Tensor, Value, WorkerId, block_on,
};
use disco_conformance::waiting::wait_until;
use rustix::process::{Pid, Signal, kill_process};

use super::functions::Death;
use super::{call, numbers};
use crate::leftovers::Resources;

const WORKERS: u32 = 3;
/// Elements of the tensors of collectives: 1 MiB.
const ELEMENTS: i64 = 1 << 17;
/// Operations that each caller has finished before the worker dies.
const BEFORE: usize = 2;

pub(crate) fn any_worker_any_way() {
    let kills = if std::env::var_os("DISCO_LONG_TESTS").is_some() { 200 } else { 8 };
    let before = Resources::now();
    let session = Builder::processes(WORKERS as usize)
        .apart(true)
        .process_options(|processes| processes.spares = 1)
        .start()
        .unwrap();
    let kept = call(&session, "apart.number", ());
    let callers = Callers::new(&session);
    for kill in 0..kills {
        for worker in 0..WORKERS {
            let how = (kill + worker as usize) % Death::ALL.len();
            block_on(session.init_ccl("local", &[])).unwrap();
            let pids = numbers(&session, "apart.pid");
            let errors = callers.run_until(|| end(&session, &pids, worker, how));
            let what = format!("kill {kill} of worker {worker}, {:?}", Death::ALL[how]);
            errors.iter().for_each(|error| check_error(error, worker, &what));
            check_loss(&session, worker, Death::ALL[how], &what);
            let replaced = block_on(session.replace_lost()).unwrap().workers;
            assert_eq!(replaced, [WorkerId::new(worker)], "{what}");
            callers.check_notes(worker, &what);
            for survivor in (0..WORKERS).filter(|survivor| *survivor != worker) {
                let number: i64 = block_on(session.get(&kept, WorkerId::new(survivor))).unwrap();
                assert_eq!(number, i64::from(survivor), "{what}");
            }
            block_on(session.set(&kept, WorkerId::new(worker), worker.into())).unwrap();
            let changed = pids.iter().zip(numbers(&session, "apart.pid")).map(|(before, now)| *before != now);
            assert!(changed.eq((0..WORKERS).map(|it| it == worker)), "{what}");
        }
    }
    drop((callers, kept));
    block_on(session.shutdown()).unwrap();
    drop(session);
    assert!(before.are_restored(), "{before:?} before, {:?} after", Resources::now());
}

/// Makes a worker end.
fn end(session: &LaneSession, pids: &[i64], worker: u32, how: usize) {
    match Death::ALL[how] {
        Death::Kill => kill_process(Pid::from_raw(pids[worker as usize] as i32).unwrap(), Signal::KILL).unwrap(),
        _ => drop(call(session, "apart.die", (worker, how as i64))),
    }
}

/// A caller is told of the loss, or of an operation that it has aborted.
fn check_error(error: &Error, worker: u32, what: &str) {
    let is_loss = |error: &Error| match error {
        Error::Lost(loss) => loss.workers().contains(WorkerId::new(worker)),
        error => error.to_string().contains(&format!("worker {worker} lost")),
    };
    assert!(is_loss(error), "{what}: {error}");
}

fn check_loss(session: &LaneSession, worker: u32, how: Death, what: &str) {
    match block_on(session.sync_all()) {
        Err(error @ Error::Lost(_)) => {
            let text = format!("worker {worker} lost: {}", how.text());
            assert_eq!(error.to_string().lines().next().unwrap(), text, "{what}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

/// Callers that use a session at once, each on its own thread.
struct Callers<'a> {
    session: &'a LaneSession,
    values: DRef,
    sums: DRef,
    copies: DRef,
    next: AtomicI64,
    /// The numbers that callers have sent to be noted, and whether they were told that all workers have.
    sent: Mutex<BTreeMap<i64, bool>>,
}

impl<'a> Callers<'a> {
    fn new(session: &'a LaneSession) -> Self {
        let [sums, copies] = [(); 2].map(|()| block_on(session.empty(DType::I64, [ELEMENTS], Placement::All)).unwrap());
        let (next, sent) = Default::default();
        Self { session, values: call(session, "apart.number", ()), sums, copies, next, sent }
    }

    /// Runs the callers, and `go` once each of them has finished some operations. Returns their errors.
    fn run_until(&self, go: impl FnOnce()) -> Vec<Error> {
        // A worker that is new has other tensors.
        let ones = Tensor::from_vec(vec![1i64; ELEMENTS as usize], [ELEMENTS]).unwrap();
        for handle in [&self.sums, &self.copies] {
            block_on(self.session.set_each(handle, |_| ones.clone())).unwrap();
        }
        let callers: [fn(&Self, usize) -> disco::Result<()>; 4] =
            [Self::note, Self::exchange, Self::reduce, Self::copy];
        let finished: [AtomicUsize; 4] = Default::default();
        thread::scope(|scope| {
            let threads: Vec<_> = callers
                .into_iter()
                .zip(&finished)
                .map(|(operation, finished)| {
                    scope.spawn(move || {
                        for round in 0.. {
                            if let Err(error) = operation(self, round) {
                                return error;
                            }
                            finished.fetch_add(1, Ordering::Relaxed);
                        }
                        unreachable!("the session ends")
                    })
                })
                .collect();
            wait_until("operations of each caller", || {
                finished.iter().all(|finished| finished.load(Ordering::Relaxed) >= BEFORE)
            });
            go();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn note(&self, _: usize) -> disco::Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.sent.lock().unwrap().insert(number, false);
        let noted = block_on(self.session.call("apart.note", (number,)))?;
        assert_eq!(block_on(self.session.get_all::<i64>(&noted))?, [number; WORKERS as usize]);
        self.sent.lock().unwrap().insert(number, true);
        Ok(())
    }

    /// Sets and gets values of several sizes.
    fn exchange(&self, round: usize) -> disco::Result<()> {
        let worker = WorkerId::new(round as u32 % WORKERS);
        let bytes = [10, 100 << 10, 1 << 20][round % 3];
        let sent = vec![round as u8; bytes];
        block_on(async {
            self.session.set(&self.values, worker, Value::Int(0)).await?;
            self.session.set(&self.values, worker, Tensor::from_vec(sent.clone(), [bytes])?.into()).await?;
            let back: Tensor = self.session.get(&self.values, worker).await?;
            assert!(back.to_vec::<u8>()? == sent);
            Ok(())
        })
    }

    fn reduce(&self, _: usize) -> disco::Result<()> {
        block_on(async {
            self.session.all_reduce(&self.sums, &self.sums, Reduction::Max, Scope::World).await?;
            let all: Tensor = self.session.get(&self.sums, WorkerId::new(WORKERS - 1)).await?;
            assert!(all.to_vec::<i64>()?.iter().all(|one| *one == 1));
            Ok(())
        })
    }

    /// The controller's tensor goes to all workers, and comes back from worker 0.
    fn copy(&self, round: usize) -> disco::Result<()> {
        let sent = Tensor::from_vec(vec![round as i64; ELEMENTS as usize], [ELEMENTS])?;
        let back = Tensor::zeros(DType::I64, [ELEMENTS])?;
        block_on(async {
            self.session.broadcast(&sent, &self.copies).await?;
            self.session.copy_from_worker_0(&back, &self.copies).await
        })?;
        assert!(back.to_vec::<i64>()?.iter().all(|it| *it == round as i64));
        Ok(())
    }

    /// Each call that has succeeded ran once on every survivor, and each other one at most once.
    fn check_notes(&self, lost: u32, what: &str) {
        let sent = std::mem::take(&mut *self.sent.lock().unwrap());
        assert!(sent.len() > BEFORE, "{what}");
        let notes = call(self.session, "apart.take_notes", ());
        let notes: Vec<Json<BTreeMap<i64, i64>>> = block_on(self.session.get_all(&notes)).unwrap();
        for (worker, Json(notes)) in notes.iter().enumerate().filter(|(worker, _)| *worker != lost as usize) {
            for (number, has_succeeded) in &sent {
                let times = notes.get(number).copied().unwrap_or(0);
                assert!(
                    times == 1 || times == 0 && !has_succeeded,
                    "{what}: call {number} ran {times} times on worker {worker}"
                );
            }
        }
    }
}
