//! What goes on at a node while its workers work.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::activity::Progress;
use disco_core::channel::Signal;
use disco_core::store::SharedStore;
use disco_core::wire::{self, Message};
use disco_core::{Channel, Command, Error, Frame, Inbox, Result, WorkerId};
use rustix::event::{PollFd, PollFlags};

use super::join::{Joined, lost};
use super::upstream::Upstream;
use crate::connection::{Connection, Incoming, Vigil, Waker};
use crate::credit::Taken;
use crate::questions::Questions;

/// How often what workers do is looked at, at least.
const LOOK: Duration = Duration::from_millis(200);
/// How long workers have to leave when the controller is gone.
const ORPHAN: Duration = Duration::from_secs(1);
/// How long what was said last may take to go.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);

/// Between the controller and the lane to the workers here.
pub(super) struct Bridge {
    connection: Arc<Connection>,
    incoming: Incoming,
    waker: Arc<Waker>,
    questions: Arc<Questions>,
    upstream: Arc<Upstream>,
    lane: Arc<dyn Channel>,
    workers: Vec<WorkerId>,
    heartbeat: Duration,
    silence: Duration,
    /// Frames that the lane has not taken yet, and their sizes.
    pending: VecDeque<(Arc<Frame>, usize)>,
    taken: Taken,
    /// What each worker was last told to do.
    progress: Vec<Progress>,
    /// When the controller was told that this end is alive.
    said: Instant,
    looked: Instant,
    /// Hears of the lane's start and end.
    events: (Sender<Event>, Receiver<Event>),
    is_leaving: bool,
    vigil: Vigil,
}

/// What becomes of the lane.
enum Event {
    Started(Result<()>),
    /// Who did not leave.
    Left(String),
}

/// How a node ends.
enum End {
    /// Its workers have left, but for these.
    Left(String),
    /// The controller has let go of it.
    Dismissed,
}

impl Bridge {
    pub(super) fn new(
        Joined { connection, incoming, assignment }: Joined,
        waker: Arc<Waker>,
        questions: Arc<Questions>,
        upstream: Arc<Upstream>,
        lane: Arc<dyn Channel>,
    ) -> Self {
        let workers = assignment.workers.start.index()..assignment.workers.end.index();
        let workers: Vec<WorkerId> = workers.map(|index| WorkerId::new(index as u32)).collect();
        connection.serve(workers.len());
        Self {
            connection,
            incoming,
            waker,
            questions,
            upstream,
            lane,
            progress: vec![Progress::default(); workers.len()],
            workers,
            heartbeat: assignment.heartbeat,
            silence: assignment.silence,
            pending: VecDeque::new(),
            taken: Taken::default(),
            said: Instant::now(),
            looked: Instant::now(),
            events: mpsc::channel(),
            is_leaving: false,
            vigil: Vigil::default(),
        }
    }

    /// Starts the workers, and serves until they have left or the controller is gone.
    pub(super) fn run(mut self) -> Result<()> {
        let (lane, inbox) = (self.lane.clone(), self.upstream.clone() as Arc<dyn Inbox>);
        self.aside("disco-start", move || Event::Started(lane.start(inbox)))?;
        let ended = loop {
            match self.step() {
                Ok(None) => {}
                Ok(Some(end)) => break Ok(end),
                Err(error) => break Err(error),
            }
        };
        let (stuck, result) = match ended {
            Ok(End::Left(stuck)) => (stuck, Ok(())),
            Ok(End::Dismissed) => (self.stop("the session shuts down", Duration::ZERO), Ok(())),
            Err(error) => {
                tracing::error!(%error, "stops its workers");
                // It may be there, and only not understood.
                self.upstream.tell(&Message::Bye(error.to_string()));
                (self.stop(&error.to_string(), ORPHAN), Err(error))
            }
        };
        // A controller that is gone does not care.
        let farewell = Message::Left(stuck.clone()).encode();
        _ = farewell.and_then(|packet| self.connection.send_last(packet));
        self.connection.finish(FAREWELL);
        match stuck.is_empty() {
            true => result,
            false => result.and(Err(Error::invalid(format!("these did not leave: {stuck}")))),
        }
    }

    /// Does something that may take its time on a thread of its own.
    fn aside(&self, name: &str, work: impl FnOnce() -> Event + Send + 'static) -> Result<()> {
        let (tell, waker) = (self.events.0.clone(), self.waker.clone());
        let work = move || {
            // Nobody may listen any more.
            _ = tell.send(work());
            waker.wake();
        };
        let started = thread::Builder::new().name(name.into()).spawn(work);
        started.map(drop).map_err(|error| Error::invalid(format!("a node's thread can't be started: {error}")))
    }

