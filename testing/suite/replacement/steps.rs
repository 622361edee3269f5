//! A change of the workers whose future is dropped after each of its steps, while a worker dies after each of its steps.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use disco_conformance::waiting::wait_until;
use disco_core::session::{Deadlines, LaneSession, ReplacementPolicy, SessionConfig};
use disco_core::{DRef, Error, Result, Value, WorkerId, WorkerRange, World};
use futures_lite::future::block_on;

use super::puppets::{Stage, Strings};

disco_core::register_function!("replacement.echo", echo);

/// The puppets do the same.
fn echo(_: &mut disco_core::WorkerContext, value: i64) -> Result<i64> {
    Ok(value)
}

/// What disturbs a change.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    /// After so many steps, the future is dropped.
    drop_at: Option<usize>,
    /// After so many steps, the worker with this place dies.
    death: Option<(usize, u32)>,
    /// So many steps later, its lane reports that. Until then, it refuses frames.
    report_after: usize,
}

/// What a program does.
#[derive(Clone, Copy, Debug)]
enum Act {
    Replace,
    Resize(usize),
    /// In a session that replaces workers at once: the first call returns the loss, the second one waits for new workers.
    SyncTwice,
    /// In a session that replaces workers when it recovers.
    Recover,
    /// Two calls with the reply of the last worker. In a session that replaces workers at once, the first one returns the loss.
    Return,
}

struct Stranded(mpsc::Sender<()>);

impl Wake for Stranded {
    fn wake(self: Arc<Self>) {
        _ = self.0.send(());
    }
}

/// A session of three workers on two lanes, and what a program knows of it.
struct Play {
    stage: Arc<Stage>,
    session: Arc<LaneSession>,
    /// Each worker has another value in this register.
    own: DRef,
    /// For each worker the place of its start; none if it is new.
    places: Vec<Option<usize>>,
    epoch: u64,
}

impl Play {
    fn new(policy: ReplacementPolicy) -> Self {
        let stage = Arc::new(Stage::default());
        let lanes = [0..1, 1..3].map(|workers| Strings::first(WorkerRange::new(workers), &stage));
        let limits = Deadlines::default().with_reply(Duration::from_secs(5));
        let more = stage.clone();
        let settings = SessionConfig::from(limits).with_replacement(policy);
        let settings = settings.with_growth(move |workers, _| Ok(Strings::more(workers, &more)));
        let session = Arc::new(LaneSession::start(World::new(3, 1).unwrap(), lanes.into(), settings).unwrap());
        let begin = async {
            let own = session.call("replacement.echo", (7,)).await.unwrap();
            for worker in session.world().workers() {
                session.set(&own, worker, Value::Int(10 + worker.wire())).await.unwrap();
            }
            own
        };
        let own = drive(&stage, begin, Trouble::default(), &mut 0).unwrap();
        let restored = own.clone();
        session.on_replaced(move |worker| vec![(restored.clone(), Value::Int(1000 + worker.wire()))]);
        Self { stage, session, own, places: (0..3).map(Some).collect(), epoch: 0 }
    }

    /// Runs a method to its end, undisturbed.
    fn run<T>(&self, method: impl Future<Output = T>) -> T {
        drive(&self.stage, method, Trouble::default(), &mut 0).unwrap()
    }

