//! A user of a session: a thread of the controller that takes random steps and checks their results.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::thread;

use disco::ffi::{LibraryFile, Module};
use disco::{DRef, LaneSession, Rank, Reduction, Result, Tensor, Value, WorkerId, block_on};

use super::calls;
use super::checkpoints;
use super::exchange::{DTYPES, Exchange, Kind, Memory, REDUCTIONS, Scope, uneven, uneven_pair};
use super::library;
use super::model::Model;
use super::random::Random;
use super::values::Values;
use super::watch;

/// Numbers of elements of a new tensor, up to several staging pieces.
const COUNTS: [usize; 8] = [1, 6, 12, 60, 300, 6_000, 36_000, 120_000];
/// Maximum number of elements of a tensor that gathers produce.
const MAX_GATHERED: usize = 400_000;
/// Number of tensors that a user keeps.
const KEPT: usize = 6;

/// One user of a session.
pub(crate) struct User<'s> {
    session: &'s LaneSession,
    random: Random,
    /// Whether the session has communicators.
    known: Vec<(DRef, Model)>,
    values: Values<'s>,
}

/// A result whose error describes the fault.
pub(crate) type Wrong<T> = std::result::Result<T, String>;

impl<'s> User<'s> {
    pub(crate) fn new(session: &'s LaneSession, mut random: Random) -> Self {
        let values = Values::new(session, random.fork());
        Self { session, random, known: Vec::new(), values }
    }

    /// Takes `steps` random steps, then compares all tensors.
    pub(crate) fn run(&mut self, steps: usize) -> Wrong<()> {
        for _ in 0..steps {
            self.step()?;
        }
        self.check_all()
    }

    /// Submits random calls and ignores their results, because the session may fail meanwhile.
    pub(crate) fn submit(&mut self, calls: usize) {
        for _ in 0..calls {
            _ = self.make();
            if self.random.chance(30) {
                self.values.submit();
            }
            if self.random.chance(10) {
                _ = self.checkpoint();
            }
            _ = self.exchange();
            self.known.clear();
        }
    }

    fn step(&mut self) -> Wrong<()> {
        match self.random.below(33) {
            0..3 => self.make(),
            3 => self.checkpoint(),
            4..8 => self.exchange(),
            8..10 => self.exchange_by_handles(),
            10..13 => self.burst(),
            13 => self.broadcast(),
            14 => self.check_one(),
            15 => self.numbers(),
            16 => self.bytes(),
            17 => self.meet(),
            18 => self.abandon(),
            19 => self.forget(),
            26..28 => self.library(),
            28 => calls::select(self.session, &mut self.random),
            29 => calls::stream(self.session, &mut self.random),
            30 => calls::cancel(self.session, &mut self.random),
            31 => calls::returned(self.session, &mut self.random),
            32 => calls::outlive(self.session, &mut self.random),
            20..26 => self.values.step(),
            _ => self.make(),
        }
    }

    fn make(&mut self) -> Wrong<()> {
        let (dtype, count, seed) = (self.random.pick(&DTYPES), self.random.pick(&COUNTS), self.random.below(1000));
        let memory = self.random.pick(&Memory::ALL);
        watch::step(format_args!("make {dtype} x {count}, memory: {memory:?}"));
        let handle = self.call("soak.make", (dtype, count as i64, seed as i64, memory.number()))?;
        self.keep(handle, Model::made(dtype, self.session.world().size(), count, seed))
    }

    fn exchange(&mut self) -> Wrong<()> {
        let Some((handle, model)) = self.any() else { return self.make() };
        let world = self.session.world();
        let kind = self.random.pick(&Kind::ALL);
        let grows = matches!(kind, Kind::AllGather | Kind::AllGatherV | Kind::Gather);
        // Collectives need the same number of elements on all ranks.
        if model.count().is_none() || grows && model.largest() * world.size() > MAX_GATHERED {
            return self.check_one();
        }
        let reduction = self.random.pick(&REDUCTIONS);
        let reduction = if model.is_exact(reduction, world.size()) { reduction } else { Reduction::Max };
        let exchange = Exchange {
            kind,
            scope: Scope::draw(&mut self.random),
            reduction,
            root: self.random.below(world.size()),
            memory: self.random.pick(&Memory::ALL),
        };
        watch::step(format_args!("{exchange:?} of {} x {}", model.dtype, model.largest()));
        let (kind, scope, reduction, root, memory) = exchange.args();
        let result = self.call("soak.exchange", (&handle, kind, scope, reduction, root, memory))?;
        self.keep(result, model.after(&exchange, world.groups()))
    }

