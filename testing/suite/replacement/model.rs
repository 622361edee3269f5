//! A random program, and the results that it expects.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use disco_core::error::{Error, ErrorKind};
use disco_core::session::{LaneSession, ReplacementPolicy, SessionConfig};
use disco_core::worker::WorkerConfig;
use disco_core::{Channel, DRef, DType, Placement, Result, Tensor, Value, WorkerContext, WorkerId, WorkerRange, World};
use disco_testing::random::Random;
use futures_lite::future::{self, block_on};

use super::lane::{Fate, Mortal};

disco_core::register_function!("replacement.add", add);
disco_core::register_function!("replacement.seat", seat);

fn add(_: &mut WorkerContext, one: i64, other: i64) -> Result<i64> {
    Ok(one + other)
}

/// The number of the worker and of all workers.
fn seat(ctx: &mut WorkerContext) -> Result<i64> {
    Ok(1000 * ctx.world().size() as i64 + ctx.worker().wire())
}

/// A handle, and for each worker its value; none if the worker is newer than the value.
struct Known {
    handle: DRef,
    values: Vec<Option<i64>>,
}

struct Program {
    session: LaneSession,
    random: Random,
    fate: Arc<Fate>,
    workers: usize,
    is_at_once: bool,
    add: DRef,
    seat: DRef,
    known: Vec<Known>,
    epoch: u64,
    replaced: usize,
}

/// Runs the program of a seed. Returns the number of workers that were replaced.
pub(crate) fn run(seed: u64) -> usize {
    let mut random = Random::new(seed);
    let workers = 2 + random.below(5);
    let fate = Fate::new(seed ^ 0x5555);
    let config = WorkerConfig::new(World::new(workers, 1).unwrap());
    // One lane for all workers, or two.
    let cut = 1 + random.below(workers) as u32;
    let ranges = [0..cut, cut..workers as u32].into_iter().filter(|range| !range.is_empty());
    let lane = |range| Arc::new(Mortal::new(WorkerRange::new(range), config, &fate)) as Arc<dyn Channel>;
    let is_at_once = random.below(2) == 0;
    let policy = if is_at_once { ReplacementPolicy::at_once() } else { ReplacementPolicy::when_asked() };
    let more = fate.clone();
    let settings = SessionConfig::default().with_replacement(policy).with_growth(move |workers, world| {
        if more.chance(7) {
            Err(Error::state("no place is free"))
        } else {
            Ok(Arc::new(Mortal::new(workers, config.in_world(world), &more)))
        }
    });
    let session = LaneSession::start(config.world, ranges.map(lane).collect(), settings).unwrap();
    let [add, seat] = ["replacement.add", "replacement.seat"].map(|name| block_on(session.function(name)).unwrap());
    let known = Vec::new();
    let mut program = Program { session, random, fate, workers, is_at_once, add, seat, known, epoch: 0, replaced: 0 };
    program.fate.is_hard.store(true, Ordering::Relaxed);
    (0..60).for_each(|_| program.step());
    // A shutdown of a live session, and one of a lost session.
    program.fate.is_hard.store(false, Ordering::Relaxed);
    if program.random.below(2) == 0 {
        program.replace();
    }
    _ = block_on(program.session.shutdown());
    program.replaced
}

impl Program {
    fn step(&mut self) {
        let result = match self.random.below(15) {
            0..=3 => self.call(),
            4 => self.get(),
            5 => self.get_all(),
            6 => self.set(),
            7 => self.forget(),
            8 => block_on(self.session.sync_all()),
            9 => {
                let worker = self.worker();
                block_on(self.session.sync_worker(worker))
            }
            10 => self.kill(),
            11 => self.seats(),
            12 => self.resize(),
            13 => self.copy_through_worker_0(),
            _ => block_on(self.session.recover()),
        };
        match result {
            Ok(()) => {}
            // One that dies may take its lane along before it is reported.
            Err(Error::Lost(_) | Error::State(_)) => {
                self.go_on();
                self.replace();
            }
            Err(error) => panic!("{error:#?}"),
        }
    }

    /// A session that replaces workers at once goes on without being asked.
    fn go_on(&mut self) {
        if self.is_at_once && self.random.below(2) == 0 {
            match block_on(self.session.sync_all()) {
                Ok(()) => assert!(self.session.status().failure.is_none()),
                Err(Error::Lost(_) | Error::State(_)) => {}
                Err(error) => panic!("{error:#?}"),
            }
        }
    }

    fn worker(&mut self) -> WorkerId {
        WorkerId::new(self.random.below(self.workers) as u32)
    }

    fn kill(&mut self) -> Result<()> {
        for _ in 0..=self.random.below(2) {
            let commands = self.random.below(6) as u64;
            self.fate.kill(&mut self.random, commands);
        }
        Ok(())
    }

    /// A value that all workers have, in a constant or a register.
    fn call(&mut self) -> Result<()> {
        let whole: Vec<usize> =
            (0..self.known.len()).filter(|at| self.known[*at].values.iter().all(Option::is_some)).collect();
        let (number, offset) = (self.random.below(1000) as i64, self.random.below(1000) as i64);
        let (handle, values) = if whole.is_empty() {
            (block_on(self.session.call(&self.add, (number, offset)))?, vec![Some(number + offset); self.workers])
        } else {
            let known = &self.known[whole[self.random.below(whole.len())]];
            let handle = block_on(self.session.call(&self.add, (&known.handle, offset)))?;
            (handle, known.values.iter().map(|value| value.map(|value| value + offset)).collect())
        };
        self.known.push(Known { handle, values });
        Ok(())
    }

