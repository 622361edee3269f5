//! The session over any set of lanes.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use async_trait::async_trait;
use futures_lite::future;

use super::asking::Question;
use super::closing::Closing;
use super::deadline_watch::DeadlineWatch;
use super::dref::FreedIds;
use super::functions::Functions;
use super::lane_set::Lanes;
use super::large::{Transfers, Values, check_crossing, payload_len};
use super::order::Order;
use super::registers::RegisterIds;
use super::replacing::{Replaced, Replacing};
use super::reply_table::{LaneInbox, Replies, ReplyTable};
use super::resizing::{Growth, Resized};
use super::sleepers::Sleepers;
use super::subset::Subsets;
use super::ticker::Ticker;
use super::timeline::Recorder;
use super::{Arguments, DRef, Deadlines, Session};
use crate::channel::{Channel, FrameSize, Inbox as _, SMALL_FRAME};
use crate::command::Command;
use crate::error::{Error, LossCause, LostPeer, Result};
use crate::function;
use crate::id::{RegisterId, WorkerId};
use crate::members::Members;
use crate::metrics;
use crate::status::Status;
use crate::sync;
use crate::tensor::Tensor;
use crate::value::Value;
use crate::wire::Frame;
use crate::world::World;

/// A session over lanes that together reach all workers.
///
/// Dropping a session without a finished [`Session::shutdown`] aborts running operations and blocks the calling thread
/// until the workers have left, for at most 3 s ([`Deadlines::close`] if that is shorter). Workers that are still there
/// are detached or killed, and their ids are logged; this takes up to 2 s more for each lane with such workers. Async
/// programs await [`Session::shutdown`] first; a later drop does not block.
pub struct LaneSession {
    pub(super) limits: Deadlines,
    /// Changed by the holder of the order ticket only.
    lanes: RwLock<Lanes>,
    pub(super) reply_table: Arc<ReplyTable>,
    pub(super) freed_ids: Arc<FreedIds>,
    /// The order ticket: its holder may send. Never held across an await, so that no caller depends on the polling of
    /// another caller's future.
    pub(super) order: Arc<Mutex<Order>>,
    /// Written by the holder of the order ticket.
    functions: Mutex<Functions>,
    /// Commands are refused.
    pub(super) closed: AtomicBool,
    pub(super) closing: Arc<Closing>,
    pub(super) replacing: Arc<Replacing>,
    /// The workers at the start.
    pub(super) first_world: World,
    pub(super) growth: Option<Growth>,
    /// Number of workers of each machine; `None` if there can only be one machine.
    pub(super) per_node: Option<usize>,
    /// A wait has passed its deadline since the last time all workers answered.
    pub(super) is_hung: AtomicBool,
    pub(super) ticker: Ticker,
    pub(super) sleepers: Sleepers,
    pub(super) transfers: Transfers,
    /// Set if there is a timeline or an observer.
    pub(super) recorder: Option<Recorder>,
    pub(super) subsets: Subsets,
    /// Dropped when the session ends.
    attached: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl LaneSession {
    /// Starts the lanes, which together reach each worker of `world` once. Calls [`Channel::start`] of each lane, which
    /// may block.
    ///
    /// # Errors
    /// The lanes do not reach each worker once, or a lane can't be started.
    pub fn start(world: World, lanes: Vec<Arc<dyn Channel>>, limits: Deadlines) -> Result<Self> {
        function::check_names()?;
        metrics::describe();
        let mut next = 0;
        for lane in &lanes {
            let workers = lane.facts().workers;
            if workers.first().index() != next {
                return Err(Error::invalid(format!("lane to {workers} where worker {next} is due")));
            }
            next = workers.indices().end;
        }
        if next != world.size() {
            return Err(Error::invalid(format!("lanes to {next} workers for a world of {}", world.size())));
        }
        let reply_table = Arc::new(ReplyTable::default());
        reply_table.begin();
        let lanes = Lanes::new(lanes, Members::first(world));
        reply_table.set_lanes(&lanes);
        lanes.iter().try_for_each(|lane| lane.start(LaneInbox::new(&reply_table)))?;
        let sleepers = Sleepers::default();
        sleepers.set_lanes(&lanes);
        Ok(Self {
            limits,
            lanes: RwLock::new(lanes.clone()),
            reply_table,
            freed_ids: Arc::default(),
            order: Arc::new(Mutex::new(Order::new(lanes))),
            functions: Mutex::default(),
            closed: AtomicBool::new(false),
            closing: Arc::default(),
            replacing: Arc::default(),
            first_world: world,
            growth: None,
            per_node: (world.nodes() > 1).then(|| world.per_node()),
            is_hung: AtomicBool::new(false),
            ticker: Ticker::default(),
            sleepers,
            transfers: Transfers::default(),
            recorder: None,
            subsets: Subsets::default(),
            attached: Mutex::default(),
        })
    }

    /// The state of the session, its nodes and its workers, for operators. Asks no worker: the lanes know it,
    /// at most one heartbeat interval old for workers of other processes (in a tree of nodes, one for each level). Never waits, also when workers hang or the
    /// session is lost.
    pub fn status(&self) -> Status {
        // `start` has set all that the table needs.
        self.reply_table.status().unwrap_or_default()
    }

    /// A function that returns the [status](Self::status), and none once the session is dropped. It does not keep the
    /// session alive.
    pub fn observer(&self) -> impl Fn() -> Option<Status> + Send + Sync + 'static {
        let table = Arc::downgrade(&self.reply_table);
        move || table.upgrade()?.status()
    }

