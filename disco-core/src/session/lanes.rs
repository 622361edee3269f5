//! The session over any set of lanes.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use async_lock::{Mutex as AsyncMutex, MutexGuard};
use async_trait::async_trait;
use futures_lite::future;

use super::dref::Home;
use super::mail::{Expected, Mail};
use super::order::Order;
use super::patience::Patience;
use super::registers::RegisterIds;
use super::ticker::Ticker;
use super::{Arguments, DRef, Deadlines, Session};
use crate::channel::{Channel, Reply, Signal};
use crate::command::{Command, Local};
use crate::error::{Error, Result};
use crate::function;
use crate::id::{RegisterId, WorkerId};
use crate::tensor::Tensor;
use crate::value::Value;
use crate::world::World;

/// How long a wait for a reply stays awake: what it takes to wake a sleeping thread on another processor.
const AWAKE: Duration = Duration::from_micros(50);

/// A session over lanes that together reach all workers.
///
/// Dropping it without [`Session::shutdown`] aborts what runs, waits for the workers as shutdown does, and logs who is
/// left.
pub struct LaneSession {
    world: World,
    limits: Deadlines,
    lanes: Vec<Arc<dyn Channel>>,
    mail: Arc<Mail>,
    home: Arc<Home>,
    /// The order ticket: whoever holds it may send.
    order: AsyncMutex<Order>,
    functions: Mutex<HashMap<String, DRef>>,
    closed: AtomicBool,
    ticker: Ticker,
}

impl LaneSession {
    /// Starts the lanes, which together reach each worker of `world` once.
    ///
    /// # Errors
    /// They do not, or a lane can't be started.
    pub fn start(world: World, lanes: Vec<Arc<dyn Channel>>, limits: Deadlines) -> Result<Self> {
        let mut next = 0;
        for lane in &lanes {
            let workers = lane.workers();
            if workers.start.index() != next {
                return Err(Error::invalid(format!("lane to {workers:?} where worker {next} is due")));
            }
            next = workers.end.index();
        }
        if next != world.size() {
            return Err(Error::invalid(format!("lanes to {next} workers for a world of {}", world.size())));
        }
        let mail = Arc::new(Mail::default());
        mail.set_lanes(&lanes);
        lanes.iter().try_for_each(|lane| lane.start(mail.clone()))?;
        Ok(Self {
            world,
            limits,
            lanes,
            mail,
            home: Arc::default(),
            order: AsyncMutex::default(),
            functions: Mutex::default(),
            closed: AtomicBool::new(false),
            ticker: Ticker::default(),
        })
    }

