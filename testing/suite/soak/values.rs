//! A user of values of any size: as arguments and results of calls, by `set` and `get`, on one worker and on all.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use disco::{DRef, Json, LaneSession, Result, Value, WorkerId, block_on};

use super::content::{Content, Form, Record};
use super::random::Random;
use super::user::{Wrong, words};
use super::watch;

/// Number of handles that a user keeps.
const KEPT: usize = 3;

/// The expected content of a register on one worker.
#[derive(Clone, Copy, Debug)]
struct Held {
    content: Content,
    /// Whether the worker owns its tensor: then `set` of a tensor writes into it, and needs a tensor of the same size.
    is_own_tensor: bool,
}

impl Held {
    /// A value that `set` has written or that the worker has made.
    fn own(content: Content) -> Self {
        Self { content, is_own_tensor: content.is_tensor() }
    }

    /// A value that was an argument.
    fn argument(content: Content) -> Self {
        Self { content, is_own_tensor: false }
    }
}

pub(crate) struct Values<'s> {
    session: &'s LaneSession,
    random: Random,
    /// Handles, and the expected content on each worker.
    kept: Vec<(DRef, Vec<Held>)>,
}

impl<'s> Values<'s> {
    pub(crate) fn new(session: &'s LaneSession, random: Random) -> Self {
        Self { session, random, kept: Vec::new() }
    }

    pub(crate) fn step(&mut self) -> Wrong<()> {
        if self.kept.is_empty() {
            return self.make();
        }
        match self.random.below(10) {
            0..2 => self.make(),
            2..4 => self.set(),
            4 => self.set_each(),
            5 => self.get(),
            6 => self.get_all(),
            7 => self.digest(),
            _ => self.abandon(),
        }
    }

    /// Submits commands with values and ignores their results, because the session may fail meanwhile.
    pub(crate) fn submit(&mut self) {
        let content = Content::draw(&mut self.random);
        let Ok(value) = content.value() else { return };
        let worker = self.worker();
        if let Ok(handle) = block_on(self.session.call("soak.hold", (value.clone(),))) {
            self.poll(self.session.set(&handle, worker, value));
            self.poll(self.session.value(&handle, worker));
            self.poll(self.session.values(&handle));
        }
    }

    /// Compares all kept values.
    pub(crate) fn check_all(&self) -> Wrong<()> {
        (0..self.kept.len()).try_for_each(|at| self.check_workers(at))
    }

    /// Makes a handle: of an argument of all workers, or of values that the workers make.
    fn make(&mut self) -> Wrong<()> {
        let content = Content::draw(&mut self.random);
        let (handle, held) = if self.random.chance(50) {
            watch::step(format_args!("{content:?} as an argument that workers keep"));
            let value = words(content.value())?;
            (self.call("soak.hold", (value,))?, self.on_each(|_| Held::argument(content)))
        } else {
            watch::step(format_args!("{content:?} that workers make"));
            let (form, size, seed) = content.args();
            let handle = match content.form {
                Form::Record => self.call("soak.record", (size, seed))?,
                _ => self.call("soak.content", (form, size, seed))?,
            };
            (handle, self.on_each(|worker| Held::own(content.with_seed(seed + worker.index()))))
        };
        if self.kept.len() == KEPT {
            let at = self.random.below(KEPT);
            self.check_workers(at)?;
            self.kept.swap_remove(at);
        }
        self.kept.push((handle, held));
        Ok(())
    }

    fn set(&mut self) -> Wrong<()> {
        let (at, worker) = (self.random.below(self.kept.len()), self.worker());
        let content = self.settable(at, &[worker]);
        watch::step(format_args!("set of {content:?} on {worker}"));
        words(block_on(self.session.set(&self.kept[at].0, worker, words(content.value())?)))?;
        self.kept[at].1[worker.index()] = Held::own(content);
        self.check(at, worker)
    }

    fn set_each(&mut self) -> Wrong<()> {
        let at = self.random.below(self.kept.len());
        let content = self.settable(at, &self.workers());
        watch::step(format_args!("set_each of {content:?}"));
        let of = |worker: WorkerId| content.with_seed(content.seed + worker.index());
        let values = self.workers().into_iter().map(|worker| of(worker).value());
        let mut values = words(values.collect::<Result<Vec<_>>>())?.into_iter();
        words(block_on(self.session.set_each(&self.kept[at].0, |_| values.next().unwrap_or(Value::None))))?;
        self.kept[at].1 = self.on_each(|worker| Held::own(of(worker)));
        Ok(())
    }

    fn get(&mut self) -> Wrong<()> {
        let (at, worker) = (self.random.below(self.kept.len()), self.worker());
        self.check(at, worker)
    }

    fn get_all(&mut self) -> Wrong<()> {
        let at = self.random.below(self.kept.len());
        self.check_workers(at)
    }

