//! The session over any set of lanes.

use std::collections::HashMap;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_lite::future;

use super::closing::Closing;
use super::dref::Home;
use super::large::{Transfers, Values, check_crossing, payload_len};
use super::mail::Mail;
use super::order::Order;
use super::patience::Patience;
use super::registers::RegisterIds;
use super::ticker::Ticker;
use super::waits::room;
use super::{Arguments, DRef, Deadlines, Session};
use crate::channel::{Channel, Reply, SMALL_FRAME, Signal};
use crate::command::{Command, Local};
use crate::error::{Error, Result};
use crate::function;
use crate::id::{RegisterId, WorkerId};
use crate::sync;
use crate::tensor::Tensor;
use crate::value::Value;
use crate::wire::Frame;
use crate::world::World;

/// Limit of the wait for workers when a session is dropped, or shut down after a wait has passed its deadline. Each lane adds up
/// to 2 s where it gives workers up.
const DROP_LIMIT: Duration = Duration::from_secs(3);
/// Time between warnings of a shutdown that waits for workers.
const SHUTDOWN_WARNING: Duration = Duration::from_secs(2);

/// A session over lanes that together reach all workers.
///
/// Dropping it without a finished [`Session::shutdown`] aborts what runs, blocks the calling thread until the workers have left,
/// detaches or kills the ones that have not, and logs their ids. That takes 3 s at most ([`Deadlines::close`] if that is shorter),
/// and up to 2 s more for each lane with such workers. Async programs await [`Session::shutdown`] first: then a drop waits for
/// nothing.
pub struct LaneSession {
    pub(super) world: World,
    pub(super) limits: Deadlines,
    pub(super) lanes: Vec<Arc<dyn Channel>>,
    /// Whether some lead to other processes.
    crosses: bool,
    pub(super) mail: Arc<Mail>,
    home: Arc<Home>,
    /// The order ticket: whoever holds it may send. Never held over an await, so that nobody depends on whether another's
    /// future is polled.
    order: Mutex<Order>,
    /// Written by the holder of the order ticket.
    functions: Mutex<HashMap<String, DRef>>,
    /// Takes no more commands.
    closed: AtomicBool,
    closing: Arc<Closing>,
    /// A wait has passed its deadline since all workers answered last.
    pub(super) is_hung: AtomicBool,
    pub(super) ticker: Ticker,
    pub(super) transfers: Transfers,
}

impl LaneSession {
    /// Starts the lanes, which together reach each worker of `world` once. Blocks as long as [`Channel::start`] of each.
    ///
    /// # Errors
    /// They do not, or a lane can't be started.
    pub fn start(world: World, lanes: Vec<Arc<dyn Channel>>, limits: Deadlines) -> Result<Self> {
        function::check_names()?;
        let mut next = 0;
        for lane in &lanes {
            let workers = lane.workers();
            if workers.first().index() != next {
                return Err(Error::invalid(format!("lane to {workers} where worker {next} is due")));
            }
            next = workers.indices().end;
        }
        if next != world.size() {
            return Err(Error::invalid(format!("lanes to {next} workers for a world of {}", world.size())));
        }
        let mail = Arc::new(Mail::default());
        mail.set_lanes(&lanes);
        lanes.iter().try_for_each(|lane| lane.start(mail.clone()))?;
        let crosses = lanes.iter().any(|lane| lane.crosses());
        Ok(Self {
            world,
            limits,
            lanes,
            crosses,
            mail,
            home: Arc::default(),
            order: Mutex::default(),
            functions: Mutex::default(),
            closed: AtomicBool::new(false),
            closing: Arc::default(),
            is_hung: AtomicBool::new(false),
            ticker: Ticker::default(),
            transfers: Transfers::default(),
        })
    }

    /// Does `go` under the order ticket as soon as all lanes have room.
    async fn turn<T>(
        &self,
        operation: &str,
        live: fn(&Mail) -> Result<()>,
        go: impl FnOnce(&mut Order) -> Result<T>,
    ) -> Result<T> {
        self.turn_with(operation, live, Values::SMALL, |order, _| go(order)).await
    }

