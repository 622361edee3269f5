//! The upper side of a node: its connection to its parent, and the member's engine.

use std::sync::Arc;
use std::time::Duration;

use disco_core::activity::Progress;
use disco_core::channel::Signal;
use disco_core::wire::{Assignment, Message};
use disco_core::{Error, Frame, Result, WorkerRange};

use super::super::phase::{self, Phase, Step};
use super::super::terms::messages;
use super::end::{End, Lower};
use super::lower;
use super::world::{Entry, MICRO, To, World};
use crate::controller::{Event as LowerEvent, pack};
use crate::handshake::Request;
use crate::member::joining::{self, Joining};
use crate::member::serving::{Action, Event, Member};
use crate::member::upward;

/// Time that a worker needs to take a command from its lane and to reply.
pub(super) const WORKER_TIME: u64 = 5 * MICRO;

impl World {
    /// Handles bytes from the parent.
    pub(super) fn upper_receives(&mut self, end: usize, link: usize, bytes: &Arc<[u8]>) {
        if self.ends[end].link != Some(link) {
            return;
        }
        if let Phase::Proving(_) = self.ends[end].phase {
            return self.prove(end, bytes);
        }
        let all = self.measure(|_| messages(bytes).collect::<Vec<_>>());
        for message in all {
            match message {
                Ok(message) => self.upper(end, Event::Message(message)),
                Err(error) => self.record_violation(format!("node {end} can't decode a message: {error}")),
            }
        }
    }

    fn prove(&mut self, end: usize, bytes: &[u8]) {
        // A node's number is its place, so that the tree is that of the numbers.
        let request = Request { node: Some(end as u32), per_node: Some(self.per_node) };
        match self.measure(|world| world.ends[end].phase.prove(request, bytes)) {
            Ok(Step::Answer(answer)) => self.send_up(end, answer[..].into()),
            Ok(Step::Introduce) => {
                let join = phase::join(format!("host{end:05}"));
                self.ends[end].phase = Phase::Joining(Joining::new(join, self.instant()));
                self.upper_acts(end);
            }
            Ok(Step::Unknown) => {}
            Err(error) => self.record_violation(format!("node {end}, which has the right token: {error}")),
        }
    }

    /// The parent has closed the link.
    pub(super) fn upper_is_cut(&mut self, end: usize, link: usize) {
        if self.ends[end].link != Some(link) {
            return;
        }
        match self.ends[end].phase {
            Phase::Serving(_) => self.upper(end, Event::Closed),
            // A node that can't join ends with its start limit; here at once.
            _ => self.end_node(end, Err(Error::invalid("the parent is gone"))),
        }
    }

    /// Feeds an event to the upper engine.
    pub(super) fn upper(&mut self, end: usize, event: Event) {
        let now = self.instant();
        self.measure(|world| world.ends[end].phase.handle(event, now));
        self.upper_acts(end);
    }

    pub(super) fn upper_acts(&mut self, end: usize) {
        loop {
            match self.ends[end].phase.next_action() {
                Some(phase::Action::Join(action)) => self.join(end, action),
                Some(phase::Action::Serve(action)) => {
                    if let Err(error) = self.act(end, action) {
                        self.record_violation(format!("node {end}: {error}"));
                    }
                }
                None => {
                    let (now, End { phase, lower, .. }) = (self.instant(), &mut self.ends[end]);
                    let room = lower.as_ref().map_or(64, |lower| lower.engine.room());
                    if !phase.offer_room(room, now) {
                        break;
                    }
                }
            }
        }
        let timeout = self.ends[end].phase.next_timeout();
        self.set_timer(end, false, timeout);
    }