    /// Keeps `guard` until the session is shut down or dropped.
    pub fn attach(&self, guard: impl Any + Send) {
        sync::lock(&self.attached).push(Box::new(guard));
    }

    pub(super) fn detach(&self) {
        let attached = std::mem::take(&mut *sync::lock(&self.attached));
        drop(attached);
    }

    /// Runs `go` under the order ticket as soon as all lanes have capacity.
    pub(super) async fn turn<T>(
        &self,
        operation: &str,
        live: fn(&ReplyTable) -> Result<()>,
        go: impl FnOnce(&mut Order) -> Result<T>,
    ) -> Result<T> {
        self.turn_with(operation, live, Values::SMALL, |order, _| go(order)).await
    }

    /// [`LaneSession::turn`] for a command with these values. Lanes with a backlog of large commands hold up large
    /// commands only.
    pub(super) async fn turn_with<T>(
        &self,
        operation: &str,
        live: fn(&ReplyTable) -> Result<()>,
        mut values: Values,
        go: impl FnOnce(&mut Order, Values) -> Result<T>,
    ) -> Result<T> {
        let mut full = None;
        let size = values.size();
        loop {
            {
                let mut order = self.order();
                self.check(operation, live)?;
                if order.lanes.have_capacity(size) {
                    values.fit(&order.lanes);
                    return go(&mut order, values);
                }
            }
            let (ticks, watch) =
                &mut **full.get_or_insert_with(|| Box::new((self.ticker.start(), DeadlineWatch::new())));
            let (room, tick) = (self.reply_table.has_capacity.listen(), ticks.next());
            // A change before this listener was registered wakes no one, so the condition is checked again.
            self.check(operation, live)?;
            if !self.lanes().have_capacity(size) {
                future::or(room, tick).await;
                self.check_stall(watch, size)?;
            }
        }
    }

