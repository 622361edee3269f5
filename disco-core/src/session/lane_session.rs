//! The session over any set of lanes: its parts, and its start.

use std::any::Any;
use std::mem;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Session;
use super::closing::Closing;
use super::config::SessionConfig;
use super::helpers::Helpers;
use super::plan::Growth;
use super::replacement_policy::When;
use crate::channel::{Channel, Inbox as _};
use crate::error::{Error, Failure, Result};
use crate::function;
use crate::members::Members;
use crate::metrics;
use crate::op;
use crate::owner::Owner;
use crate::status::Status;
use crate::stream::command_stream::CommandStream;
use crate::stream::lane_set::Lanes;
use crate::stream::reply_table::{LaneInbox, ReplyTable};
use crate::stream::timeline::Recorder;
use crate::sync;
use crate::world::World;

/// A session over lanes that together reach all workers.
///
/// Dropping a session without a finished [`Session::shutdown`] aborts running operations and blocks the calling thread
/// until the workers have left, for at most 3 s ([`Deadlines::close`](super::Deadlines::close) if that is shorter). Workers that are still there
/// are detached or killed, and their ids are logged; this takes up to 2 s more for each lane with such workers. Async
/// programs await [`Session::shutdown`] first; a later drop does not block. Dropping the session in a forked child of the
/// process that has started it does nothing.
pub struct LaneSession {
    pub(super) stream: CommandStream,
    pub(super) closing: Arc<Closing>,
    /// When lost workers are replaced.
    pub(super) when: When,
    pub(super) helpers: Arc<Helpers>,
    pub(super) growth: Option<Growth>,
    /// Number of workers of each machine; `None` if there can only be one machine.
    pub(super) per_node: Option<usize>,
    /// Its [subsets](Self::subset). Weak: a subset ends when the program drops it.
    pub(super) subsets: Mutex<Vec<Weak<Self>>>,
    /// Dropped when the session ends.
    attached: Mutex<Vec<Box<dyn Any + Send>>>,
    pub(super) owner: Owner,
}

/// The methods of every session.
impl Deref for LaneSession {
    type Target = dyn Session;

    fn deref(&self) -> &(dyn Session + 'static) {
        self
    }
}

impl LaneSession {
    /// Starts the lanes, which together reach each worker of `world` once. Calls [`Channel::start`] of each lane, which
    /// may block.
    ///
    /// # Errors
    /// The lanes do not reach each worker once, or a lane can't be started.
    pub fn start(world: World, lanes: Vec<Arc<dyn Channel>>, config: impl Into<SessionConfig>) -> Result<Self> {
        let SessionConfig { deadlines, replacement, growth, per_node, timeline } = config.into();
        function::check_names()?;
        op::check_registered()?;
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
        let lanes = Lanes::new(lanes, Members::first(world));
        reply_table.begin(lanes.members.clone());
        reply_table.set_lanes(&lanes);
        lanes.iter().try_for_each(|lane| lane.start(LaneInbox::new(&reply_table)))?;
        let mut stream = CommandStream::new(lanes, reply_table, deadlines);
        if let Some((config, sink)) = timeline {
            let recorder = Recorder::new(config, world.size(), sink);
            stream.reply_table.collect(recorder.collection());
            stream.recorder = Some(recorder);
        }
        let session = Self {
            stream,
            closing: Arc::default(),
            when: replacement.when,
            helpers: Arc::default(),
            growth,
            per_node: per_node.or_else(|| (world.nodes() > 1).then(|| world.per_node())),
            subsets: Mutex::default(),
            attached: Mutex::default(),
            owner: Owner::default(),
        };
        session.helpers.set_policy(replacement);
        session.prepare_in_background();
        Ok(session)
    }

    /// The state of the session, its nodes and its workers, for operators. Asks no worker: the lanes know it,
    /// at most one heartbeat interval old for workers of other processes (in a tree of nodes, one for each level). Never waits, also when workers hang or the
    /// session is lost.
    pub fn status(&self) -> Status {
        // `start` has set all that the table needs.
        self.stream.reply_table.status().unwrap_or_default()
    }

    /// The failures that workers have reported in this epoch, in the order of the workers, without those that only follow
    /// from the failure of another worker. Errors have one of them, the cause of all later errors; after a
    /// [`Session::sync_all`](crate::Session::sync_all) that has failed, all are known.
    ///
    /// ```
    /// # use disco_core::{Result, session::LaneSession};
    /// # async fn example(session: &LaneSession) -> Result<()> {
    /// if let Err(error) = session.sync_all().await {
    ///     let failures = session.failures();
    ///     eprintln!("{} workers have failed, the first of them so: {error}", failures.len());
    ///     session.recover().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn failures(&self) -> Vec<Arc<Failure>> {
        self.stream.reply_table.failures()
    }

    /// Keeps `guard` until the session is shut down or dropped.
    pub fn attach(&self, guard: impl Any + Send) {
        sync::lock(&self.attached).push(Box::new(guard));
    }

    /// Keeps what the session owns from being dropped: it belongs to the parent of this forked child, whose threads may have
    /// held locks.
    pub(super) fn leak(&mut self) {
        let Self { stream, closing, helpers, attached, .. } = self;
        mem::forget((stream.order.clone(), stream.reply_table.clone(), closing.clone(), helpers.clone()));
        mem::forget(mem::take(attached.get_mut().unwrap_or_else(PoisonError::into_inner)));
    }

    pub(super) fn detach(&self) {
        let attached = std::mem::take(&mut *sync::lock(&self.attached));
        drop(attached);
    }
}
