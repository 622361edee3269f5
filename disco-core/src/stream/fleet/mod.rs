//! The workers of a session as a fleet: whether they take commands, who changes them, and what callers have yet to
//! hear.
//!
//! ```text
//!             a loss               a caller, or the thread of `at_once`, takes the vacancies
//!   Running ──────────▶ Lost ─────────────────────────────────▶ Changing ────────────────────▶ Running
//!      │                  ▲                                      │    ▲   the epoch has begun
//!      │                  └── another loss, or they are put back ┘    │
//!      └───────────── a resize of a session without a loss ───────────┘
//! ```
//!
//! The transitions between these wait for nothing and call nothing. So a caller that drops its future between two of
//! them leaves a state that the next caller goes on from.
//!
//! # Words
//! | word | meaning |
//! |---|---|
//! | **place** | the worker's id in lanes and frames; it never changes. A new worker gets the place of a lost one, or from a resize a place that none has had |
//! | **number** | the id of a worker for users: its index among the session's places (`Members`) |
//! | **spare**, **stands by** | a process or node that has started and has no place |
//! | **lost** | ended without having been told to, or its lane has refused a frame. A fact about the session, too: it is lost with its first worker |
//! | **left** | ended because it was told to: by a shutdown, or once a resize has dismissed it |
//! | **dismissed** | no worker of the session any more: a resize has taken its number, or another lane owns its place. Its end is not reported |
//! | **ended** | lost or left, whichever it was |
//! | **vacancy** | the place of a lost worker, for a new one |
//! | **told** | a loss or a failure is told once a method has returned it; each is told to one caller at least |
//! | **entrance** | the lane that nodes connect to from elsewhere; it may own no place |
//! | **beside** | a worker of a subset runs beside a worker of the parent: in its process, on another thread |
//! | **stuck** | running, in an operation that does not end: what a diagnosis says. It may still end |

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::members::Members;

/// Why the session takes no commands during a resize.
const BEING_RESIZED: &str = "the session is being resized";

/// What a session knows of its workers and their changes.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    phase: Phase,
    /// The first loss that no method has returned.
    untold: Option<Error>,
    /// Who changes the workers.
    work: Option<Work>,
    /// The vacancies that it has taken and not filled.
    taken: BTreeSet<WorkerId>,
    /// The session ends: no worker starts any more.
    is_over: bool,
    /// Places of new workers that have started before a caller asks for them, and that do not have these places yet.
    ready: BTreeSet<WorkerId>,
    /// The last attempt to replace workers has failed: the next one is a caller's.
    pub(crate) has_failed: bool,
    /// Places of new workers whose registers are not restored.
    to_restore: BTreeSet<WorkerId>,
    /// The thread that is inside the program's function that restores a worker.
    pub(crate) restores_on: Option<ThreadId>,
    /// Places of new workers that no call has returned yet.
    unreported: BTreeSet<WorkerId>,
    /// The workers that the last call has returned, or those at the start.
    reported: Members,
    /// The workers have changed since the start, so that new ones have to be told their numbers.
    pub(crate) is_resized: bool,
}

/// Whether the session takes commands.
#[derive(Debug, Default)]
enum Phase {
    #[default]
    Running,
    /// It takes none, for good unless workers are lost and these are replaced or dropped.
    Lost(Loss),
    /// Only the caller who changes the workers submits commands. The error is the loss, or says that a resize is under way.
    Changing(Error),
}

#[derive(Debug)]
struct Loss {
    /// The first reason.
    why: Error,
    /// Places of lost workers that nobody replaces yet.
    vacancies: BTreeSet<WorkerId>,
    /// Places of workers whose lane has refused a frame. It has yet to report that they are lost.
    refused: BTreeSet<WorkerId>,
}

/// What a session loses.
pub(crate) enum Lost {
    /// Everything: it ends.
    Session,
    /// The lane to the workers with these places, which has refused a frame.
    Lane(BTreeSet<WorkerId>),
    /// The workers with these places.
    Workers(BTreeSet<WorkerId>),
}

/// Who changes the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// A caller, or a thread that ends what a caller or the thread below has begun.
    Caller,
    /// The thread of a session that replaces workers at once: they start before a caller asks for them.
    Ahead,
    /// That thread, and a caller needs no such workers any more.
    Unwanted,
}

