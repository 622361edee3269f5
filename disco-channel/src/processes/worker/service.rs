//! What goes on beside the commands, on a thread of its own, also while a function runs.

use std::convert::Infallible;
use std::os::fd::AsFd;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::activity::Progress;
use disco_core::wire::Message;
use disco_core::{Error, Link, Result, Value};
use rustix::event::{self, PollFd, PollFlags, Timespec};

use super::commands::Letterbox;
use super::link::ProcessLink;

use crate::connection::{Connection, Incoming, Waker};

/// How long a worker whose controller is gone has to end by itself.
const ORPHAN: Duration = Duration::from_secs(4);
/// How often what the worker does is looked at, at least.
const LOOK: Duration = Duration::from_millis(200);

/// The service thread of a worker.
pub(super) struct Service {
    pub(super) connection: Arc<Connection>,
    pub(super) incoming: Incoming,
    pub(super) waker: Arc<Waker>,
    pub(super) letterbox: Arc<Letterbox>,
    pub(super) link: Arc<ProcessLink>,
    pub(super) heartbeat: Duration,
    /// The worker's thread has ended its work for this controller.
    pub(super) served: Arc<AtomicBool>,
    /// What the controller was told last, and when.
    pub(super) said: Progress,
    pub(super) last: Instant,
}

impl Service {
    /// Serves until the controller is gone, and then ends the process unless that happens by itself.
    pub(super) fn run(mut self) {
        let why = loop {
            match self.step() {
                Ok(true) => {}
                Ok(false) => break "the controller is gone".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        self.link.abort(u64::MAX, &why.as_str().into());
        self.letterbox.close();
        let start = Instant::now();
        while start.elapsed() < ORPHAN {
            if self.served.load(Ordering::Acquire) {
                return;
            }
            thread::sleep(LOOK / 10);
        }
        tracing::error!(%why, "killed, since the worker's thread did not end");
        _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }

    /// Waits for what comes next. False: the controller is gone.
    fn step(&mut self) -> Result<bool> {
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, self.connection.is_behind());
        let tick = Timespec::try_from((self.heartbeat / 5).min(LOOK)).ok();
        let mut polled =
            [PollFd::from_borrowed_fd(self.connection.as_fd(), events), PollFd::new(&*self.waker, PollFlags::IN)];
        _ = event::poll(&mut polled, tick.as_ref());
        self.waker.hear();
        self.connection.flush()?;
        let Self { incoming, connection, link, letterbox, .. } = self;
        incoming.listen(connection, |incoming, message| hear(message, incoming, link, letterbox))?;
        self.say_progress()?;
        Ok(!self.incoming.is_closed())
    }

    /// Tells what the worker does, if that has changed or was not said for long.
    fn say_progress(&mut self) -> Result<()> {
        let progress = self.link.activity().progress();
        if progress != self.said || self.last.elapsed() >= self.heartbeat {
            self.connection.send(Message::Progress(progress.clone()).encode()?, None)?;
            (self.said, self.last) = (progress, Instant::now());
        }
        Ok(())
    }
}

impl Drop for Service {
    /// A worker whose service thread panicked hears of no abort: it ends, and with it its controller's waiting.
    fn drop(&mut self) {
        if thread::panicking() {
            process::abort();
        }
    }
}

fn hear(
    message: Message,
    incoming: &mut Incoming,
    link: &ProcessLink,
    letterbox: &Letterbox,
) -> Result<Option<Infallible>> {
    match message {
        Message::Frame { seq, bytes } => letterbox.put(seq, bytes),
        Message::Abort { epoch, cause } => link.abort(epoch, &cause),
        Message::Shutdown => letterbox.close(),
        Message::Answer { id, result } => link.questions.answer(id, result.map(|value| (value, None))),
        Message::Handed { id } => {
            let fd = incoming.take_fd()?;
            link.questions.answer(id, Ok((Value::None, Some(fd))));
        }
        Message::Bye(why) => return Err(Error::invalid(format!("the controller says: {why}"))),
        other => return Err(Error::invalid(format!("the controller says {other:?}"))),
    }
    Ok(None)
}
