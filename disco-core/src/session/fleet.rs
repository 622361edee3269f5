//! The workers of a session as a fleet: whether they take commands, who changes them, and what callers have yet to hear.
//!
//! ```text
//!             a loss               a caller takes the vacancies
//!   Running ──────────▶ Lost ─────────────────────────────────▶ Changing ────────────────────▶ Running
//!      │                  ▲                                      │    ▲   the epoch has begun
//!      │                  └── another loss, or they are put back ┘    │
//!      └───────────── a resize of a session without a loss ───────────┘
//! ```
//!
//! All transitions are in this file. They wait for nothing and call nothing; the time is an argument. So a caller that drops
//! its future between two of them leaves a state that the next caller goes on from.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Instant;

use super::replacement_policy::{ReplacementPolicy, When};
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::members::Members;

/// Why the session takes no commands during a resize.
const BEING_RESIZED: &str = "the session is being resized";

/// What a session knows of its workers and their changes.
#[derive(Debug, Default)]
pub(super) struct Fleet {
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
    pub(super) has_failed: bool,
    /// Times of replacements within the time of the policy's limit.
    history: VecDeque<Instant>,
    /// Places of new workers whose registers are not restored.
    to_restore: BTreeSet<WorkerId>,
    /// The thread that is inside the program's function that restores a worker.
    pub(super) restores_on: Option<ThreadId>,
    /// Places of new workers that no call has returned yet.
    unreported: BTreeSet<WorkerId>,
    /// The workers that the last call has returned, or those at the start.
    reported: Members,
    /// The workers have changed since the start, so that new ones have to be told their numbers.
    pub(super) is_resized: bool,
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
    cut_off: BTreeSet<WorkerId>,
}

/// What a session loses.
pub(super) enum Lost {
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
    /// A caller, or a thread for a caller that has dropped its future.
    Caller,
    /// The thread of a session that replaces workers at once: they start before a caller asks for them.
    Ahead,
    /// That thread, and a caller needs no such workers any more.
    Unwanted,
}

impl Fleet {
    /// The workers at the start are `members`.
    pub(super) fn begin(&mut self, members: Members) {
        self.reported = members;
    }

    /// Why the session takes no commands of most callers.
    pub(super) fn why(&self) -> Option<&Error> {
        match &self.phase {
            Phase::Running => None,
            Phase::Lost(Loss { why, .. }) | Phase::Changing(why) => Some(why),
        }
    }

    /// Why the session takes no commands at all: a loss whose replacement has not begun.
    pub(super) fn loss(&self) -> Option<&Error> {
        if let Phase::Lost(loss) = &self.phase { Some(&loss.why) } else { None }
    }

    /// Places of lost workers that nobody replaces yet.
    pub(super) fn vacancies(&self) -> BTreeSet<WorkerId> {
        if let Phase::Lost(loss) = &self.phase { loss.vacancies.clone() } else { BTreeSet::new() }
    }

    /// Replaces the loss `before` by the same one with a table of records. Does nothing if it is not the session's.
    pub(super) fn explain(&mut self, before: &Error, explained: &Error) -> bool {
        let (Phase::Lost(Loss { why, .. }) | Phase::Changing(why)) = &mut self.phase else { return false };
        let is_same = matches!((&*why, before), (Error::Lost(why), Error::Lost(before)) if Arc::ptr_eq(why, before));
        if is_same {
            *why = explained.clone();
        }
        is_same
    }