    /// Waits for what comes next.
    fn step(&mut self) -> Result<Option<End>> {
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, self.connection.is_behind());
        let tick = (self.heartbeat / 2).min(LOOK);
        let mut polled =
            [PollFd::from_borrowed_fd(self.connection.as_fd(), events), PollFd::new(&*self.waker, PollFlags::IN)];
        self.vigil.wait(&mut polled, tick);
        self.waker.hear();
        if let Some(end) = self.listen()? {
            return Ok(Some(end));
        }
        self.pass_on()?;
        if self.connection.is_full() {
            return Err(lost(format!("it has left {} bytes unread", self.connection.backlog())));
        }
        // That the controller is gone shows when it is listened to.
        _ = self.connection.flush();
        while let Ok(event) = self.events.1.try_recv() {
            match event {
                Event::Started(started) => {
                    started?;
                    self.upstream.tell(&Message::Ready);
                }
                Event::Left(stuck) => return Ok(Some(End::Left(stuck))),
            }
        }
        self.look_at_time()?;
        match self.incoming.is_closed() {
            true if self.is_leaving => Ok(Some(End::Dismissed)),
            true => Err(lost("it closed the connection".into())),
            false => Ok(None),
        }
    }

    fn listen(&mut self) -> Result<Option<End>> {
        let Self { incoming, connection, pending, lane, questions, is_leaving, .. } = self;
        let mut is_told_to_leave = false;
        let end = incoming.listen(connection, |_, message| {
            match message {
                Message::Alive => {}
                // It was overtaken.
                Message::Frame { .. } if *is_leaving || is_told_to_leave => {}
                Message::Frame { seq, bytes } => {
                    let frame = match lane.crosses() {
                        true => Frame::decode(seq, &bytes)?,
                        false => wire::decode_frame(seq, &bytes)?,
                    };
                    pending.push_back((Arc::new(frame), bytes.len()));
                }
                Message::Abort { epoch, cause } => {
                    lane.urgent(Signal::Abort { epoch, cause: cause.clone() })?;
                    questions.abort(epoch, &cause);
                }
                Message::Shutdown => {
                    pending.clear();
                    lane.urgent(Signal::Shutdown)?;
                    is_told_to_leave = true;
                }
                Message::Answer { id, result } => questions.answer(id, result.map(|value| (value, None))),
                Message::Bye(why) if *is_leaving || is_told_to_leave => {
                    tracing::debug!(%why, "dismissed");
                    return Ok(Some(End::Dismissed));
                }
                Message::Bye(why) => return Err(lost(format!("it says: {why}"))),
                other => return Err(lost(format!("it says {other}"))),
            }
            Ok(None)
        })?;
        if is_told_to_leave {
            self.leave()?;
        }
        Ok(end)
    }

    /// Passes frames on, as far as the lane takes them.
    fn pass_on(&mut self) -> Result<()> {
        while self.lane.room() > 0
            && let Some((frame, size)) = self.pending.pop_front()
        {
            self.lane.send(&frame)?;
            if self.taken.take(size) {
                let (frames, bytes) = self.taken.say();
                self.upstream.tell(&Message::Room { frames, bytes });
            }
            if matches!(frame.command(), Command::Shutdown) {
                self.leave()?;
            }
        }
        Ok(())
    }

    /// The workers were told to leave: waits for them, aside.
    fn leave(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_leaving, true) {
            return Ok(());
        }
        let lane = self.lane.clone();
        self.aside("disco-close", move || Event::Left(close(&*lane, Duration::MAX)))
    }

    /// What depends on time alone.
    fn look_at_time(&mut self) -> Result<()> {
        let since = self.looked.elapsed();
        if since < (self.heartbeat / 4).min(LOOK) {
            return Ok(());
        }
        self.looked = Instant::now();
        // Whoever kept this thread from running kept it from hearing, too.
        if since > self.silence / 2 {
            self.incoming.excuse();
        }
        if self.incoming.silence() > self.silence {
            return Err(lost(format!("it has said nothing for {:?}", self.silence)));
        }
        for (worker, said) in self.workers.iter().zip(&mut self.progress) {
            let progress = self.lane.progress(*worker);
            if progress != *said {
                self.upstream.say(*worker, Message::Progress(progress.clone()));
                *said = progress;
            }
        }
        if self.said.elapsed() >= self.heartbeat {
            self.said = self.looked;
            self.upstream.tell(&Message::Alive);
        }
        Ok(())
    }

    /// Ends the workers, who have `limit` to leave. Returns who did not.
    fn stop(&self, why: &str, limit: Duration) -> String {
        let cause: Arc<str> = why.into();
        self.upstream.end();
        self.questions.abort(u64::MAX, &cause);
        for signal in [Signal::Shutdown, Signal::Abort { epoch: u64::MAX, cause }] {
            // A lane that was not started has nobody to tell.
            _ = self.lane.urgent(signal);
        }
        close(&*self.lane, limit)
    }
}

/// Closes a lane. Returns who did not leave.
fn close(lane: &dyn Channel, limit: Duration) -> String {
    match pollster::block_on(lane.close(limit)) {
        Ok(()) => String::new(),
        Err(Error::Stuck { workers, .. }) => workers,
        Err(error) => error.to_string(),
    }
}