    /// [`LaneSession::turn`] of a command with these values: small commands need not wait for lanes that are behind with large ones.
    async fn turn_with<T>(
        &self,
        operation: &str,
        live: fn(&Mail) -> Result<()>,
        values: Values,
        go: impl FnOnce(&mut Order, Values) -> Result<T>,
    ) -> Result<T> {
        let mut full = None;
        let is_large = values.is_large;
        loop {
            {
                let mut order = self.order();
                self.check(operation, live)?;
                if self.has_room(is_large) {
                    return go(&mut order, values);
                }
            }
            let (ticks, patience) = full.get_or_insert_with(|| (self.ticker.start(), Patience::new()));
            let (room, tick) = (self.mail.room.listen(), ticks.next());
            // What changed before now wakes nobody.
            self.check(operation, live)?;
            if !self.has_room(is_large) {
                future::or(room, tick).await;
                self.check_stall(patience, is_large)?;
            }
        }
    }

    fn order(&self) -> MutexGuard<'_, Order> {
        sync::lock(&self.order)
    }

    pub(super) fn check(&self, operation: &str, live: fn(&Mail) -> Result<()>) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::Closed(operation.to_owned())),
            false => live(&self.mail).map_err(|error| match error {
                Error::Worker(failure) => Error::Earlier { operation: operation.to_owned(), failure },
                other => other,
            }),
        }
    }

    fn has_room(&self, is_large: bool) -> bool {
        self.lanes.iter().all(|lane| room(&**lane, is_large) > 0)
    }

    /// Passes the next command, with the ids freed since the last, to all lanes.
    fn send(
        &self,
        order: &mut Order,
        mut values: Values,
        make: impl FnOnce(&mut RegisterIds) -> Result<Command>,
    ) -> Result<()> {
        let frame = order.next(&self.home, &values, make)?;
        let kept = match self.crosses {
            true => check_crossing(&self.lanes, &frame),
            false => Ok(None),
        };
        match kept {
            Ok(_kept) => {
                // Where one lane fails, the session is lost, and others may have the frame: nothing is taken back.
                values.note_passed();
                self.pass(&frame)
            }
            // It has taken a number and freed ids: these go on, without what can't.
            Err(error) => self.pass(&Arc::new(frame.without_command())).and(Err(error)),
        }
    }

    fn pass(&self, frame: &Arc<Frame>) -> Result<()> {
        for lane in &self.lanes {
            if let Err(error) = lane.send(frame) {
                // Other lanes may have it: the workers no longer run one program.
                tracing::error!(%error, ?lane, "session lost");
                self.mail.lose(&error);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Submits a command that sets a register.
    fn define(&self, order: &mut Order, values: Values, make: impl FnOnce(RegisterId) -> Command) -> Result<DRef> {
        let mut handle = None;
        self.send(order, values, |registers| {
            let register = registers.take()?;
            // Freed again if the command does not go.
            handle = Some(DRef::new(register, &self.home));
            Ok(make(register))
        })?;
        handle.ok_or_else(|| Error::state("no register was taken"))
    }

    /// Submits a call; `args` are empty afterwards.
    fn call(&self, order: &mut Order, values: Values, function: &DRef, args: &mut Arguments) -> Result<DRef> {
        self.home.check(function)?;
        args.check(&self.home)?;
        let args_of_call = std::mem::take(&mut args.values);
        let call = |register| Command::CallPacked { register, function: function.register(), args: args_of_call };
        let handle = self.define(order, values, call);
        // Not before the call is submitted: a dropped handle may be freed ahead of the next command.
        args.handles.clear();
        handle
    }

    /// Submits a command that wants replies from `from`, and waits for them. Works on a failed session too.
    async fn ask(
        &self,
        operation: &'static str,
        values: Values,
        from: Vec<WorkerId>,
        command: Command,
    ) -> Result<Vec<Reply>> {
        let expected = self.turn_with(operation, Mail::check_lost, values, |order, values| {
            let expected = self.mail.expect(operation, order.next_seq(), from);
            self.send(order, values, |_| Ok(command)).map(|()| expected)
        });
        let replies = self.replies(operation, &expected.await?).await;
        self.order().release();
        replies
    }

    pub(super) fn lane_of(&self, worker: WorkerId) -> &Arc<dyn Channel> {
        // Lanes reach every worker of the world, and `worker` was checked or made by us.
        let lane = self.lanes.iter().find(|lane| lane.workers().contains(worker));
        lane.unwrap_or(&self.lanes[0])
    }

    /// The value of the one reply; the failure as by [`Self::judge_all`].
    fn judge(&self, replies: Vec<Reply>) -> Result<Value> {
        self.judge_all(replies).map(|values| values.into_iter().next().unwrap_or(Value::None))
    }

    /// The values of a set of replies, or the failure to report: the root cause where it is known.
    fn judge_all(&self, replies: Vec<Reply>) -> Result<Vec<Value>> {
        let mut values = Vec::with_capacity(replies.len());
        let mut failures = Vec::new();
        for reply in replies {
            match reply {
                Ok(value) => values.push(value),
                Err(failure) => failures.push(failure),
            }
        }
        failures.sort_by_key(|failure| failure.aborted);
        match failures.into_iter().next() {
            None => Ok(values),
            Some(failure) if failure.aborted => Err(Error::Worker(self.mail.root_cause().unwrap_or(failure))),
            Some(failure) => Err(Error::Worker(failure)),
        }
    }

    fn functions(&self) -> MutexGuard<'_, HashMap<String, DRef>> {
        sync::lock(&self.functions)
    }

    /// Tells the workers to leave, whatever is still queued.
    fn let_go(&self) {
        for lane in &self.lanes {
            if let Err(error) = lane.urgent(Signal::Shutdown) {
                tracing::warn!(%error, ?lane, "can't be told to shut down");
            }
        }
    }
}

#[async_trait]
impl Session for LaneSession {
    fn world(&self) -> World {
        self.world
    }

    async fn function(&self, name: &str) -> Result<DRef> {
        self.check("function", Mail::check)?;
        if let Some(known) = self.functions().get(name) {
            return Ok(known.clone());
        }
        // Workers run the same program, so that a misspelt name need not fail on all of them first.
        function::find(name)?;
        self.turn("function", Mail::check, |order| {
            if let Some(known) = self.functions().get(name) {
                return Ok(known.clone());
            }
            let handle =
                self.define(order, Values::SMALL, |register| Command::GetGlobalFunc { register, name: name.into() })?;
            self.functions().insert(name.to_owned(), handle.clone());
            Ok(handle)
        })
        .await
    }

    async fn submit(&self, function: &DRef, mut args: Arguments) -> Result<DRef> {
        self.check("call", Mail::check)?;
        let values = self.prepare("call", None, Mail::check, &args.values).await?;
        self.turn_with("call", Mail::check, values, |order, values| self.call(order, values, function, &mut args)).await
    }

    fn try_submit(&self, function: &DRef, args: &mut Arguments) -> Option<Result<DRef>> {
        // Large values that cross are copied without the order ticket, by `submit`.
        if self.crosses && payload_len(&args.values) > SMALL_FRAME {
            return None;
        }
        let mut order = self.order();
        if let Err(error) = self.check("call", Mail::check) {
            return Some(Err(error));
        }
        self.has_room(false).then(|| self.call(&mut order, Values::SMALL, function, args))
    }

    async fn sync_worker(&self, worker: WorkerId) -> Result<()> {
        self.world.check(worker)?;
        let replies = self.ask("sync_worker", Values::SMALL, vec![worker], Command::SyncWorker { worker }).await?;
        self.judge(replies).map(drop)
    }

    async fn sync_all(&self) -> Result<()> {
        let replies = self.ask("sync_all", Values::SMALL, self.world.workers().collect(), Command::SyncAll).await?;
        // Several may have failed; calls are refused with the first, so it is the one to report here.
        self.is_hung.store(false, Ordering::Relaxed);
        self.judge(replies).map(drop).map_err(|error| self.mail.root_cause().map_or(error, Error::Worker))
    }

    async fn get(&self, handle: &DRef, worker: WorkerId) -> Result<Value> {
        self.home.check(handle)?;
        self.world.check(worker)?;
        let command = Command::DebugGet { register: handle.register(), worker };
        let replies = self.ask("get", Values::SMALL, vec![worker], command).await?;
        self.judge(replies)
    }

    async fn get_all(&self, handle: &DRef) -> Result<Vec<Value>> {
        self.home.check(handle)?;
        let command = Command::GetAll { register: handle.register() };
        let replies = self.ask("get_all", Values::SMALL, self.world.workers().collect(), command).await?;
        self.is_hung.store(false, Ordering::Relaxed);
        // As `sync_all`.
        self.judge_all(replies).map_err(|error| self.mail.root_cause().map_or(error, Error::Worker))
    }

    async fn set(&self, handle: &DRef, worker: WorkerId, value: Value) -> Result<()> {
        self.home.check(handle)?;
        self.world.check(worker)?;
        if matches!(value, Value::Register(_)) {
            return Err(Error::invalid("set: a register can't hold a register"));
        }
        self.check("set", Mail::check_lost)?;
        let values = self.prepare("set", Some(worker), Mail::check_lost, std::slice::from_ref(&value)).await?;
        let command = Command::DebugSet { register: handle.register(), worker, value };
        let replies = self.ask("set", values, vec![worker], command).await?;
        self.judge(replies).map(drop)
    }

    async fn copy_from_worker_0(&self, host: &Tensor, from: &DRef) -> Result<()> {
        self.home.check(from)?;
        let command = Command::CopyFromWorker0 { register: from.register(), host: Local(Some(host.clone())) };
        self.turn("copy_from_worker_0", Mail::check, |order| self.send(order, Values::SMALL, |_| Ok(command))).await
    }

    async fn copy_to_worker_0(&self, host: &Tensor, to: &DRef) -> Result<()> {
        self.home.check(to)?;
        let command = Command::CopyToWorker0 { register: to.register(), host: Local(Some(host.clone())) };
        self.turn("copy_to_worker_0", Mail::check, |order| self.send(order, Values::SMALL, |_| Ok(command))).await
    }

    async fn recover(&self) -> Result<()> {
        self.turn("recover", Mail::check_lost, |order| {
            let Some(epoch) = self.mail.next_epoch() else { return Ok(()) };
            // Looked up anew: a lookup that was skipped left its register poisoned.
            self.functions().clear();
            self.send(order, Values::SMALL, |_| Ok(Command::Recover { epoch }))
        })
        .await
    }

    async fn shutdown(&self) -> Result<()> {
        if self.closing.is_done() {
            return Ok(());
        }
        let was_live = self.mail.check_lost().is_ok();
        if !self.closed.swap(true, Ordering::AcqRel) {
            // Whoever waits for room, fails.
            self.mail.room.notify(usize::MAX);
            let mut order = self.order();
            // Behind everything submitted, if there is room; else ahead of it.
            if !self.has_room(false) || self.send(&mut order, Values::SMALL, |_| Ok(Command::Shutdown)).is_err() {
                self.let_go();
            }
        }
        let limit = match self.is_hung.load(Ordering::Relaxed) {
            true => self.limits.close.min(DROP_LIMIT),
            false => self.limits.close,
        };
        let (lanes, mail) = (self.lanes.clone(), self.mail.clone());
        let close = move || {
            close(&lanes, &mail, limit)?;
            // A worker that was lost on the way has not executed its last commands.
            if was_live { mail.check_lost() } else { Ok(()) }
        };
        let mut run = pin!(self.closing.run(close));
        let (ticks, begun, mut warned) = (self.ticker.start(), Instant::now(), Instant::now());
        loop {
            let tick = async {
                ticks.next().await;
                None
            };
            if let Some(result) = future::or(async { Some(run.as_mut().await) }, tick).await {
                return result;
            }
            if warned.elapsed() >= SHUTDOWN_WARNING.min(self.limits.warn) {
                warned = Instant::now();
                self.warn_of_shutdown(begun.elapsed(), limit);
            }
        }
    }
}

/// Blocks until the workers have left, for at most `limit`, and ends the waits for replies that never come. Closes all
/// lanes, whichever fails or panics.
fn close(lanes: &[Arc<dyn Channel>], mail: &Mail, limit: Duration) -> Result<()> {
    let start = Instant::now();
    let mut result = Ok(());
    for lane in lanes {
        let close = AssertUnwindSafe(|| lane.close(limit.saturating_sub(start.elapsed())));
        let panicked = |_| Err(Error::state(format!("the lane to {} panicked when it was closed", lane.workers())));
        let closed = panic::catch_unwind(close).unwrap_or_else(panicked);
        result = result.and(closed.map_err(|error| match error {
            Error::Stuck { workers, .. } => Error::Stuck { workers, after: limit },
            other => other,
        }));
    }
    mail.close();
    result
}

impl fmt::Debug for LaneSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let closed = self.closed.load(Ordering::Relaxed);
        f.debug_struct("LaneSession").field("world", &self.world).field("closed", &closed).finish_non_exhaustive()
    }
}

impl Drop for LaneSession {
    fn drop(&mut self) {
        if self.closing.is_done() {
            return;
        }
        // Also ends what runs where a shutdown was begun whose future is dropped.
        self.mail.lose(&Error::Closed("drop".to_owned()));
        self.let_go();
        if let Err(error) = close(&self.lanes, &self.mail, DROP_LIMIT.min(self.limits.close)) {
            tracing::error!(%error, "session dropped");
        }
    }
}