    pub(super) fn order(&self) -> MutexGuard<'_, Order> {
        sync::lock(&self.order)
    }

    pub(super) fn check(&self, operation: &str, live: fn(&ReplyTable) -> Result<()>) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::Closed(operation.to_owned())),
            false => live(&self.reply_table).map_err(|error| match error {
                Error::Worker(failure) => Error::Earlier { operation: operation.to_owned(), failure },
                other => other,
            }),
        }
    }

    pub(super) fn lanes(&self) -> Lanes {
        self.lanes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_lanes(&self, order: &mut Order, lanes: Lanes) {
        self.reply_table.set_lanes(&lanes);
        self.sleepers.set_lanes(&lanes);
        order.lanes = lanes.clone();
        *self.lanes.write().unwrap_or_else(PoisonError::into_inner) = lanes;
    }

    /// Passes the next command, with the ids freed since the last, to all lanes.
    pub(super) fn send(
        &self,
        order: &mut Order,
        mut values: Values,
        make: impl FnOnce(&mut RegisterIds) -> Result<Command>,
    ) -> Result<()> {
        let (lanes, frame) = order.next(&self.freed_ids, &values, make)?;
        let kept = || match lanes.needs_bytes {
            true => check_crossing(lanes, &frame),
            false => Ok(None),
        };
        match lanes.check(frame.command()).and_then(|()| kept()) {
            Ok(_kept) => {
                values.note_passed();
                self.pass(lanes, &frame)
            }
            // The frame has taken a number and freed ids, which workers must get: send both with a no-op command.
            Err(error) => self.pass(lanes, &Arc::new(frame.as_noop())).and(Err(error)),
        }
    }

    /// Passes a frame to all lanes. A lane that fails ends the session. All other lanes get the frame, so that their workers
    /// can go on once the workers of the failed lane are replaced.
    fn pass(&self, lanes: &Lanes, frame: &Arc<Frame>) -> Result<()> {
        self.reply_table.note_command(frame.seq());
        self.note_submitted(lanes, frame);
        metrics::command(frame.command().name());
        let mut result = Ok(());
        for lane in lanes.iter() {
            if let Err(error) = lane.send(frame) {
                let error = match error {
                    // The lane has not reported the loss of its workers yet.
                    Error::Closed(_) => {
                        let workers = lanes.members.workers(lane.facts().workers);
                        let peer = LostPeer::Workers { workers, node: None };
                        Error::peer_lost(peer, LossCause::Other("the lane takes no commands".to_owned()))
                    }
                    other => other,
                };
                tracing::error!(%error, ?lane, "session lost");
                self.reply_table.lose_lane(lanes.owned(lane), &error);
                result = result.and(Err(error));
            }
        }
        result
    }

    /// Submits a command that sets a register.
    fn define(&self, order: &mut Order, values: Values, make: impl FnOnce(RegisterId) -> Command) -> Result<DRef> {
        let mut handle = None;
        self.send(order, values, |registers| {
            let register = registers.take()?;
            // Dropped, and thereby freed, if the command is not sent.
            handle = Some(DRef::new(register, &self.freed_ids));
            Ok(make(register))
        })?;
        handle.ok_or_else(|| Error::state("no register was taken"))
    }

    /// Submits a call; `args` are empty afterwards.
    fn call(&self, order: &mut Order, values: Values, function: &DRef, args: &mut Arguments) -> Result<DRef> {
        self.freed_ids.check(function)?;
        args.check(&self.freed_ids)?;
        let args_of_call = std::mem::take(&mut args.values);
        let call = |register| Command::CallPacked { register, function: function.register(), args: args_of_call };
        let handle = self.define(order, values, call);
        // Only after the call is submitted: a dropped handle may be freed ahead of the next command.
        args.handles.clear();
        handle
    }

    /// Implements [`Session::set`] in a session that `live` accepts.
    pub(super) async fn set_while(
        &self,
        operation: &'static str,
        live: fn(&ReplyTable) -> Result<()>,
        handle: &DRef,
        worker: WorkerId,
        value: Value,
    ) -> Result<()> {
        self.freed_ids.check(handle)?;
        self.world().check(worker)?;
        if matches!(value, Value::Register(_)) {
            return Err(Error::invalid(format!("{operation}: a register can't hold a register")));
        }
        self.check(operation, live)?;
        let values = self.prepare(operation, Some(worker), live, std::slice::from_ref(&value)).await?;
        let snapshot = values.snapshot();
        let command = Command::DebugSet { register: handle.register(), worker, value };
        let question = Question::new(operation, Some(worker), command);
        self.ask_while(live, values, question, |session, replies| session.check_replies(&replies)).await?;
        snapshot.iter().for_each(|snapshot| self.transfers.take_back(snapshot));
        Ok(())
    }

    async fn find_function(&self, name: &str) -> Result<DRef> {
        self.check("function lookup", ReplyTable::check)?;
        if let Some(known) = self.functions().get(name) {
            return Ok(known.clone());
        }
        // Workers that run the same program have the same functions, so a misspelt name can be refused here.
        if self.lanes().iter().any(|lane| lane.facts().runs_this_program) {
            function::find(name)?;
        }
        self.turn("function lookup", ReplyTable::check, |order| {
            if let Some(known) = self.functions().get(name) {
                return Ok(known.clone());
            }
            let handle =
                self.define(order, Values::SMALL, |register| Command::GetGlobalFunc { register, name: name.into() })?;
            self.functions().insert(name, handle.clone());
            Ok(handle)
        })
        .await
    }

    pub(super) fn functions(&self) -> MutexGuard<'_, Functions> {
        sync::lock(&self.functions)
    }
}

#[async_trait]
impl Session for LaneSession {
    fn world(&self) -> World {
        self.lanes().members.world()
    }