    /// Runs an exchange by a method of the session, on handles.
    fn exchange_by_handles(&mut self) -> Wrong<()> {
        let Some((handle, model)) = self.any() else { return self.make() };
        let world = self.session.world();
        let kind = self.random.pick(&Kind::ALL);
        let grows = matches!(kind, Kind::AllGather | Kind::AllGatherV | Kind::Gather);
        let Some(count) = model.count().filter(|_| !grows || model.largest() * world.size() <= MAX_GATHERED) else {
            return self.check_one();
        };
        let along = Scope::draw_mesh(&mut self.random);
        let scope = self.random.pick(&[Scope::World, Scope::Group, along]);
        let of_session = words(scope.of_session(world.size()))?.ok_or("a split is no scope")?;
        let (plane_scope, ranks) = (of_session.clone(), of_session.ranks(&world));
        let reduction = self.random.pick(&REDUCTIONS);
        let reduction = if model.is_exact(reduction, world.size()) { reduction } else { Reduction::Max };
        let root = self.random.below(ranks);
        let exchange = Exchange { kind, scope, reduction, root, memory: Memory::Shared };
        watch::step(format_args!("{exchange:?} by handles of {} x {count}", model.dtype));
        let number = Kind::ALL.iter().position(|other| *other == kind).unwrap_or(0) as i64;
        let src = self.call("soak.source", (&handle, number, &of_session))?;
        let dst = self.call("soak.target", (&handle, number, root as i64, &of_session))?;
        let (session, rank, block) = (self.session, Rank::new(root as u32), count / ranks);
        let result = block_on(async {
            match kind {
                Kind::AllReduce => session.all_reduce(&src, &dst, reduction, plane_scope).await,
                Kind::Reduce => session.reduce(&src, &dst, reduction, rank, plane_scope).await,
                Kind::ReduceScatter => session.reduce_scatter(&src, &dst, reduction, plane_scope).await,
                Kind::AllGather => session.all_gather(&src, &dst, plane_scope).await,
                Kind::AllGatherV => {
                    let counts: Vec<usize> = (0..ranks).map(|from| uneven(from, count)).collect();
                    session.all_gather_v(&src, &dst, &counts, plane_scope).await
                }
                Kind::Broadcast => session.broadcast_from(&src, &dst, rank, plane_scope).await,
                Kind::Gather => session.gather_to(&src, &dst, rank, plane_scope).await,
                Kind::Scatter => session.scatter_from(&src, &dst, rank, plane_scope).await,
                Kind::AllToAll => session.all_to_all(&src, &dst, plane_scope).await,
                Kind::AllToAllV => {
                    let row = |from| (0..ranks).map(|to| uneven_pair(from, to, block)).collect();
                    let rows: Vec<Vec<usize>> = (0..ranks).map(row).collect();
                    let rows: Vec<&[usize]> = rows.iter().map(Vec::as_slice).collect();
                    session.all_to_all_v(&src, &dst, &rows, plane_scope).await
                }
                // The session's methods have no ring: all its workers would send first.
                Kind::Barrier | Kind::Ring | Kind::Sends => session.barrier(plane_scope).await,
            }
        });
        words(result)?;
        let exchange = match kind {
            Kind::Ring | Kind::Sends => Exchange { kind: Kind::Barrier, ..exchange },
            _ => exchange,
        };
        self.keep(dst, model.after(&exchange, world.groups()))
    }

