//! One end: the controller, or a node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use disco_core::{Error, Result, WorkerRange};

use super::super::phase::Phase;
use super::jobs::Jobs;
use super::world::Nanos;
use crate::clock::MachineClock;
use crate::controller::{Conn, Controller};
use crate::member::upward;

/// A simulated end. End 0 is the controller; end k is a node.
pub(super) struct End {
    /// When its CPU is free.
    pub(super) free_at: Nanos,
    pub(super) is_dead: bool,
    pub(super) clock: MachineClock,
    /// Events wait until then.
    pub(super) frozen_until: Nanos,
    /// The link to its parent.
    pub(super) link: Option<usize>,
    pub(super) phase: Phase,
    /// When [`Phase`]'s engine and that of `lower` have a timer.
    pub(super) timers: [Option<Nanos>; 2],
    pub(super) lower: Option<Lower>,
    /// Its own workers.
    pub(super) workers: WorkerRange,
    pub(super) replies: upward::Replies,
    pub(super) departures: upward::Departures,
    /// The number of the last frame that it has passed on, and when.
    pub(super) passed: (u64, Nanos),
    /// When an abort reached it, or it ended.
    pub(super) stopped_at: Option<Nanos>,
    /// The state of its own workers.
    pub(super) jobs: Jobs,
    /// It waits for its workers and for those behind it.
    pub(super) awaits: bool,
    /// Until when it waits for its own workers.
    pub(super) patience: Option<Nanos>,
    pub(super) result: Option<Result<()>>,
}

/// The side to an end's children.
pub(super) struct Lower {
    pub(super) engine: Controller,
    pub(super) conns: BTreeMap<Conn, usize>,
    /// Connections that carry messages.
    pub(super) listens: BTreeSet<Conn>,
    /// Links that wait to be accepted, and the number of accepted links that are not admitted yet.
    pub(super) backlog: VecDeque<usize>,
    pub(super) entering: BTreeSet<Conn>,
    pub(super) started: Option<Result<(), Error>>,
    pub(super) is_over: bool,
}

impl End {
    pub(super) fn new(clock: MachineClock) -> Self {
        let none = WorkerRange::new(0..0);
        Self {
            free_at: 0,
            is_dead: false,
            clock,
            frozen_until: 0,
            link: None,
            phase: Phase::Away,
            timers: [None; 2],
            lower: None,
            workers: none,
            replies: upward::Replies::new(none),
            departures: upward::Departures::new(none),
            passed: (0, 0),
            stopped_at: None,
            jobs: Jobs::default(),
            awaits: false,
            patience: None,
            result: None,
        }
    }

    /// Whether the node serves its workers.
    pub(super) fn is_serving(&self) -> bool {
        self.phase.is_serving()
    }

    /// Whether the node, and its side to its children, have ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_dead || self.phase.is_done() && self.lower.as_ref().is_none_or(|lower| lower.is_over)
    }
}

impl Lower {
    pub(super) fn new(engine: Controller) -> Self {
        Self {
            engine,
            conns: BTreeMap::new(),
            listens: BTreeSet::new(),
            backlog: VecDeque::new(),
            entering: BTreeSet::new(),
            started: None,
            is_over: false,
        }
    }
}
