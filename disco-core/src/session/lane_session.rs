//! The session over any set of lanes: its parts, and its methods.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::asking::{Judge, Question, Rest};
use super::closing::Closing;
use super::command_stream::CommandStream;
use super::fleet::Fleet;
use super::lane_set::Lanes;
use super::replacing::Replaced;
use super::reply_table::{LaneInbox, Replies, ReplyTable};
use super::resizing::{Growth, Resized};
use super::subset::Subsets;
use super::{Arguments, DRef, Deadlines, Session};
use crate::channel::{Channel, Inbox as _};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::function;
use crate::id::WorkerId;
use crate::members::Members;
use crate::metrics;
use crate::status::Status;
use crate::sync;
use crate::tensor::Tensor;
use crate::value::Value;
use crate::world::World;

/// A session over lanes that together reach all workers.
///
/// Dropping a session without a finished [`Session::shutdown`] aborts running operations and blocks the calling thread
/// until the workers have left, for at most 3 s ([`Deadlines::close`] if that is shorter). Workers that are still there
/// are detached or killed, and their ids are logged; this takes up to 2 s more for each lane with such workers. Async
/// programs await [`Session::shutdown`] first; a later drop does not block.
pub struct LaneSession {
    pub(super) stream: CommandStream,
    pub(super) closing: Arc<Closing>,
    pub(super) fleet: Arc<Fleet>,
    /// The workers at the start.
    pub(super) first_world: World,
    pub(super) growth: Option<Growth>,
    /// Number of workers of each machine; `None` if there can only be one machine.
    pub(super) per_node: Option<usize>,
    pub(super) subsets: Subsets,
    /// Dropped when the session ends.
    attached: Mutex<Vec<Box<dyn Any + Send>>>,
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

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
        Ok(Self {
            stream: CommandStream::new(lanes, reply_table, limits),
            closing: Arc::default(),
            fleet: Arc::default(),
            first_world: world,
            growth: None,
            per_node: (world.nodes() > 1).then(|| world.per_node()),
            subsets: Subsets::default(),
            attached: Mutex::default(),
        })
    }

    /// The state of the session, its nodes and its workers, for operators. Asks no worker: the lanes know it,
    /// at most one heartbeat interval old for workers of other processes (in a tree of nodes, one for each level). Never waits, also when workers hang or the
    /// session is lost.
    pub fn status(&self) -> Status {
        // `start` has set all that the table needs.
        self.stream.reply_table.status().unwrap_or_default()
    }

    /// A function that returns the [status](Self::status), and none once the session is dropped. It does not keep the
    /// session alive.
    pub fn observer(&self) -> impl Fn() -> Option<Status> + Send + Sync + 'static {
        let table = Arc::downgrade(&self.stream.reply_table);
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

    /// The result of a question with small values, if it is answered at once; else the future of the remaining steps.
    /// A question that is answered at once takes no future of its own, which would take a third of its time.
    fn ask<T: Send + 'static>(&self, question: Question, judge: Judge<T>) -> Result<T, Boxed<'_, T>> {
        let rest = match self.replaces_at_once() {
            true => Rest::Ask(question),
            false => match self.stream.ask(question, judge) {
                Ok(result) => return Ok(result),
                Err(rest) => rest,
            },
        };
        Err(Box::pin(self.while_running(move || self.stream.ask_rest(rest, judge))))
    }
}

#[async_trait]
impl Session for LaneSession {
    fn world(&self) -> World {
        self.stream.world()
    }

    async fn function(&self, name: &str) -> Result<DRef> {
        self.while_running(|| self.stream.function(name)).await
    }

    async fn submit(&self, function: &DRef, args: Arguments) -> Result<DRef> {
        self.while_running(|| self.stream.submit(function, args)).await
    }

    fn try_submit(&self, function: &DRef, args: &mut Arguments) -> Option<Result<DRef>> {
        // `submit` waits for new workers.
        if self.replaces_at_once() && self.stream.reply_table.check().is_err() {
            return None;
        }
        let submitted = self.stream.try_submit(function, args)?;
        Some(submitted.inspect_err(|error| self.note_told(error)))
    }

    async fn sync_worker(&self, worker: WorkerId) -> Result<()> {
        let question = Question::new("sync_worker", Some(worker), Command::SyncWorker { worker });
        match self.ask(question, |stream, replies| stream.check_replies(&replies)) {
            Ok(()) => Ok(()),
            Err(rest) => rest.await,
        }
    }

    async fn sync_all(&self) -> Result<()> {
        let question = Question::new("sync_all", None, Command::SyncAll);
        match self.ask(question, |stream, replies| stream.check_all_replies(&replies)) {
            Ok(()) => Ok(()),
            Err(rest) => rest.await,
        }
    }

    async fn get(&self, handle: &DRef, worker: WorkerId) -> Result<Value> {
        match self.ask(self.stream.question_of_get(handle, worker)?, CommandStream::value) {
            Ok(value) => Ok(value),
            Err(rest) => rest.await,
        }
    }

    async fn get_all(&self, handle: &DRef) -> Result<Vec<Value>> {
        self.stream.freed_ids.check(handle)?;
        let command = Command::GetAll { register: handle.register() };
        let values = |stream: &CommandStream, replies: Replies| {
            stream.check_all_replies(&replies)?;
            Ok(replies.values().collect())
        };
        match self.ask(Question::new("get_all", None, command), values) {
            Ok(values) => Ok(values),
            Err(rest) => rest.await,
        }
    }

    async fn set(&self, handle: &DRef, worker: WorkerId, value: Value) -> Result<()> {
        self.while_running(|| self.stream.set_while("set", ReplyTable::check_lost, handle, worker, value)).await
    }

    async fn copy_from_worker_0(&self, host: &Tensor, from: &DRef) -> Result<()> {
        self.while_running(|| self.stream.copy_from_0(host, from)).await
    }

    async fn copy_to_worker_0(&self, host: &Tensor, to: &DRef) -> Result<()> {
        self.while_running(|| self.stream.copy_to_0(host, to)).await
    }

    async fn recover(&self) -> Result<()> {
        match self.replaces_on_recovery() {
            true => self.replace().await.map(drop),
            false => self.while_running(|| self.stream.recover()).await,
        }
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
        let closed = self.stream.closed.load(Ordering::Relaxed);
        f.debug_struct("LaneSession").field("world", &self.world()).field("closed", &closed).finish_non_exhaustive()
    }
}