    /// Runs several exchanges in one call of a worker function.
    fn burst(&mut self) -> Wrong<()> {
        let (seed, exchanges, world) = (self.random.next(), 2 + self.random.below(24), self.session.world());
        watch::step(format_args!("burst of {exchanges}"));
        let hash = self.call("soak.burst", (seed.cast_signed(), exchanges as i64))?;
        let expected = Model::of_burst(seed, exchanges, world.size(), world.groups());
        for worker in world.workers() {
            let found: i64 = words(block_on(self.session.get(&hash, worker)))?;
            if found != expected[worker.index()] {
                return Err(format!("{worker} has wrong elements in a burst of {exchanges} exchanges"));
            }
        }
        Ok(())
    }

    /// Copies the tensor of worker 0 to the controller, and broadcasts it from there.
    fn broadcast(&mut self) -> Wrong<()> {
        let Some((handle, model)) = self.any() else { return self.make() };
        let Some(count) = model.count() else { return Ok(()) };
        watch::step("copy from worker 0, and broadcast");
        let host = words(Tensor::zeros(model.dtype, [count as i64]))?;
        words(block_on(self.session.copy_from_worker_0(&host, &handle)))?;
        words(block_on(self.session.sync_worker(WorkerId::new(0))))?;
        if *words(host.bytes())? != *model.bytes(0) {
            return Err("copy_from_worker_0 gave other elements".into());
        }
        let dst = words(block_on(self.session.empty(model.dtype, [count as i64], disco::Placement::All)))?;
        words(block_on(self.session.broadcast(&host, &dst)))?;
        self.keep(dst, model.alike(0))
    }

    /// Replaces a tensor by its copy in a checkpoint.
    fn checkpoint(&mut self) -> Wrong<()> {
        let Some((handle, model)) = self.any() else { return self.make() };
        let loaded = checkpoints::through(self.session, &handle, &mut self.random)?;
        self.keep(loaded, model)
    }

    fn numbers(&mut self) -> Wrong<()> {
        let (x, y, worker) = (self.random.below(1000) as i64, self.random.below(1000) as i64, self.worker());
        watch::step(format_args!("numbers on {worker}"));
        let sum = self.call("soak.add", (x, y))?;
        words(block_on(self.session.set(&sum, worker, Value::Int(x + y + 1))))?;
        let more = self.call("soak.add", (&sum, 1i64))?;
        for other in self.session.world().workers() {
            let expected = x + y + 1 + i64::from(other == worker);
            let found: i64 = words(block_on(self.session.get(&more, other)))?;
            if found != expected {
                return Err(format!("soak.add: {other} has {found} in place of {expected}"));
            }
        }
        Ok(())
    }

    /// Opens the library on all workers, and calls its functions with numbers and with a tensor.
    fn library(&mut self) -> Wrong<()> {
        let Some(path) = library::path() else { return self.numbers() };
        let (session, x, y) = (self.session, self.random.below(1000) as i64, self.random.below(1000) as i64);
        let is_sent = self.random.chance(30);
        watch::step(format_args!("functions of a library, sent: {is_sent}"));
        let file = LibraryFile::new(path);
        let module = words(block_on(Module::load(session, if is_sent { file.send() } else { file })))?;
        let [add, identity] = ["add4", "identity"].map(|name| words(block_on(module.function(session, name))));
        let (add, identity) = (add?, identity?);
        // The functions keep the library open.
        drop(module);
        let sum = words(block_on(session.call(&add, (x, y, 3i64, -4i64))))?;
        let sums: Vec<i64> = words(block_on(session.get_all(&sum)))?;
        if sums.iter().any(|sum| *sum != x + y - 1) {
            return Err(format!("add4 of the library gave {sums:?} in place of {}", x + y - 1));
        }
        let Some((handle, model)) = self.any() else { return Ok(()) };
        let same = words(block_on(session.call(&identity, (&handle,))))?;
        self.keep(same, model)
    }