    /// Waits for the order ticket and for room in all lanes. From here to [`LaneSession::send`] nothing may await.
    async fn turn(&self, operation: &str, live: fn(&Mail) -> Result<()>) -> Result<MutexGuard<'_, Order>> {
        let order = self.order.lock().await;
        let check = || self.check(operation, live);
        check()?;
        if !self.has_room() {
            self.await_room(check).await?;
        }
        Ok(order)
    }

    fn check(&self, operation: &str, live: fn(&Mail) -> Result<()>) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::Closed(operation.to_owned())),
            false => live(&self.mail),
        }
    }

    fn has_room(&self) -> bool {
        self.lanes.iter().all(|lane| lane.room() > 0)
    }

    async fn await_room(&self, check: impl Fn() -> Result<()>) -> Result<()> {
        let ticks = self.ticker.start();
        let mut patience = Patience::new();
        loop {
            let (room, tick) = (self.mail.room.listen(), ticks.next());
            check()?;
            if self.has_room() {
                return Ok(());
            }
            future::or(room, tick).await;
            let full = self.lanes.iter().filter(|lane| lane.room() == 0);
            let workers = full.flat_map(|lane| self.members(lane).map(|worker| (worker, lane.progress(worker))));
            if let Some((worker, progress)) = workers.min_by_key(|(_, progress)| progress.finished)
                && let Some(stalled) = patience.room(&self.limits, worker, &progress)
            {
                return Err(stalled);
            }
        }
    }

    fn members(&self, lane: &Arc<dyn Channel>) -> impl Iterator<Item = WorkerId> + use<> {
        let workers = lane.workers();
        (workers.start.index()..workers.end.index()).map(|index| WorkerId::new(index as u32))
    }

    /// Passes the next command, with the ids freed since the last, to all lanes.
    fn send(&self, order: &mut Order, make: impl FnOnce(&mut RegisterIds) -> Result<Command>) -> Result<()> {
        let frame = order.next(&self.home, make)?;
        for lane in &self.lanes {
            if let Err(error) = lane.send(&frame) {
                // Other lanes may have it: the workers no longer run one program.
                tracing::error!(%error, ?lane, "session lost");
                self.mail.lose(&error);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Submits a command that sets a register.
    fn define(&self, order: &mut Order, make: impl FnOnce(RegisterId) -> Command) -> Result<DRef> {
        let mut register = RegisterId::new(0);
        self.send(order, |registers| {
            register = registers.take()?;
            Ok(make(register))
        })?;
        Ok(DRef::new(register, &self.home))
    }

    /// Submits a call; `args` are empty afterwards.
    fn call(&self, order: &mut Order, function: &DRef, args: &mut Arguments) -> Result<DRef> {
        self.home.check(function)?;
        args.handles.iter().try_for_each(|handle| self.home.check(handle))?;
        let values = std::mem::take(&mut args.values);
        let call = |register| Command::CallPacked { register, function: function.register(), args: values };
        let handle = self.define(order, call);
        // Not before the call is submitted: a dropped handle may be freed ahead of the next command.
        args.handles.clear();
        handle
    }

    /// Submits a command that wants replies from `from`, and waits for them. Works on a failed session too.
    async fn ask(&self, operation: &str, from: Vec<WorkerId>, command: Command) -> Result<Vec<Reply>> {
        let mut order = self.turn(operation, Mail::check_lost).await?;
        let expected = self.mail.expect(order.next_seq(), from);
        self.send(&mut order, |_| Ok(command))?;
        drop(order);
        let replies = self.replies(operation, &expected).await;
        if let Some(mut order) = self.order.try_lock() {
            order.release();
        }
        replies
    }

    async fn replies(&self, operation: &str, expected: &Expected<'_>) -> Result<Vec<Reply>> {
        let pending = &expected.pending;
        let asked = Instant::now();
        while asked.elapsed() < AWAKE {
            if let Some(replies) = pending.take() {
                return replies;
            }
            // First to workers that have no processor, then to other tasks of this executor.
            thread::yield_now();
            future::yield_now().await;
        }
        let ticks = self.ticker.start();
        let mut patience = Patience::new();
        loop {
            let (done, tick) = (pending.done.listen(), ticks.next());
            if let Some(replies) = pending.take() {
                return replies;
            }
            future::or(done, tick).await;
            if let Some(replies) = pending.take() {
                return replies;
            }
            for worker in pending.missing() {
                let progress = self.lane_of(worker).progress(worker);
                if let Some(late) = patience.reply(&self.limits, operation, worker, &progress) {
                    return Err(late);
                }
            }
        }
    }

    fn lane_of(&self, worker: WorkerId) -> &Arc<dyn Channel> {
        // Lanes reach every worker of the world, and `worker` was checked or made by us.
        let lane = self.lanes.iter().find(|lane| lane.workers().contains(&worker));
        lane.unwrap_or(&self.lanes[0])
    }

    /// The failure to report for a set of replies: the root cause where it is known.
    fn judge(&self, replies: Vec<Reply>) -> Result<Value> {
        let mut value = Value::None;
        let mut failures = Vec::new();
        for reply in replies {
            match reply {
                Ok(answer) => value = answer,
                Err(failure) => failures.push(failure),
            }
        }
        failures.sort_by_key(|failure| failure.aborted);
        match failures.into_iter().next() {
            None => Ok(value),
            Some(failure) if failure.aborted => Err(Error::Worker(self.mail.root_cause().unwrap_or(failure))),
            Some(failure) => Err(Error::Worker(failure)),
        }
    }

    fn functions(&self) -> std::sync::MutexGuard<'_, HashMap<String, DRef>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes all lanes, the ones that fail too.
    async fn close(&self) -> Result<()> {
        let start = Instant::now();
        let mut result = Ok(());
        for lane in &self.lanes {
            let closed = lane.close(self.limits.close.saturating_sub(start.elapsed())).await;
            result = result.and(closed);
        }
        result
    }
}

#[async_trait]
impl Session for LaneSession {
    fn world(&self) -> World {
        self.world
    }

    async fn function(&self, name: &str) -> Result<DRef> {
        if let Some(known) = self.functions().get(name) {
            return Ok(known.clone());
        }
        // Workers run the same program, so that a misspelt name need not fail on all of them first.
        function::find(name)?;
        let mut order = self.turn("function", Mail::check).await?;
        let handle = self.define(&mut order, |register| Command::GetGlobalFunc { register, name: name.into() })?;
        drop(order);
        Ok(self.functions().entry(name.to_owned()).or_insert(handle).clone())
    }

    async fn submit(&self, function: &DRef, mut args: Arguments) -> Result<DRef> {
        let mut order = self.turn("call", Mail::check).await?;
        self.call(&mut order, function, &mut args)
    }

    fn try_submit(&self, function: &DRef, args: &mut Arguments) -> Option<Result<DRef>> {
        let mut order = self.order.try_lock()?;
        if let Err(error) = self.check("call", Mail::check) {
            return Some(Err(error));
        }
        self.has_room().then(|| self.call(&mut order, function, args))
    }

    async fn sync_worker(&self, worker: WorkerId) -> Result<()> {
        self.world.check(worker)?;
        let replies = self.ask("sync_worker", vec![worker], Command::SyncWorker { worker }).await?;
        self.judge(replies).map(drop)
    }

    async fn sync_all(&self) -> Result<()> {
        let replies = self.ask("sync_all", self.world.workers().collect(), Command::SyncAll).await?;
        self.judge(replies).map(drop)
    }

    async fn get(&self, handle: &DRef, worker: WorkerId) -> Result<Value> {
        self.home.check(handle)?;
        self.world.check(worker)?;
        let command = Command::DebugGet { register: handle.register(), worker };
        let replies = self.ask("get", vec![worker], command).await?;
        self.judge(replies)
    }

    async fn set(&self, handle: &DRef, worker: WorkerId, value: Value) -> Result<()> {
        self.home.check(handle)?;
        self.world.check(worker)?;
        if matches!(value, Value::Register(_)) {
            return Err(Error::invalid("set: a register can't hold a register"));
        }
        let command = Command::DebugSet { register: handle.register(), worker, value };
        let replies = self.ask("set", vec![worker], command).await?;
        self.judge(replies).map(drop)
    }

    async fn copy_from_worker_0(&self, host: &Tensor, from: &DRef) -> Result<()> {
        self.home.check(from)?;
        let command = Command::CopyFromWorker0 { register: from.register(), host: Local(Some(host.clone())) };
        let mut order = self.turn("copy_from_worker_0", Mail::check).await?;
        self.send(&mut order, |_| Ok(command))
    }

    async fn copy_to_worker_0(&self, host: &Tensor, to: &DRef) -> Result<()> {
        self.home.check(to)?;
        let command = Command::CopyToWorker0 { register: to.register(), host: Local(Some(host.clone())) };
        let mut order = self.turn("copy_to_worker_0", Mail::check).await?;
        self.send(&mut order, |_| Ok(command))
    }

    async fn recover(&self) -> Result<()> {
        let mut order = self.turn("recover", Mail::check_lost).await?;
        let Some(epoch) = self.mail.next_epoch() else { return Ok(()) };
        // Looked up anew: a lookup that was skipped left its register poisoned.
        self.functions().clear();
        self.send(&mut order, |_| Ok(Command::Recover { epoch }))
    }

    async fn shutdown(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // Whoever waits for room holds the ticket; let it fail.
        self.mail.room.notify(usize::MAX);
        {
            let mut order = self.order.lock().await;
            // Behind everything submitted, if there is room; else ahead of it.
            if !self.has_room() || self.send(&mut order, |_| Ok(Command::Shutdown)).is_err() {
                self.lanes.iter().try_for_each(|lane| lane.urgent(Signal::Shutdown))?;
            }
        }
        self.close().await
    }
}

impl fmt::Debug for LaneSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let closed = self.closed.load(Ordering::Relaxed);
        f.debug_struct("LaneSession").field("world", &self.world).field("closed", &closed).finish_non_exhaustive()
    }
}

impl Drop for LaneSession {
    fn drop(&mut self) {
        if std::mem::replace(self.closed.get_mut(), true) {
            return;
        }
        self.mail.lose(&Error::Closed("drop".to_owned()));
        for lane in &self.lanes {
            if let Err(error) = lane.urgent(Signal::Shutdown) {
                tracing::warn!(%error, ?lane, "can't be told to shut down");
            }
        }
        if let Err(error) = future::block_on(self.close()) {
            tracing::error!(%error, "session dropped");
        }
    }
}