    /// From now on, the session takes no commands. Returns whether this is the first loss.
    pub(super) fn lose(&mut self, lost: Lost, cause: &Error) -> bool {
        let is_first = matches!(self.phase, Phase::Running);
        let mut loss = match std::mem::take(&mut self.phase) {
            Phase::Lost(loss) => loss,
            Phase::Running => Loss::new(cause.clone()),
            Phase::Changing(why) => Loss::new(why),
        };
        match lost {
            Lost::Session => {}
            Lost::Lane(places) => loss.cut_off.extend(places),
            Lost::Workers(places) => {
                // It explains why their lane has refused a frame.
                if !loss.cut_off.is_empty() && loss.vacancies.is_empty() {
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
    /// not lost. The set is empty if an earlier caller has filled them, and has not begun an epoch. No caller sends a frame
    /// meanwhile, so that no lane is about to refuse one.
    ///
    /// # Errors
    /// The session is lost for another reason, or the losses that explain it were not reported yet.
    pub(super) fn take_vacancies(&mut self) -> Result<Option<BTreeSet<WorkerId>>> {
        match &mut self.phase {
            Phase::Running => return Ok(None),
            Phase::Changing(_) => {}
            Phase::Lost(loss) if !loss.is_explained() => return Err(loss.why.clone()),
            Phase::Lost(Loss { why, vacancies, .. }) => {
                self.taken.append(vacancies);
                self.phase = Phase::Changing(why.clone());
            }
        }
        Ok(Some(self.taken.clone()))
    }

    /// The session has `members` from now on: workers with the places `gone` are no more, those with the places `new` are new.
    /// It takes no commands before [`Self::revive`].
    pub(super) fn change(&mut self, members: &Members, gone: &[WorkerId], new: &BTreeSet<WorkerId>) {
        self.is_resized |= *members != self.reported;
        for filled in [&mut self.ready, &mut self.taken] {
            filled.retain(|place| !new.contains(place) && !gone.contains(place));
        }
        for places in [&mut self.to_restore, &mut self.unreported] {
            gone.iter().for_each(|place| _ = places.remove(place));
            places.extend(new);
        }
        match &mut self.phase {
            Phase::Running => self.phase = Phase::Changing(Error::state(BEING_RESIZED)),
            Phase::Changing(_) => {}
            Phase::Lost(Loss { vacancies, cut_off, .. }) => {
                for places in [vacancies, cut_off] {
                    places.retain(|place| members.worker(*place).is_some());
                }
            }
        }
    }

    /// The epoch has begun, and the session takes commands again. Returns the loss that no method has returned; or none if
    /// vacancies are left, because more workers were lost meanwhile.
    pub(super) fn revive(&mut self) -> Option<Option<Error>> {
        if matches!(self.phase, Phase::Lost(_)) || !self.taken.is_empty() {
            return None;
        }
        self.phase = Phase::Running;
        Some(self.untold.take())
    }

    /// Takes the loss that no method has returned.
    pub(super) fn take_untold(&mut self) -> Option<Error> {
        self.untold.take()
    }

    /// A caller begins to change the workers. Returns false if another one, or a thread, is at it.
    pub(super) fn begin_work(&mut self) -> bool {
        let is_free = self.work.is_none();
        self.work.get_or_insert(Work::Caller);
        is_free
    }

    /// A thread begins to start workers ahead, if that is due: workers are lost, nobody changes workers, none have started in
    /// these places, and no attempt has failed. Returns the vacancies, which are taken.
    pub(super) fn begin_ahead(&mut self) -> Option<BTreeSet<WorkerId>> {
        let Phase::Lost(loss) = &self.phase else { return None };
        // A new worker that is lost at once is replaced by the next caller, so that no more start than the program notices.
        let is_due = loss.is_explained() && !loss.vacancies.is_empty() && self.ready.is_disjoint(&loss.vacancies);
        if !is_due || self.has_failed || self.work.is_some() {
            return None;
        }
        self.work = Some(Work::Ahead);
        self.take_vacancies().ok()?
    }

    /// A caller needs no workers that start ahead. Returns whether some start.
    pub(super) fn stop_ahead(&mut self) -> bool {
        let is_ahead = self.work == Some(Work::Ahead);
        if is_ahead {
            self.work = Some(Work::Unwanted);
        }
        is_ahead
    }

    /// Workers have started ahead in the vacancies that were taken. Returns whether they are wanted, and are to be kept for a
    /// caller.
    pub(super) fn keep_ready(&mut self) -> bool {
        let is_wanted = self.work.replace(Work::Caller) != Some(Work::Unwanted);
        match is_wanted {
            true => self.ready.append(&mut self.taken),
            false => self.has_failed = true,
        }
        is_wanted
    }

    /// Ends what [`Self::begin_work`] or [`Self::begin_ahead`] has begun. Vacancies that were not filled are vacant again.
    pub(super) fn end_work(&mut self) {
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

    /// Checks that the policy permits `count` replacements, those of the workers called `list`.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn admit(&mut self, policy: ReplacementPolicy, list: &str, count: usize, now: Instant) -> Result<()> {
        if policy.when == When::Never {
            return Err(Error::state(format!(
                "replace_lost: {list}: the session never replaces workers (`ReplacementPolicy`)"
            )));
        }
        let Some((most, within)) = policy.limit else { return Ok(()) };
        self.history.retain(|at| now.saturating_duration_since(*at) < within);
        let before = self.history.len();
        if before + count <= most as usize {
            return Ok(());
        }
        Err(Error::state(format!(
            "replace_lost: {list}: {before} workers were replaced within {within:?}, and the limit is {most} \
             (`ReplacementPolicy::at_most`)"
        )))
    }

    /// Counts new workers that have started, for the policy's limit.
    pub(super) fn count(&mut self, policy: ReplacementPolicy, new: usize, now: Instant) {
        if policy.limit.is_some() {
            self.history.extend(std::iter::repeat_n(now, new));
        }
    }

    /// A new worker, by its place, whose registers are to be restored.
    pub(super) fn next_to_restore(&self) -> Option<WorkerId> {
        self.to_restore.first().copied()
    }

    pub(super) fn note_restored(&mut self, place: WorkerId) {
        self.to_restore.remove(&place);
    }

    /// Fails on a thread that is inside the program's function that restores a worker: it would wait for itself.
    pub(super) fn check_thread(&self) -> Result<()> {
        match self.restores_on.is_some_and(|thread| thread == thread::current().id()) {
            true => {
                Err(Error::state("workers are being replaced: the function that restores them can't use the session"))
            }
            false => Ok(()),
        }
    }

    /// What no call has returned yet: the workers before, and the places of new ones. They count as returned from now on, when
    /// the workers are `members`.
    pub(super) fn take_unreported(&mut self, members: Members) -> (Members, BTreeSet<WorkerId>) {
        (std::mem::replace(&mut self.reported, members), std::mem::take(&mut self.unreported))
    }

    /// The session ends.
    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    /// Whether the session ends.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }
}

impl Loss {
    fn new(why: Error) -> Self {
        Self { why, vacancies: BTreeSet::new(), cut_off: BTreeSet::new() }
    }

    /// Whether each lane that has refused a frame has reported its workers.
    fn is_explained(&self) -> bool {
        self.cut_off.is_subset(&self.vacancies)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::world::World;

    /// An event of the life of a session with two workers.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Lose(u32),
        /// The lane of both workers refuses a frame.
        Refuse,
        /// The thread that starts workers ahead looks for vacancies.
        Ahead,
        /// It has started them.
        Started,
        Unwanted,
        /// A caller takes what is to be replaced.
        Take,
        /// It has started workers, and gives them and those that have started ahead their places.
        Fill,
        /// It drops its future.
        Drop,
        /// It has begun the epoch.
        Begun,
        /// It has grown a session that is not lost, or is lost no more.
        Grow,
    }

    const EVENTS: [Event; 11] = [
        Event::Lose(0),
        Event::Lose(1),
        Event::Refuse,
        Event::Ahead,
        Event::Started,
        Event::Unwanted,
        Event::Take,
        Event::Fill,
        Event::Drop,
        Event::Begun,
        Event::Grow,
    ];

    /// What is to be true of the fleet: where each place is that has lost its worker.
    #[derive(Clone, Debug, Default)]
    struct Model {
        vacant: BTreeSet<WorkerId>,
        /// The lane has refused a frame, and not all workers were reported as lost since.
        is_cut: bool,
        /// In the hands of the caller, if there is one.
        caller: Option<BTreeSet<WorkerId>>,
        /// In the hands of the thread.
        thread: Option<BTreeSet<WorkerId>>,
        is_unwanted: bool,
        ready: BTreeSet<WorkerId>,
        /// An epoch has to begin.
        is_due: bool,
        untold: bool,
        has_failed: bool,
    }

    fn both() -> BTreeSet<WorkerId> {
        [0, 1].map(WorkerId::new).into()
    }

    impl Model {
        fn takes_commands(&self) -> bool {
            !self.is_due && self.vacant.is_empty() && !self.is_cut
        }

        fn add(&mut self, vacant: BTreeSet<WorkerId>) {
            self.vacant.extend(vacant);
            self.is_cut &= self.vacant != both();
        }

        /// Applies an event to both, if it can happen now. Checks what the fleet returns.
        fn apply(&mut self, event: Event, fleet: &mut Fleet, members: &Members) {
            let why = |text: &str| Error::state(text);
            match event {
                Event::Lose(place) => {
                    let place = BTreeSet::from([WorkerId::new(place)]);
                    let is_first = fleet.lose(Lost::Workers(place.clone()), &why("lost"));
                    assert_eq!(is_first, self.takes_commands(), "{self:?}");
                    self.add(place);
                    (self.is_due, self.untold) = (true, true);
                }
                Event::Refuse => {
                    fleet.lose(Lost::Lane(both()), &why("refused"));
                    self.is_cut |= self.vacant != both();
                    (self.is_due, self.untold) = (true, true);
                }
                Event::Ahead if self.thread.is_none() => {
                    let is_free = self.caller.is_none() && !self.has_failed && self.ready.is_disjoint(&self.vacant);
                    let expected = (is_free && !self.is_cut && !self.vacant.is_empty()).then(|| self.vacant.clone());
                    assert_eq!(fleet.begin_ahead(), expected, "{self:?}");
                    if expected.is_some() {
                        (self.thread, self.vacant) = (expected, BTreeSet::new());
                    }
                }
                Event::Started => {
                    let Some(places) = self.thread.take() else { return };
                    assert_eq!(fleet.keep_ready(), !self.is_unwanted, "{self:?}");
                    match std::mem::take(&mut self.is_unwanted) {
                        false => self.ready.extend(places),
                        true => {
                            self.add(places);
                            self.has_failed = true;
                        }
                    }
                    fleet.end_work();
                }
                Event::Unwanted => {
                    assert_eq!(fleet.stop_ahead(), self.thread.is_some() && !self.is_unwanted, "{self:?}");
                    self.is_unwanted = self.thread.is_some();
                }
                Event::Take if self.caller.is_none() => {
                    assert_eq!(fleet.begin_work(), self.thread.is_none(), "{self:?}");
                    if self.thread.is_some() {
                        return;
                    }
                    let ready = std::mem::take(&mut self.ready);
                    if !ready.is_empty() {
                        fleet.change(members, &[], &ready);
                    }
                    match fleet.take_vacancies() {
                        Err(_) => {
                            assert!(self.is_cut, "{self:?}");
                            fleet.end_work();
                        }
                        Ok(taken) => {
                            let expected = self.is_due.then(|| std::mem::take(&mut self.vacant));
                            assert_eq!(taken, expected, "{self:?}");
                            assert!(!self.is_cut, "{self:?}");
                            self.caller = Some(taken.unwrap_or_default());
                        }
                    }
                }
                Event::Fill => {
                    let Some(places) = &mut self.caller else { return };
                    fleet.change(members, &[], &std::mem::take(places));
                    self.is_due = true;
                }
                Event::Drop => {
                    let Some(places) = self.caller.take() else { return };
                    self.add(places);
                    fleet.end_work();
                }
                Event::Begun if self.caller.as_ref().is_some_and(BTreeSet::is_empty) => {
                    let revived = fleet.revive();
                    let is_lost = !self.vacant.is_empty() || self.is_cut;
                    assert_eq!(revived.map(|untold| untold.is_some()), (!is_lost).then_some(self.untold), "{self:?}");
                    if !is_lost {
                        (self.is_due, self.untold, self.caller) = (false, false, None);
                        (fleet.has_failed, self.has_failed) = (false, false);
                        fleet.end_work();
                    }
                }
                Event::Grow => {
                    let Some(places) = &self.caller else { return };
                    if places.is_empty() {
                        let three = Members::first(World::new(3, 1).unwrap());
                        fleet.change(&three, &[], &[WorkerId::new(2)].into());
                        assert!(fleet.is_resized && fleet.next_to_restore().is_some());
                        self.is_due = true;
                    }
                }
                _ => {}
            }
        }
    }

    /// Tries all sequences of `rest` more events. Returns the number of those that end with a session that takes commands.
    fn explore(model: &Model, path: &mut Vec<Event>, rest: usize) -> usize {
        let mut running = 0;
        let members = Members::first(World::new(2, 1).unwrap());
        for event in EVENTS {
            path.push(event);
            // A fleet has no copies: the path leads to the same one again.
            let (mut fleet, mut twin) = (Fleet::default(), Model::default());
            fleet.begin(members.clone());
            path.iter().for_each(|event| twin.apply(*event, &mut fleet, &members));
            assert_eq!(fleet.why().is_none(), twin.takes_commands(), "{path:?} {twin:?}");
            assert_eq!(fleet.loss().is_some(), !twin.vacant.is_empty() || twin.is_cut, "{path:?} {twin:?}");
            // An event that could not happen changes nothing.
            if rest > 1 && format!("{twin:?}") != format!("{model:?}") {
                running += explore(&twin, path, rest - 1);
            } else if rest == 1 {
                running += usize::from(fleet.why().is_none());
            }
            path.pop();
        }
        running
    }

    #[test]
    fn each_sequence_of_events_keeps_each_vacancy_in_one_hand_until_it_is_filled() {
        assert!(explore(&Model::default(), &mut Vec::new(), 9) > 1000);
    }

    #[test]
    fn a_refused_frame_is_explained_by_the_losses_of_all_workers_of_the_lane() {
        let mut fleet = Fleet::default();
        let lost = |place: u32| Lost::Workers([WorkerId::new(place)].into());
        fleet.lose(Lost::Lane(both()), &Error::state("the lane is full"));
        assert_eq!(fleet.take_vacancies().unwrap_err().to_string(), "the lane is full");
        fleet.lose(lost(0), &Error::state("killed"));
        assert_eq!(fleet.take_vacancies().unwrap_err().to_string(), "killed", "the cause is known now");
        fleet.lose(lost(1), &Error::state("killed later"));
        assert_eq!(fleet.take_vacancies().unwrap(), Some(both()));
        assert_eq!(fleet.revive().unwrap().unwrap().to_string(), "the lane is full", "no method has returned it");
    }

    #[test]
    fn the_limit_of_a_policy_holds_in_every_window_of_its_length() {
        let (mut fleet, begun) = (Fleet::default(), Instant::now());
        let within = Duration::from_secs(10);
        let policy = ReplacementPolicy::at_once().at_most(3, within);
        let mut all: Vec<Instant> = Vec::new();
        for second in 0..100_u64 {
            let now = begun + Duration::from_secs(second);
            let count = 1 + (second % 2) as usize;
            let recent = all.iter().filter(|at| now.duration_since(**at) < within).count();
            let admitted = fleet.admit(policy, "worker 0", count, now);
            assert_eq!(admitted.is_ok(), recent + count <= 3, "after {second} s");
            // An attempt that fails does not count.
            if admitted.is_ok() && second % 3 > 0 {
                fleet.count(policy, count, now);
                all.extend(std::iter::repeat_n(now, count));
            }
        }
        assert!(all.len() > 20);
        let refused = fleet.admit(ReplacementPolicy::never(), "worker 0", 1, begun).unwrap_err().to_string();
        assert_eq!(refused, "replace_lost: worker 0: the session never replaces workers (`ReplacementPolicy`)");
    }
}