    fn join(&mut self, end: usize, action: joining::Action) {
        match action {
            joining::Action::Send(message) => self.say(end, &message),
            joining::Action::ShowWaiting => {}
            // The address is the number of the end.
            joining::Action::Listen { .. } => self.say(end, &Message::Listens(vec![end.to_string()])),
            joining::Action::Taken(message) => match *message {
                Message::Assign(assignment) => self.assigned(end, &assignment),
                Message::Redirect { node, addresses, .. } if node as usize == end => {
                    if let Some(link) = self.ends[end].link.take() {
                        self.send(link, To::Parent, None);
                    }
                    self.ends[end].phase = Phase::Away;
                    let parent = addresses.first().and_then(|address| address.parse().ok());
                    match parent {
                        Some(parent) => self.connect(end, parent),
                        None => self.record_violation(format!("node {end} is sent to {addresses:?}")),
                    }
                }
                other => self.record_violation(format!("node {end} got {other}")),
            },
            joining::Action::Retry(why) => self.end_node(end, Err(Error::invalid(why.to_string()))),
            joining::Action::Refused(error) => self.end_node(end, Err(error)),
        }
    }

    fn assigned(&mut self, end: usize, assignment: &Assignment) {
        if assignment.node as usize != end {
            return self.record_violation(format!("node {end} is assigned as node {}", assignment.node));
        }
        let now = self.instant();
        let workers = assignment.workers;
        let own = workers.part(0, self.per_node as usize);
        let this = &mut self.ends[end];
        (this.workers, this.replies) = (own, upward::Replies::new(workers));
        this.departures = upward::Departures::new(workers);
        this.phase = Phase::Serving(Box::new(Member::node(assignment, true, now).with_clock(this.clock.clone())));
        match lower::children(assignment, own, now) {
            Ok(None) => self.upper(end, Event::Started(Ok(()))),
            Ok(Some(engine)) => {
                this.lower = Some(Lower::new(engine.with_clock(this.clock.clone())));
                self.lower_acts(end);
            }
            Err(error) => self.record_violation(format!("node {end}: {error}")),
        }
    }

    /// Carries out an action of the member's engine, as `Bridge` does.
    fn act(&mut self, end: usize, action: Action) -> Result<()> {
        match action {
            Action::Send(message) | Action::SendLast(message) => self.say(end, &message),
            Action::Pass(frame) => self.pass(end, &frame)?,
            Action::Signal(signal @ Signal::Abort { .. }) => self.abort(end, signal),
            Action::Answer { id, result } => self.gets_answer(end, id, result),
            Action::Signal(Signal::Replace { workers, .. }) if self.ends[end].workers.contains(workers.first()) => {
                match self.asked.iter().position(|asked| *asked == workers.first()) {
                    Some(at) => _ = self.asked.swap_remove(at),
                    None => self.record_violation(format!("node {end} has to replace {workers} unasked")),
                }
            }
            Action::Signal(signal @ Signal::Replace { .. }) => self.lower(end, LowerEvent::Signal(signal)),
            Action::Signal(Signal::Shutdown) => {
                self.lower(end, LowerEvent::Signal(Signal::Shutdown));
                self.own_workers_leave(end);
            }
            Action::AwaitWorkers => self.await_workers(end, Duration::MAX),
            Action::ReadProgress => {
                let flushed = self.ends[end].replies.flush();
                flushed.iter().for_each(|message| self.say(end, message));
                let (seq, End { workers, lower, .. }) = (self.ends[end].passed.0, &self.ends[end]);
                let own = workers.iter().map(|_| Progress::new(seq, seq));
                let behind = lower
                    .iter()
                    .flat_map(|lower| lower.engine.workers().into_iter().map(|worker| lower.engine.progress(worker)));
                let progress = own.chain(behind).collect();
                self.upper(end, Event::Progress(progress));
            }
            Action::Stop { cause, limit } => {
                self.stops(end);
                let split = self.ends[end].replies.split();
                split.iter().for_each(|message| self.say(end, message));
                self.lower(end, LowerEvent::Signal(Signal::Shutdown));
                self.abort(end, Signal::Abort { epoch: u64::MAX, cause });
                self.await_workers(end, limit);
            }
            Action::End(result) => self.end_node(end, result),
            _ => {}
        }
        Ok(())
    }

    /// Passes a frame on to the nodes behind and to the own workers.
    fn pass(&mut self, end: usize, frame: &Frame) -> Result<()> {
        let seq = frame.seq();
        if seq != self.ends[end].passed.0 + 1 {
            let last = self.ends[end].passed.0;
            self.record_violation(format!("node {end} has got command {seq} after {last}"));
        }
        self.ends[end].replies.expect(frame);
        self.submit(end, frame)?;
        self.ends[end].passed = (seq, self.clock);
        self.reached += 1;
        self.take_up(end, seq, frame.command());
        Ok(())
    }

