//! The driver of a member (a worker process or a node): waits for events, feeds the engine, and carries out its
//! actions.

use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::error::LossCause;
use disco_core::wire::{Message, WireError};
use disco_core::{Channel, Result, channel};
use disco_engine::member::joining::{Action, Joining};
use disco_engine::member::serving::{self, Event, Member, controller_lost};
use rustix::event::{PollFd, PollFlags};

use crate::remote::reactor::{Connection, DESCRIPTOR_RETRY_DELAY, Incoming, Poller, Waker};

/// Reads from the connection before other events are handled.
const MAX_READS_PER_STEP: u32 = 16;
/// Longest wait, as a safeguard: the engine has a timeout in each phase in which the driver waits.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// A member, its connection, and the process that hosts it.
pub(crate) struct Driver<H> {
    pub(crate) member: Member,
    pub(crate) connection: Arc<Connection>,
    pub(crate) incoming: Incoming,
    pub(crate) waker: Arc<Waker>,
    pub(crate) host: H,
    /// An action was carried out since the last wait that is no heartbeat: more may follow soon.
    pub(crate) is_busy: bool,
}

/// The interface of the hosting process to the driver.
pub(crate) trait Host {
    /// Whether the driver's thread polls for a moment after each event before it sleeps.
    const STAYS_AWAKE: bool;

    /// The lanes that the driver's thread polls for replies while it spins.
    fn lanes(&self) -> &[Arc<dyn Channel>] {
        &[]
    }

    /// The next event of the process itself.
    fn next_event(&mut self, member: &Member) -> Option<Event>;

    /// Carries out an action, which may take a received descriptor. Returns the events that follow.
    fn act(&mut self, action: serving::Action, incoming: &mut Incoming) -> Result<Vec<Event>>;
}

impl<H: Host> Driver<H> {
    /// Serves until the member ends. Returns its result.
    pub(crate) fn run(&mut self) -> Result<()> {
        let mut poller = Poller::default();
        loop {
            if let ControlFlow::Break(result) = self.step(&mut poller) {
                return result;
            }
            if !H::STAYS_AWAKE || !std::mem::take(&mut self.is_busy) {
                poller.rest();
            }
        }
    }

    /// Waits for events and handles them. Breaks with the member's result.
    fn step(&mut self, poller: &mut Poller) -> ControlFlow<Result<()>> {
        let connection = self.member.listens().then_some(&*self.connection);
        wait(poller, connection, &self.waker, self.member.next_timeout(), self.host.lanes());
        // A reply that was left behind, because a worker has corrupted shared memory, is only late.
        channel::poll(self.host.lanes());
        let mut rounds = MAX_READS_PER_STEP;
        while self.member.listens()
            && let Some(event) = next_event(&mut self.incoming, &self.connection, &mut rounds)
        {
            // The end of the connection is handled last, after the other events below.
            if let Event::Closed = event {
                break;
            }
            self.handle(event)?;
        }
        while let Some(event) = self.host.next_event(&self.member) {
            self.handle(event)?;
        }
        if self.connection.is_full() {
            self.handle(Event::Full(self.connection.backlog()))?;
        }
        // A closed connection is noticed when it is read.
        _ = self.connection.flush();
        self.handle(Event::Timeout)?;
        if self.incoming.is_closed() {
            self.handle(self.connection.stuck().map_or(Event::Closed, Event::Unacknowledged))
        } else {
            ControlFlow::Continue(())
        }
    }

    fn handle(&mut self, event: Event) -> ControlFlow<Result<()>> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            self.member.handle(event, Instant::now());
            while let Some(action) = self.member.next_action() {
                if let serving::Action::End(result) = action {
                    return ControlFlow::Break(result);
                }
                self.is_busy |= !matches!(action, serving::Action::Send(_) | serving::Action::ReadProgress);
                let follows = self.host.act(action, &mut self.incoming);
                // A send finds first that the other end is gone, if it comes before the read.
                let failed = |error| if self.connection.is_cut() { Event::Closed } else { Event::Failed(error) };
                events.extend(follows.unwrap_or_else(|error| vec![failed(error)]));
            }
        }
        ControlFlow::Continue(())
    }
}

