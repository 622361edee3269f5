//! The connections of a server, and which one gives way to another.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::sync::lock;

/// Connections beyond the limit, on which only the routes that watch the server are answered.
const RESERVE: usize = 16;
/// Time between two attempts to find a place for a connection, while requests are answered on all others.
const SEARCH_INTERVAL: Duration = Duration::from_millis(100);

/// The places of all connections.
pub(super) struct Places {
    limit: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    next: u64,
    clients: HashMap<u64, Arc<Client>>,
}

/// The state of one connection.
struct Client {
    /// Since when the server waits for bytes of the client; `None` while it answers a request.
    waits_since: Mutex<Option<Instant>>,
    gives_way: Notify,
}

/// The place of one connection, until it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    client: Arc<Client>,
    /// Whether this place is one of the reserve.
    pub(super) is_reserve: bool,
}

impl Places {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, taken: Mutex::default() })
    }

    /// A place for a new connection. If all are taken, the client for which the server has waited longest loses its own; if
    /// the server waits for none, the place is one of the reserve.
    pub(super) async fn take(self: &Arc<Self>) -> Place {
        loop {
            if let Some(place) = self.try_take() {
                return place;
            }
            sleep(SEARCH_INTERVAL).await;
        }
    }

    fn try_take(self: &Arc<Self>) -> Option<Place> {
        let mut taken = lock(&self.taken);
        if taken.clients.len() >= self.limit {
            taken.close_one();
        }
        let count = taken.clients.len();
        if count >= self.limit + RESERVE {
            return None;
        }
        let number = taken.next;
        taken.next += 1;
        let client = Arc::new(Client { waits_since: Mutex::new(Some(Instant::now())), gives_way: Notify::new() });
        taken.clients.insert(number, client.clone());
        Some(Place { places: self.clone(), number, client, is_reserve: count >= self.limit })
    }

    /// Ends the connection of the client for which the server has waited longest, if it waits for one.
    pub(super) fn close_one(&self) {
        lock(&self.taken).close_one();
    }
}

impl Taken {
    fn close_one(&mut self) {
        let waiting = self.clients.iter().filter_map(|(number, client)| Some(((*lock(&client.waits_since))?, *number)));
        if let Some((_, number)) = waiting.min()
            && let Some(client) = self.clients.remove(&number)
        {
            client.gives_way.notify_one();
        }
    }
}

impl Place {
    /// Waits until the connection is to end, because another one needs its place.
    pub(super) async fn gives_way(&self) {
        self.client.gives_way.notified().await;
    }

    /// Whether the server waits for bytes of the client.
    pub(super) fn is_waiting(&self) -> bool {
        lock(&self.client.waits_since).is_some()
    }

    /// Notes that a request has arrived whole: its connection is kept until the response has been sent.
    pub(super) fn answers(&self) {
        *lock(&self.client.waits_since) = None;
    }

    fn waits(&self) {
        *lock(&self.client.waits_since) = Some(Instant::now());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.places.taken).clients.remove(&self.number);
    }
}

/// The body of a response. Once it is dropped, the server waits for the client's next request.
pub(super) struct Answer {
    body: Body,
    place: Arc<Place>,
}

impl Answer {
    pub(super) fn new(body: Body, place: Arc<Place>) -> Self {
        Self { body, place }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.place.waits();
    }
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_client_that_has_been_waited_for_longest_gives_way() {
        let places = Places::new(2);
        let [first, second] = [places.take().await, places.take().await];
        first.answers();
        first.waits();
        let third = places.take().await;
        second.gives_way().await;
        assert!(!third.is_reserve);
    }

    #[tokio::test]
    async fn while_all_clients_are_answered_the_reserve_is_used_and_then_a_place_is_waited_for() {
        let places = Places::new(1);
        let first = places.take().await;
        first.answers();
        let mut reserve = Vec::new();
        for _ in 0..RESERVE {
            let place = places.take().await;
            assert!(place.is_reserve);
            place.answers();
            reserve.push(place);
        }
        assert!(places.try_take().is_none());
        let (next, ()) = tokio::join!(places.take(), async { drop(first) });
        assert!(next.is_reserve);
        drop((next, reserve));
        assert!(!places.take().await.is_reserve);
    }
}