    /// Runs `act` with `trouble`. Returns the number of steps.
    fn act(&mut self, act: Act, trouble: Trouble) -> usize {
        let (stage, steps) = (self.stage.clone(), &mut 0);
        let note = |play: &mut Self, (numbers, new, epoch): (Vec<_>, Vec<_>, u64)| play.renumber(&numbers, &new, epoch);
        match act {
            Act::Replace => {
                let replaced = drive(&stage, self.session.replace_lost(), trouble, steps);
                if let Some(Ok(it)) = replaced {
                    note(self, (it.numbers, it.workers, it.epoch));
                }
            }
            Act::Resize(size) => {
                let resized = drive(&stage, self.session.resize(size), trouble, steps);
                if let Some(Ok(it)) = resized {
                    assert_eq!(self.session.world().size(), size);
                    note(self, (it.numbers, it.workers, it.epoch));
                }
            }
            Act::SyncTwice => {
                let twice = async { (self.session.sync_all().await, self.session.sync_all().await) };
                if let (Some((first, second)), None) = (drive(&stage, twice, trouble, steps), trouble.death) {
                    assert!(matches!(first, Err(Error::Lost(_))), "{first:?}");
                    second.unwrap();
                }
            }
            Act::Return => {
                let call = async || {
                    let last = WorkerId::new(self.session.world().size() as u32 - 1);
                    self.session.call_returning(last, "replacement.echo", (8,)).await?.await
                };
                let twice = async { (call().await, call().await) };
                if let (Some((first, second)), None) = (drive(&stage, twice, trouble, steps), trouble.death) {
                    assert!(matches!(first, Ok(Value::Int(8)) | Err(Error::Lost(_))), "{first:?}");
                    assert_eq!(second.unwrap(), Value::Int(8));
                }
            }
            Act::Recover => _ = drive(&stage, self.session.recover(), trouble, steps),
        }
        *steps
    }

    /// The numbers of the workers after a change.
    fn renumber(&mut self, numbers: &[Option<WorkerId>], new: &[WorkerId], epoch: u64) {
        assert_eq!(numbers.len(), self.places.len());
        assert!(epoch >= self.epoch);
        let mut places = vec![None; self.session.world().size()];
        for (before, now) in numbers.iter().enumerate() {
            if let Some(now) = now {
                places[now.index()] = self.places[before];
            }
        }
        new.iter().for_each(|worker| places[worker.index()] = None);
        (self.places, self.epoch) = (places, epoch);
    }

    /// The session goes on: all its workers run, and each has the values that it had, or was given.
    fn check(mut self) {
        self.stage.report();
        let replaced = (0..5).find_map(|_| match self.run(self.session.replace_lost()) {
            Ok(replaced) => Some(replaced),
            Err(error) => {
                assert!(matches!(error, Error::Lost(_)), "{error}");
                None
            }
        });
        let replaced = replaced.expect("the session can be replaced");
        self.renumber(&replaced.numbers, &replaced.workers, replaced.epoch);
        assert_eq!(self.session.status().failure, None);

        let echo = self.run(self.session.function("replacement.echo")).unwrap();
        let call = async { self.session.get_all::<i64>(&self.session.call(&echo, (5,)).await?).await };
        let workers = self.session.world().size();
        assert_eq!(self.run(call).unwrap(), vec![5; workers]);
        for worker in self.session.world().workers() {
            let returned = async { self.session.call_returning(worker, &echo, (6,)).await?.await };
            assert_eq!(self.run(returned).unwrap(), Value::Int(6), "{worker}");
        }

        while self.stage.step() {}
        // Threads of the session end the others.
        wait_until("the end of workers that are not the session's", || self.stage.running().len() == workers);
        let running = self.stage.running();
        let values: Vec<i64> = self.run(self.session.get_all(&self.own)).unwrap();
        for ((worker, place), (at, puppet)) in self.places.iter().enumerate().zip(&running) {
            assert_eq!(*place, puppet.is_original.then_some(at.index()), "worker {worker} at {at}");
            match place {
                Some(place) => assert_eq!(values[worker], 10 + *place as i64),
                None => assert!(values[worker] >= 1000, "worker {worker} was not restored: {}", values[worker]),
            }
            assert!(puppet.registers.contains_key(&echo.register()));
        }
        self.run(self.session.shutdown()).unwrap();
        assert!(self.stage.running().is_empty());
    }
}

/// Polls a future; the workers run one command after each poll. Returns none if the future was dropped.
fn drive<T>(stage: &Stage, future: impl Future<Output = T>, trouble: Trouble, steps: &mut usize) -> Option<T> {
    let (tell, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Stranded(tell)));
    let mut future = pin!(future);
    loop {
        if let Some((at, place)) = trouble.death {
            if *steps == at {
                stage.kill(WorkerId::new(place));
            }
            if *steps == at + trouble.report_after {
                stage.report();
            }
        }
        if trouble.drop_at == Some(*steps) {
            return None;
        }
        *steps += 1;
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(result);
        }
        // A thread of the session starts or closes lanes.
        if !stage.step() {
            woken.recv_timeout(Duration::from_secs(20)).expect("a wait without an end");
        }
    }
}