/// Waits until the connection or the waker is ready, or until `timeout`.
fn wait(
    poller: &mut Poller,
    connection: Option<&Connection>,
    waker: &Waker,
    timeout: Option<Instant>,
    lanes: &[Arc<dyn Channel>],
) {
    let mut limit = timeout.map_or(MAX_WAIT, |timeout| timeout.saturating_duration_since(Instant::now()));
    if connection.is_some_and(Connection::is_paused) {
        limit = limit.min(DESCRIPTOR_RETRY_DELAY);
    }
    let mut polled = vec![PollFd::new(waker, PollFlags::IN)];
    if let Some(connection) = connection {
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, connection.is_behind());
        polled.push(PollFd::new(connection, events));
    }
    poller.wait(&mut polled, limit.min(MAX_WAIT), lanes);
    waker.reset();
}

/// The next event of a connection, from bytes that were read already, or from at most `rounds` further reads.
fn next_event(incoming: &mut Incoming, connection: &Connection, rounds: &mut u32) -> Option<Event> {
    loop {
        match incoming.next() {
            Ok(None) if incoming.take_part() => return Some(Event::PartReceived),
            Ok(None) => {}
            Ok(Some(message)) => return Some(Event::Message(message)),
            Err(error @ WireError::NoMemory { .. }) => return Some(Event::Failed(error.into())),
            Err(error) => return Some(violation(&error)),
        }
        *rounds = rounds.checked_sub(1)?;
        match incoming.fill(connection) {
            Ok(true) => {}
            Ok(false) => return incoming.is_closed().then_some(Event::Closed),
            Err(error) => return Some(violation(&error)),
        }
    }
}

/// The loss of the controller, which has sent something else than messages.
fn violation(error: &dyn fmt::Display) -> Event {
    Event::Failed(controller_lost(LossCause::ProtocolViolation(error.to_string())))
}

/// Introduces a member, and waits until the controller accepts it, or sends it to a parent. `Ok(Err(why))`: the attempt
/// failed, and another one may succeed. `listen` makes the listener of a node that is to relay, and returns its addresses.
///
/// # Errors
/// The controller refuses the member, or the member can't listen.
pub(crate) fn join(
    joining: &mut Joining,
    connection: &Connection,
    incoming: &mut Incoming,
    waker: &Waker,
    show_waiting: impl Fn(),
    mut listen: impl FnMut(bool) -> Result<Vec<String>>,
) -> Result<Result<Message, LossCause>> {
    let mut rounds = MAX_READS_PER_STEP;
    loop {
        while let Some(action) = joining.next_action() {
            match action {
                // A closed connection is noticed when it is read, where the reason may still be found.
                Action::Send(message) => _ = connection.send(message.encode()?, None),
                Action::ShowWaiting => show_waiting(),
                Action::Listen { everywhere } => match listen(everywhere) {
                    Ok(addresses) => _ = connection.send(Message::Listens(addresses).encode()?, None),
                    Err(error) => {
                        _ = connection.send(Message::Bye(error.to_string()).encode()?, None);
                        return Err(error);
                    }
                },
                Action::Taken(message) => return Ok(Ok(*message)),
                Action::Retry(why) => return Ok(Err(why)),
                Action::Refused(error) => return Err(error),
            }
        }
        let event = next_event(incoming, connection, &mut rounds).unwrap_or_else(|| {
            rounds = MAX_READS_PER_STEP;
            wait(&mut Poller::default(), Some(connection), waker, joining.next_timeout(), &[]);
            _ = connection.flush();
            Event::Timeout
        });
        joining.handle(event, Instant::now());
    }
}
