//! What the drivers of members share: waiting for events, and taking them in.

use std::time::{Duration, Instant};

use disco_core::Result;
use disco_core::error::LossCause;
use disco_core::wire::Message;
use rustix::event::{PollFd, PollFlags};

use crate::engine::member::joining::{Action, Joining};
use crate::engine::member::serving::Event;
use crate::reactor::{Connection, Incoming, Poller, Waker};

/// Reads from a connection before anything else is done.
pub(crate) const ROUNDS: u32 = 16;
/// Longest wait. An engine has a timeout in each phase in which the driver waits.
const WAIT_LIMIT: Duration = Duration::from_secs(1);

/// Waits until something comes over the connection, the waker is woken, or it is time.
pub(crate) fn wait(poller: &mut Poller, connection: Option<&Connection>, waker: &Waker, timeout: Option<Instant>) {
    let limit = timeout.map_or(WAIT_LIMIT, |timeout| timeout.saturating_duration_since(Instant::now()));
    let mut polled = vec![PollFd::new(waker, PollFlags::IN)];
    if let Some(connection) = connection {
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, connection.is_behind());
        polled.push(PollFd::new(connection, events));
    }
    poller.wait(&mut polled, limit.min(WAIT_LIMIT));
    waker.hear();
}

/// The next event of a connection, from what was read already, or of what `rounds` further reads give.
pub(crate) fn next_event(incoming: &mut Incoming, connection: &Connection, rounds: &mut u32) -> Option<Event> {
    match incoming.next() {
        Ok(None) => {}
        Ok(Some(message)) => return Some(Event::Said(message)),
        Err(error) => return Some(Event::Failed(error.into())),
    }
    *rounds = rounds.checked_sub(1)?;
    match incoming.fill(connection) {
        Ok(true) => Some(Event::Heard),
        Ok(false) => incoming.is_closed().then_some(Event::Closed),
        Err(error) => Some(Event::Failed(error)),
    }
}

/// Introduces a member, and waits until the controller takes it. `Ok(Err(why))`: the attempt failed, and another one may not.
///
/// # Errors
/// The controller refuses the member.
pub(crate) fn join(
    joining: &mut Joining,
    connection: &Connection,
    incoming: &mut Incoming,
    waker: &Waker,
    show_waiting: impl Fn(),
) -> Result<Result<Message, LossCause>> {
    let mut rounds = ROUNDS;
    loop {
        while let Some(action) = joining.next_action() {
            match action {
                // That the controller is gone shows when it is listened to, as it may have said why.
                Action::Send(message) => _ = connection.send(message.encode()?, None),
                Action::ShowWaiting => show_waiting(),
                Action::Taken(message) => return Ok(Ok(*message)),
                Action::Retry(why) => return Ok(Err(why)),
                Action::Refused(error) => return Err(error),
            }
        }
        let event = next_event(incoming, connection, &mut rounds).unwrap_or_else(|| {
            rounds = ROUNDS;
            wait(&mut Poller::default(), Some(connection), waker, joining.next_timeout());
            _ = connection.flush();
            Event::Timeout
        });
        joining.handle(event, Instant::now());
    }
}