/// Runs an act of a session in which these workers are lost, with each trouble.
fn try_all(act: Act, policy: ReplacementPolicy, lost: &[u32]) -> usize {
    let play = || {
        let play = Play::new(policy);
        lost.iter().for_each(|place| play.stage.kill(WorkerId::new(*place)));
        play.stage.report();
        play
    };
    let mut undisturbed = play();
    let steps = undisturbed.act(act, Trouble::default());
    undisturbed.check();
    let mut troubles = 0;
    let drops: Vec<Option<usize>> = (0..=steps).map(Some).chain([None]).collect();
    for drop_at in drops {
        let deaths = (0..=drop_at.unwrap_or(steps)).flat_map(|at| (0..5).map(move |place| Some((at, place))));
        for death in deaths.chain([None]) {
            for report_after in if death.is_some() { 0..2 } else { 0..1 } {
                let trouble = Trouble { drop_at, death, report_after: 2 * report_after };
                let mut play = play();
                let text = format!("{act:?} without {lost:?}: {trouble:?}");
                let disturbed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    play.act(act, trouble);
                    play.check();
                }));
                assert!(disturbed.is_ok(), "{text}");
                troubles += 1;
            }
        }
    }
    troubles
}

#[test]
fn a_change_goes_on_wherever_its_future_was_dropped_and_whichever_worker_has_died() {
    let asked = ReplacementPolicy::when_asked();
    for (act, policy, lost) in [
        (Act::Replace, asked, &[1][..]),
        (Act::Replace, asked, &[0, 2]),
        (Act::Resize(5), asked, &[]),
        (Act::Resize(2), asked, &[]),
        (Act::Resize(3), asked, &[0]),
        (Act::SyncTwice, ReplacementPolicy::at_once(), &[2]),
        (Act::Recover, ReplacementPolicy::when_recovered(), &[1]),
        (Act::Return, asked, &[]),
        (Act::Return, ReplacementPolicy::at_once(), &[0]),
    ] {
        assert!(try_all(act, policy, lost) > 100);
    }
}

#[test]
fn the_function_that_restores_a_worker_gets_an_error_from_each_method_and_waits_for_none() {
    let policies: [fn() -> ReplacementPolicy; 3] =
        [ReplacementPolicy::when_asked, ReplacementPolicy::when_recovered, ReplacementPolicy::at_once];
    for policy in policies {
        let mut play = Play::new(policy());
        let (session, own, refused) =
            (Arc::downgrade(&play.session), play.own.clone(), Arc::new(Mutex::new(Vec::new())));
        let texts = refused.clone();
        play.session.on_replaced(move |worker| {
            let Some(session) = session.upgrade() else { return Vec::new() };
            let mut refused = texts.lock().unwrap();
            let mut note = |error: Option<Error>| refused.push(error.expect("an error").to_string());
            block_on(async {
                note(session.function("replacement.echo").await.err());
                note(session.call(&own, ()).await.err());
                note(session.sync_all().await.err());
                note(session.sync_worker(worker).await.err());
                note(session.value(&own, worker).await.err());
                note(session.values(&own).await.err());
                note(session.set(&own, worker, Value::None).await.err());
                note(session.recover().await.err());
                note(session.replace_lost().await.err());
                note(session.resize(5).await.err());
                note(session.subset([0], 1).await.err());
            });
            vec![(own.clone(), Value::Int(1000))]
        });
        play.stage.kill(WorkerId::new(1));
        play.stage.report();
        play.act(Act::Replace, Trouble::default());
        play.check();
        let refused = refused.lock().unwrap();
        assert_eq!(refused.len(), 11);
        assert!(refused.iter().all(|text| text.contains("workers are being replaced")), "{refused:#?}");
    }
}