    /// Sends a frame to an end's children.
    pub(super) fn submit(&mut self, end: usize, frame: &Frame) -> Result<()> {
        let now = self.instant();
        if self.ends[end].lower.is_none() {
            return Ok(());
        }
        self.measure(|world| match &mut world.ends[end].lower {
            None => Ok(()),
            Some(lower) => {
                let packed = pack(frame);
                lower.engine.note_effect(frame.command());
                lower.engine.submit_packed(frame, packed?, now)
            }
        })?;
        self.lower_acts(end);
        Ok(())
    }

    /// Adds replies without a value to those of a node.
    pub(super) fn replied(&mut self, end: usize, workers: WorkerRange, seq: u64) {
        let messages = self.measure(|world| world.ends[end].replies.add(workers, seq));
        messages.iter().for_each(|message| self.say(end, message));
    }

    pub(super) fn own_workers_leave(&mut self, end: usize) {
        let End { workers, jobs, .. } = &self.ends[end];
        // The first one carries out commands.
        let leaving = workers.part(usize::from(jobs.is_stuck), workers.len());
        if !leaving.is_empty() {
            self.leaves(end, leaving);
        }
    }

    /// Workers of a node, or behind it, have left.
    pub(super) fn leaves(&mut self, end: usize, workers: WorkerRange) {
        let split = self.ends[end].replies.split();
        let left = self.ends[end].departures.add(workers);
        split.iter().chain(left.as_ref().map(|(left, _)| left)).for_each(|message| self.say(end, message));
    }

    fn await_workers(&mut self, end: usize, limit: Duration) {
        let until = (limit < Duration::MAX).then(|| self.clock + limit.as_nanos() as u64);
        let this = &mut self.ends[end];
        this.awaits = true;
        this.patience = this.patience.into_iter().chain(until).min();
        until.into_iter().for_each(|until| self.at(until, Entry::Patience(end)));
        self.lower(end, LowerEvent::Close(limit));
        self.tell_of_end(end);
    }

    /// Tells the member that all workers have left, once they have.
    pub(super) fn tell_of_end(&mut self, end: usize) {
        let now = self.clock;
        let End { awaits, lower, jobs, patience, workers, .. } = &mut self.ends[end];
        let own = match patience {
            _ if !jobs.is_stuck => Some(None),
            Some(until) if *until <= now => Some(Some(workers.first().to_string())),
            _ => None,
        };
        let behind = match lower {
            None => Some(Vec::new()),
            Some(lower) if lower.is_over => lower.engine.stuck().map(<[String]>::to_vec),
            Some(_) => None,
        };
        let stuck = own.zip(behind).map(|(own, behind)| own.into_iter().chain(behind).collect::<Vec<_>>().join(", "));
        if let Some(stuck) = stuck.filter(|_| *awaits) {
            *awaits = false;
            self.upper(end, Event::Left(stuck));
        }
    }

    pub(super) fn end_node(&mut self, end: usize, result: Result<()>) {
        if let Some(link) = self.ends[end].link.take() {
            self.send(link, To::Parent, None);
        }
        self.stops(end);
        self.ends[end].phase = Phase::Done;
        self.ends[end].result.get_or_insert(result);
        self.lower(end, LowerEvent::Dropped);
    }

    /// Sends a message to the parent.
    pub(super) fn say(&mut self, end: usize, message: &Message) {
        match self.measure(|_| message.encode()) {
            Ok(packet) => self.send_up(end, packet.into()),
            Err(error) => self.record_violation(format!("node {end}: {error}")),
        }
    }

    fn send_up(&mut self, end: usize, bytes: Arc<[u8]>) {
        if let Some(link) = self.ends[end].link {
            self.send(link, To::Parent, Some(bytes));
        }
    }

    pub(super) fn unexpected(&mut self, end: usize, what: &dyn std::fmt::Debug) {
        self.record_violation(format!("end {end}: unexpected {what:?}"));
    }
}