impl Fleet {
    /// The workers at the start are `members`.
    pub(in crate::stream) fn begin(&mut self, members: Members) {
        self.reported = members;
    }

    /// Why the session takes no commands of most callers.
    pub(in crate::stream) fn why(&self) -> Option<&Error> {
        match &self.phase {
            Phase::Running => None,
            Phase::Lost(Loss { why, .. }) | Phase::Changing(why) => Some(why),
        }
    }

    /// Why the session takes no commands at all: a loss whose replacement has not begun.
    pub(in crate::stream) fn loss(&self) -> Option<&Error> {
        if let Phase::Lost(loss) = &self.phase { Some(&loss.why) } else { None }
    }

    /// Places whose workers are lost and have no successor in the session yet.
    pub(in crate::stream) fn vacant(&self) -> BTreeSet<WorkerId> {
        let vacancies = if let Phase::Lost(loss) = &self.phase { Some(&loss.vacancies) } else { None };
        vacancies.into_iter().chain([&self.taken, &self.ready]).flatten().copied().collect()
    }

    /// Replaces the loss `before` by the same one with a table of records. Does nothing if it is not the session's.
    pub(in crate::stream) fn explain(&mut self, before: &Error, explained: &Error) -> bool {
        let (Phase::Lost(Loss { why, .. }) | Phase::Changing(why)) = &mut self.phase else { return false };
        let is_same = matches!((&*why, before), (Error::Lost(why), Error::Lost(before)) if Arc::ptr_eq(why, before));
        if is_same {
            *why = explained.clone();
        }
        is_same
    }

    /// From now on, the session takes no commands. Returns whether this is the first loss.
    pub(in crate::stream) fn lose(&mut self, lost: Lost, cause: &Error) -> bool {
        let is_first = matches!(self.phase, Phase::Running);
        let mut loss = match std::mem::take(&mut self.phase) {
            Phase::Lost(loss) => loss,
            Phase::Running => Loss::new(cause.clone()),
            Phase::Changing(why) => Loss::new(why),
        };
        match lost {
            Lost::Session => {}
            Lost::Lane(places) => loss.refused.extend(places),
            Lost::Workers(places) => {
                // It explains why their lane has refused a frame.
                if !loss.refused.is_empty() && loss.vacancies.is_empty() {
                    loss.why = cause.clone();
                }
                loss.vacancies.extend(places);
            }
        }
        self.phase = Phase::Lost(loss);
        self.untold.get_or_insert_with(|| cause.clone());
        is_first
    }

    /// Takes the vacancies, for a caller that fills or drops them, and returns all that it has taken; none if the session is
    /// not lost. The set is empty if an earlier caller has filled them, and has not begun an epoch. The caller holds the order
    /// ticket, so that no lane is about to refuse a frame.
    ///
    /// # Errors
    /// A lane has refused a frame, and has not reported its workers as lost.
    pub(crate) fn take_vacancies(&mut self) -> Result<Option<BTreeSet<WorkerId>>> {
        match &mut self.phase {
            Phase::Running => return Ok(None),
            Phase::Changing(_) => {}
            Phase::Lost(loss) if !loss.is_complete() => return Err(loss.why.clone()),
            Phase::Lost(Loss { why, vacancies, .. }) => {
                self.taken.append(vacancies);
                self.phase = Phase::Changing(why.clone());
            }
        }
        Ok(Some(self.taken.clone()))
    }

    /// The session has `members` from now on, of which those with the places `new` are new. It takes no commands before
    /// [`Self::revive`].
    pub(crate) fn change(&mut self, members: &Members, new: &BTreeSet<WorkerId>) {
        self.is_resized |= *members != self.reported;
        if let Phase::Running = self.phase {
            self.phase = Phase::Changing(Error::state(BEING_RESIZED));
        }
        let Self { to_restore, unreported, ready, taken, .. } = self;
        ready.retain(|place| !new.contains(place));
        taken.retain(|place| !new.contains(place));
        [&mut *to_restore, unreported].into_iter().for_each(|places| places.extend(new));
        let mut all = vec![to_restore, unreported, ready, taken];
        if let Phase::Lost(Loss { vacancies, refused, .. }) = &mut self.phase {
            all.extend([vacancies, refused]);
        }
        // Nobody fills the places of workers that were dismissed.
        all.into_iter().for_each(|places| places.retain(|place| members.worker(*place).is_some()));
    }