    fn bytes(&mut self) -> Wrong<()> {
        let size = self.random.pick(&[0, 1, 1000, 60_000, 70_000, 500_000]);
        let worker = self.worker();
        watch::step(format_args!("{size} bytes to all, back from {worker}"));
        let handle = self.call("soak.length", (Value::from(vec![7u8; size]),))?;
        let length: i64 = words(block_on(self.session.get(&handle, worker)))?;
        if length == size as i64 { Ok(()) } else { Err(format!("{worker} got {length} bytes in place of {size}")) }
    }

    fn meet(&mut self) -> Wrong<()> {
        static MEETINGS: AtomicU64 = AtomicU64::new(0);
        let key = format!("meeting {}", MEETINGS.fetch_add(1, Ordering::Relaxed));
        watch::step(&key);
        let came = self.call("soak.meet", (key,))?;
        let worker = self.worker();
        let came: i64 = words(block_on(self.session.get(&came, worker)))?;
        let workers = self.session.world().size() as i64;
        if came == workers { Ok(()) } else { Err(format!("{came} of {workers} workers came to a meeting")) }
    }

    /// Polls futures a few times and drops them.
    fn abandon(&mut self) -> Wrong<()> {
        let worker = self.worker();
        let Some((handle, _)) = self.any() else { return Ok(()) };
        watch::step("futures that are dropped");
        let hash = words(block_on(self.session.function("soak.hash")))?;
        let polls = self.random.below(3);
        poll(polls, self.session.call(&hash, (&handle,)));
        poll(polls, self.session.value(&handle, worker));
        poll(polls, self.session.values(&handle));
        poll(polls, self.session.sync_all());
        poll(polls, self.session.sync_worker(worker));
        Ok(())
    }

    /// Drops handles, here or on another thread.
    fn forget(&mut self) -> Wrong<()> {
        if self.known.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.known.len());
        let (handle, _) = self.known.swap_remove(at);
        watch::step("a handle is dropped");
        if self.random.chance(50) {
            drop(handle)
        } else {
            thread::spawn(move || drop(handle)).join().map_err(|_| "the drop of a handle panicked")?
        }
        Ok(())
    }

    /// Compares all kept tensors with their models.
    pub(crate) fn check_all(&mut self) -> Wrong<()> {
        self.values.check_all()?;
        (0..self.known.len()).try_for_each(|at| self.check(at))
    }

    fn check_one(&mut self) -> Wrong<()> {
        match self.known.len() {
            0 => Ok(()),
            len => {
                let at = self.random.below(len);
                self.check(at)
            }
        }
    }

    fn check(&mut self, at: usize) -> Wrong<()> {
        watch::step("a tensor is compared");
        let (handle, model) = self.known[at].clone();
        let hash = self.call("soak.hash", (&handle,))?;
        let found: Vec<i64> = words(block_on(self.session.get_all(&hash)))?;
        for (worker, found) in self.session.world().workers().zip(found) {
            if found != model.hash(worker.index()) {
                return Err(format!(
                    "{worker} has wrong elements in a tensor of {} x {}",
                    model.dtype,
                    model.largest()
                ));
            }
        }
        Ok(())
    }

    fn call(&self, function: &str, args: impl disco::IntoArgs) -> Wrong<DRef> {
        words(block_on(self.session.call(function, args)))
    }

    fn any(&mut self) -> Option<(DRef, Model)> {
        let count = self.known.len();
        (count > 0).then(|| self.known[self.random.below(count)].clone())
    }

    /// Keeps a tensor; may replace another one, after a last comparison.
    fn keep(&mut self, handle: DRef, model: Model) -> Wrong<()> {
        if self.known.len() == KEPT {
            let at = self.random.below(KEPT);
            self.check(at)?;
            self.known.swap_remove(at);
        }
        self.known.push((handle, model));
        Ok(())
    }

    fn worker(&mut self) -> WorkerId {
        WorkerId::new(self.random.below(self.session.world().size()) as u32)
    }
}

pub(crate) fn words<T>(result: Result<T>) -> Wrong<T> {
    result.map_err(|error| error.to_string())
}

/// Polls a future `times` times, and drops it.
pub(crate) fn poll(times: usize, future: impl Future) {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..times {
        if future.as_mut().poll(&mut context).is_ready() {
            return;
        }
    }
}