    fn get(&mut self) -> Result<()> {
        if self.known.is_empty() {
            return Ok(());
        }
        let worker = self.worker();
        let at = self.random.below(self.known.len());
        let known = &self.known[at];
        let got = block_on(self.session.get::<i64>(&known.handle, worker));
        match known.values[worker.index()] {
            Some(value) => assert_eq!(got?, value),
            None => match got {
                Err(error @ Error::Lost(_)) => return Err(error),
                got => {
                    assert!(matches!(got.unwrap_err().kind(), ErrorKind::NotRestored { epoch } if epoch <= self.epoch))
                }
            },
        }
        Ok(())
    }

    fn get_all(&mut self) -> Result<()> {
        let Some(known) = self.known.iter().find(|known| known.values.iter().all(Option::is_some)) else {
            return Ok(());
        };
        let got = block_on(self.session.get_all::<i64>(&known.handle))?;
        assert_eq!(got, known.values.iter().map(|value| value.unwrap()).collect::<Vec<_>>());
        Ok(())
    }

    /// Gives a value to a worker, perhaps to one that has none.
    fn set(&mut self) -> Result<()> {
        let (worker, value) = (self.worker(), self.random.below(1000) as i64);
        let Some(known) = self.known.last_mut() else { return Ok(()) };
        let set = block_on(self.session.set(&known.handle, worker, Value::Int(value)));
        if set.is_err() {
            // The worker may have it or not.
            self.known.pop();
        } else {
            known.values[worker.index()] = Some(value);
        }
        set
    }

    fn forget(&mut self) -> Result<()> {
        if !self.known.is_empty() {
            let at = self.random.below(self.known.len());
            self.known.swap_remove(at);
        }
        Ok(())
    }

    /// All workers know their numbers.
    fn seats(&mut self) -> Result<()> {
        let seats = block_on(self.session.call(&self.seat, ()))?;
        let seats = block_on(self.session.get_all::<i64>(&seats))?;
        let expected = (0..self.workers as i64).map(|worker| 1000 * self.workers as i64 + worker);
        assert_eq!(seats, expected.collect::<Vec<_>>());
        Ok(())
    }

    /// A tensor goes to the worker that has number 0 now, and comes back.
    fn copy_through_worker_0(&mut self) -> Result<()> {
        let sent = Tensor::from_vec(vec![self.random.below(1000) as i64; 3], [3])?;
        let back = Tensor::zeros(DType::I64, [3])?;
        block_on(async {
            let copy = self.session.empty(DType::I64, [3], Placement::Worker0).await?;
            self.session.copy_to_worker_0(&sent, &copy).await?;
            self.session.copy_from_worker_0(&back, &copy).await?;
            self.session.sync_worker(WorkerId::new(0)).await
        })?;
        assert_eq!(back.to_vec::<i64>()?, sent.to_vec::<i64>()?);
        Ok(())
    }

    /// Changes the number of workers, with as many attempts as that takes. The future of some attempts is dropped.
    fn resize(&mut self) -> Result<()> {
        let size = 1 + self.random.below(7);
        for attempt in 0..1000 {
            if self.random.below(4) == 0 {
                let polled_once = async { Some(self.session.resize(size).await) };
                match block_on(future::or(polled_once, future::ready(None))) {
                    Some(Ok(resized)) => return self.renumber(&resized.numbers, &resized.workers, resized.epoch),
                    Some(Err(Error::State(_) | Error::Lost(_))) | None => {}
                    Some(Err(error)) => panic!("{error:#?}"),
                }
            }
            match block_on(self.session.resize(size)) {
                Ok(resized) => return self.renumber(&resized.numbers, &resized.workers, resized.epoch),
                Err(Error::State(text)) => assert!(text.contains("is free"), "{text}"),
                Err(Error::Lost(_)) => {}
                Err(error) => panic!("attempt {attempt}: {error:#?}"),
            }
        }
        panic!("no end")
    }

    /// Replaces workers until that succeeds.
    fn replace(&mut self) {
        for attempt in 0.. {
            match block_on(self.session.replace_lost()) {
                Ok(replaced) => {
                    self.replaced += replaced.workers.len();
                    return self.renumber(&replaced.numbers, &replaced.workers, replaced.epoch).unwrap();
                }
                Err(Error::State(text)) if attempt < 1000 => assert!(text.contains("is free"), "{text}"),
                Err(Error::Lost(_)) if attempt < 1000 => {}
                Err(error) => panic!("{error:#?}"),
            }
        }
    }

    fn renumber(&mut self, numbers: &[Option<WorkerId>], new: &[WorkerId], epoch: u64) -> Result<()> {
        assert_eq!(numbers.len(), self.workers);
        assert!(numbers.iter().flatten().is_sorted(), "{numbers:?}");
        (self.workers, self.epoch) = (self.session.world().size(), epoch);
        for known in &mut self.known {
            let mut values = vec![None; self.workers];
            for (before, now) in numbers.iter().enumerate() {
                if let Some(now) = now {
                    values[now.index()] = known.values[before];
                }
            }
            new.iter().for_each(|worker| values[worker.index()] = None);
            known.values = values;
        }
        Ok(())
    }
}