    /// The epoch has begun, and the session takes commands again. Returns the loss that no method has returned; or none if
    /// vacancies are left, because more workers were lost meanwhile.
    pub(in crate::stream) fn revive(&mut self) -> Option<Option<Error>> {
        if matches!(self.phase, Phase::Lost(_)) || !self.taken.is_empty() {
            return None;
        }
        self.phase = Phase::Running;
        Some(self.untold.take())
    }

    /// Takes the loss that no method has returned.
    pub(crate) fn take_untold(&mut self) -> Option<Error> {
        self.untold.take()
    }

    /// A caller begins to change the workers. Returns false if another one, or a thread, is at it.
    pub(crate) fn begin_work(&mut self) -> bool {
        let is_free = self.work.is_none();
        self.work.get_or_insert(Work::Caller);
        is_free
    }

    /// A thread begins to start workers ahead, if that is due: workers are lost, nobody changes workers, none have started in
    /// these places, and no attempt has failed. Returns the vacancies, which are taken.
    pub(crate) fn begin_ahead(&mut self) -> Option<BTreeSet<WorkerId>> {
        let Phase::Lost(loss) = &self.phase else { return None };
        // A new worker that is lost at once is replaced by the next caller, so that no more start than the program notices.
        let is_due = loss.is_complete() && !loss.vacancies.is_empty() && self.ready.is_disjoint(&loss.vacancies);
        if !is_due || self.has_failed || self.work.is_some() {
            return None;
        }
        self.work = Some(Work::Ahead);
        self.take_vacancies().ok()?
    }

    /// A caller needs no workers that start ahead. Returns whether some start.
    pub(crate) fn stop_ahead(&mut self) -> bool {
        let is_ahead = self.work == Some(Work::Ahead);
        if is_ahead {
            self.work = Some(Work::Unwanted);
        }
        is_ahead
    }

    /// Whether the workers that start ahead are wanted no more.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.work == Some(Work::Unwanted)
    }

    /// Workers have started ahead in the vacancies that were taken. Returns whether they are wanted, and are to be kept for a
    /// caller.
    pub(crate) fn keep_ready(&mut self) -> bool {
        let is_wanted = self.work.replace(Work::Caller) != Some(Work::Unwanted);
        if is_wanted {
            self.ready.append(&mut self.taken)
        } else {
            self.has_failed = true
        }
        is_wanted
    }

    /// Ends what [`Self::begin_work`] or [`Self::begin_ahead`] has begun. Vacancies that were not filled are vacant again.
    pub(crate) fn end_work(&mut self) {
        self.work = None;
        let mut left = std::mem::take(&mut self.taken);
        match &mut self.phase {
            _ if left.is_empty() => {}
            Phase::Lost(loss) => loss.vacancies.append(&mut left),
            Phase::Changing(why) => self.phase = Phase::Lost(Loss { vacancies: left, ..Loss::new(why.clone()) }),
            // Never: the session is not lost, so no vacancy was taken.
            Phase::Running => {}
        }
    }

    /// A new worker, by its place, whose registers are to be restored.
    pub(crate) fn next_to_restore(&self) -> Option<WorkerId> {
        self.to_restore.first().copied()
    }

    pub(crate) fn note_restored(&mut self, place: WorkerId) {
        self.to_restore.remove(&place);
    }

    /// Fails on a thread that is inside the program's function that restores a worker: it would wait for itself.
    pub(in crate::stream) fn check_thread(&self) -> Result<()> {
        if self.restores_on.is_some_and(|thread| thread == thread::current().id()) {
            Err(Error::state("workers are being replaced: the function that restores them can't use the session"))
        } else {
            Ok(())
        }
    }

    /// What no call has returned yet: the workers before, and the places of new ones. They count as returned from now on, when
    /// the workers are `members`.
    pub(crate) fn take_unreported(&mut self, members: Members) -> (Members, BTreeSet<WorkerId>) {
        (std::mem::replace(&mut self.reported, members), std::mem::take(&mut self.unreported))
    }

    /// The session ends.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
    }

    /// Whether the session ends.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }
}

impl Loss {
    fn new(why: Error) -> Self {
        Self { why, vacancies: BTreeSet::new(), refused: BTreeSet::new() }
    }

    /// Whether each lane that has refused a frame has reported its workers.
    fn is_complete(&self) -> bool {
        self.refused.is_subset(&self.vacancies)
    }
}