    async fn function(&self, name: &str) -> Result<DRef> {
        self.while_running(|| self.find_function(name)).await
    }

    async fn submit(&self, function: &DRef, args: Arguments) -> Result<DRef> {
        let submit = || async move {
            let mut args = args;
            self.check("call", ReplyTable::check)?;
            let values = self.prepare("call", None, ReplyTable::check, &args.values).await?;
            let call = |order: &mut Order, values| self.call(order, values, function, &mut args);
            self.explain(self.turn_with("call", ReplyTable::check, values, call).await).await
        };
        self.while_running(submit).await
    }

    fn try_submit(&self, function: &DRef, args: &mut Arguments) -> Option<Result<DRef>> {
        let mut order = self.order();
        // `submit` copies large values for other processes, without the order ticket.
        if order.lanes.needs_bytes && payload_len(&args.values) > SMALL_FRAME {
            return None;
        }
        if let Err(error) = self.check("call", ReplyTable::check) {
            // `submit` waits for new workers.
            return (!self.replaces_at_once()).then_some(Err(error));
        }
        let submitted =
            order.lanes.have_capacity(FrameSize::Small).then(|| self.call(&mut order, Values::SMALL, function, args));
        drop(order);
        submitted.map(|result| result.inspect_err(|error| self.note_told(error)))
    }

    async fn sync_worker(&self, worker: WorkerId) -> Result<()> {
        let question = Question::new("sync_worker", Some(worker), Command::SyncWorker { worker });
        match self.ask(question, |session, replies| session.check_replies(&replies)) {
            Ok(()) => Ok(()),
            Err(rest) => rest.await,
        }
    }

    async fn sync_all(&self) -> Result<()> {
        let question = Question::new("sync_all", None, Command::SyncAll);
        match self.ask(question, |session, replies| session.check_all_replies(&replies)) {
            Ok(()) => Ok(()),
            Err(rest) => rest.await,
        }
    }

    async fn get(&self, handle: &DRef, worker: WorkerId) -> Result<Value> {
        self.freed_ids.check(handle)?;
        let command = Command::DebugGet { register: handle.register(), worker };
        let question = Question::new("get", Some(worker), command);
        let value = |session: &Self, replies: Replies| {
            session.check_replies(&replies)?;
            Ok(replies.values().next().unwrap_or(Value::None))
        };
        match self.ask(question, value) {
            Ok(value) => Ok(value),
            Err(rest) => rest.await,
        }
    }

    async fn get_all(&self, handle: &DRef) -> Result<Vec<Value>> {
        self.freed_ids.check(handle)?;
        let command = Command::GetAll { register: handle.register() };
        let question = Question::new("get_all", None, command);
        let values = |session: &Self, replies: Replies| {
            session.check_all_replies(&replies)?;
            Ok(replies.values().collect())
        };
        match self.ask(question, values) {
            Ok(values) => Ok(values),
            Err(rest) => rest.await,
        }
    }

    async fn set(&self, handle: &DRef, worker: WorkerId, value: Value) -> Result<()> {
        self.while_running(|| self.set_while("set", ReplyTable::check_lost, handle, worker, value)).await
    }

    async fn copy_from_worker_0(&self, host: &Tensor, from: &DRef) -> Result<()> {
        self.copy_from_0(host, from).await
    }

    async fn copy_to_worker_0(&self, host: &Tensor, to: &DRef) -> Result<()> {
        self.copy_to_0(host, to).await
    }

    async fn recover(&self) -> Result<()> {
        if self.replaces_on_recovery() {
            return self.replace().await.map(drop);
        }
        let recover = || {
            self.turn("recover", ReplyTable::check_lost, |order| {
                let Some(epoch) = self.reply_table.next_epoch() else { return Ok(()) };
                self.functions().begin_epoch();
                self.send(order, Values::SMALL, |_| Ok(Command::Recover { epoch }))
            })
        };
        self.while_running(recover).await
    }

    async fn replace_lost(&self) -> Result<Replaced> {
        self.replace_and_report().await
    }

    async fn resize(&self, workers: usize) -> Result<Resized> {
        self.resize_and_report(workers).await
    }

    async fn shutdown(&self) -> Result<()> {
        self.shut_down().await
    }
}

impl fmt::Debug for LaneSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let closed = self.closed.load(Ordering::Relaxed);
        f.debug_struct("LaneSession").field("world", &self.world()).field("closed", &closed).finish_non_exhaustive()
    }
}
