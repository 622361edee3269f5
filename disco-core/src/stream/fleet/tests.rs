//! The fleet against a model, with all sequences of events.

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
    /// A caller takes the vacancies.
    Take,
    /// The caller gives new workers their places: its own, and workers that have started ahead.
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

/// The expected state of the fleet: the holder of each vacancy.
#[derive(Clone, Debug, Default)]
struct Model {
    vacant: BTreeSet<WorkerId>,
    /// The lane has refused a frame, and not all workers were reported as lost since.
    has_refused: bool,
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
        !self.is_due && self.vacant.is_empty() && !self.has_refused
    }

    fn add(&mut self, vacant: BTreeSet<WorkerId>) {
        self.vacant.extend(vacant);
        self.has_refused &= self.vacant != both();
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
                self.has_refused |= self.vacant != both();
                (self.is_due, self.untold) = (true, true);
            }
            Event::Ahead if self.thread.is_none() => {
                let is_free = self.caller.is_none() && !self.has_failed && self.ready.is_disjoint(&self.vacant);
                let expected = (is_free && !self.has_refused && !self.vacant.is_empty()).then(|| self.vacant.clone());
                assert_eq!(fleet.begin_ahead(), expected, "{self:?}");
                if expected.is_some() {
                    (self.thread, self.vacant) = (expected, BTreeSet::new());
                }
            }
            Event::Started => {
                let Some(places) = self.thread.take() else { return };
                assert_eq!(fleet.keep_ready(), !self.is_unwanted, "{self:?}");
                if std::mem::take(&mut self.is_unwanted) {
                    self.add(places);
                    self.has_failed = true;
                } else {
                    self.ready.extend(places)
                }
                fleet.end_work();
            }
            Event::Unwanted => {
                assert_eq!(fleet.stop_ahead(), self.thread.is_some() && !self.is_unwanted, "{self:?}");
                self.is_unwanted = self.thread.is_some();
            }
            Event::Take if self.caller.is_none() => self.take(fleet, members),
            Event::Fill => {
                let Some(places) = &mut self.caller else { return };
                fleet.change(members, &std::mem::take(places));
                self.is_due = true;
            }
            Event::Drop => {
                let Some(places) = self.caller.take() else { return };
                self.add(places);
                fleet.end_work();
            }
            Event::Begun if self.caller.as_ref().is_some_and(BTreeSet::is_empty) => self.begin_epoch(fleet),
            Event::Grow if self.caller.as_ref().is_some_and(BTreeSet::is_empty) => {
                let three = Members::first(World::new(3, 1).unwrap());
                fleet.change(&three, &[WorkerId::new(2)].into());
                assert!(fleet.is_resized && fleet.next_to_restore().is_some());
                self.is_due = true;
            }
            _ => {}
        }
    }

    fn take(&mut self, fleet: &mut Fleet, members: &Members) {
        assert_eq!(fleet.begin_work(), self.thread.is_none(), "{self:?}");
        if self.thread.is_some() {
            return;
        }
        let ready = std::mem::take(&mut self.ready);
        if !ready.is_empty() {
            fleet.change(members, &ready);
        }
        match fleet.take_vacancies() {
            Err(_) => {
                assert!(self.has_refused, "{self:?}");
                fleet.end_work();
            }
            Ok(taken) => {
                let expected = self.is_due.then(|| std::mem::take(&mut self.vacant));
                assert_eq!(taken, expected, "{self:?}");
                assert!(!self.has_refused, "{self:?}");
                self.caller = Some(taken.unwrap_or_default());
            }
        }
    }

    fn begin_epoch(&mut self, fleet: &mut Fleet) {
        let revived = fleet.revive();
        let is_lost = !self.vacant.is_empty() || self.has_refused;
        assert_eq!(revived.map(|untold| untold.is_some()), (!is_lost).then_some(self.untold), "{self:?}");
        if !is_lost {
            (self.is_due, self.untold, self.caller) = (false, false, None);
            (fleet.has_failed, self.has_failed) = (false, false);
            fleet.end_work();
        }
    }
}

/// Tries all sequences of `rest` more events. Returns how many of these sequences end with a running session.
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
        assert_eq!(fleet.loss().is_some(), !twin.vacant.is_empty() || twin.has_refused, "{path:?} {twin:?}");
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
    assert!(fleet.revive().is_none(), "they are not filled");
    fleet.change(&Members::first(World::new(2, 1).unwrap()), &both());
    assert_eq!(fleet.revive().unwrap().unwrap().to_string(), "the lane is full", "no method has returned it");
}

#[test]
fn nobody_fills_the_place_of_a_worker_that_was_dismissed() {
    let mut fleet = Fleet::default();
    fleet.begin(Members::first(World::new(2, 1).unwrap()));
    fleet.lose(Lost::Workers(both()), &Error::state("killed"));
    assert_eq!(fleet.vacant(), both());
    assert_eq!(fleet.take_vacancies().unwrap(), Some(both()));
    assert_eq!(fleet.vacant(), both(), "their successors have not started");
    fleet.change(&Members::first(World::new(1, 1).unwrap()), &[WorkerId::new(0)].into());
    assert!(fleet.is_resized && fleet.vacant().is_empty() && fleet.revive().is_some());
}