    /// Calls a function with three arguments: a value of the controller, a register, and another value of the
    /// controller.
    fn digest(&mut self) -> Wrong<()> {
        let at = self.random.below(self.kept.len());
        let (first, last) = (Content::draw(&mut self.random), Content::draw(&mut self.random));
        watch::step(format_args!("{first:?}, {:?} and {last:?} as arguments", self.kept[at].1));
        let (handle, held) = &self.kept[at];
        let args = (words(first.value())?, handle, words(last.value())?);
        let digests = self.call("soak.digest", args)?;
        let expected: Vec<Vec<i64>> =
            held.iter().map(|held| [first.digest(), held.content.digest(), last.digest()].to_vec()).collect();
        let found = words(block_on(self.session.get_all::<Json<Vec<i64>>>(&digests)))?;
        for (worker, (found, expected)) in self.workers().into_iter().zip(found.into_iter().zip(expected)) {
            if found.0 != expected {
                return Err(format!("{worker} got other arguments than {first:?}, {held:?} and {last:?}"));
            }
        }
        Ok(())
    }

    /// Drops futures while values are in flight. A dropped `set` has set the value or has changed nothing.
    fn abandon(&mut self) -> Wrong<()> {
        let (at, worker) = (self.random.below(self.kept.len()), self.worker());
        let mut content = self.settable(at, &[worker]);
        if content.seed == self.kept[at].1[worker.index()].content.seed {
            content.seed += 1;
        }
        watch::step(format_args!("get, get_all, a call and set of {content:?} on {worker}, dropped"));
        let (handle, value) = (self.kept[at].0.clone(), words(content.value())?);
        self.poll(self.session.value(&handle, worker));
        self.poll(self.session.values(&handle));
        self.poll(self.session.call("soak.digest", (value.clone(), &handle, value.clone())));
        self.poll(self.session.set(&handle, worker, value));
        let found = words(block_on(self.session.value(&handle, worker)))?;
        let before = &mut self.kept[at].1[worker.index()];
        if content.is(&found) {
            // Small values may be equal; then it is unknown which of them the worker has.
            if before.content.is(&found) {
                drop(found);
                self.kept.swap_remove(at);
                return Ok(());
            }
            *before = Held::own(content);
        } else if !before.content.is(&found) {
            return Err(format!("{worker} has neither {content:?} nor {before:?} after a set that was dropped"));
        }
        Ok(())
    }

    /// A value that `set` can write on these workers: of the same size as a tensor that they own.
    fn settable(&mut self, at: usize, workers: &[WorkerId]) -> Content {
        let drawn = Content::draw(&mut self.random);
        let own = workers.iter().map(|worker| self.kept[at].1[worker.index()]).find(|held| held.is_own_tensor);
        match own {
            Some(held) if drawn.is_tensor() => {
                let sizes = workers.iter().map(|worker| self.kept[at].1[worker.index()]);
                let all_alike =
                    sizes.filter(|held| held.is_own_tensor).all(|other| other.content.is_like(&held.content));
                // `set` of bytes replaces any value.
                if all_alike { held.content.with_seed(drawn.seed) } else { drawn.as_bytes() }
            }
            _ => drawn,
        }
    }

    fn check(&self, at: usize, worker: WorkerId) -> Wrong<()> {
        let (handle, held) = &self.kept[at];
        let held = held[worker.index()];
        watch::step(format_args!("get of {held:?} from {worker}"));
        let is = match held.content.form {
            Form::Record => {
                let found = words(block_on(self.session.get::<Json<Record>>(handle, worker)))?;
                found.0 == held.content.record()
            }
            _ => held.content.is(&words(block_on(self.session.value(handle, worker)))?),
        };
        if is { Ok(()) } else { Err(format!("get from {worker} gave another value than {held:?}")) }
    }

    fn check_workers(&self, at: usize) -> Wrong<()> {
        let (handle, held) = &self.kept[at];
        watch::step(format_args!("get_all of {held:?}"));
        let found = words(block_on(self.session.values(handle)))?;
        if found.len() != held.len() {
            return Err(format!("get_all gave {} values of {} workers", found.len(), held.len()));
        }
        match held.iter().zip(&found).position(|(held, found)| !held.content.is(found)) {
            None => Ok(()),
            Some(worker) => Err(format!("get_all gave another value than {:?} of worker {worker}", held[worker])),
        }
    }

    fn call(&self, function: &str, args: impl disco::IntoArgs) -> Wrong<DRef> {
        words(block_on(self.session.call(function, args)))
    }

    fn on_each(&self, of: impl FnMut(WorkerId) -> Held) -> Vec<Held> {
        self.workers().into_iter().map(of).collect()
    }

    fn workers(&self) -> Vec<WorkerId> {
        self.session.world().workers().collect()
    }

    fn worker(&mut self) -> WorkerId {
        WorkerId::new(self.random.below(self.session.world().size()) as u32)
    }

    /// Polls a future up to three times, at random moments, and drops it.
    fn poll(&mut self, future: impl Future) {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..self.random.below(4) {
            if future.as_mut().poll(&mut context).is_ready() {
                return;
            }
            self.random.pause(Duration::from_millis(3));
        }
    }
}
