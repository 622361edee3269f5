//! Accepts connections until the server ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::connection::connection;
use super::places::{Place, Places};
use super::routes::routes;
use super::shared::Shared;
use super::{App, Drain};

/// How long connections have to deliver the last bytes, and to close, at the end.
const CLOSING_GRACE: Duration = Duration::from_secs(1);
/// Time before another connection is accepted after one could not be, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time between the summaries that the recorder of metrics makes of its samples.
const UPKEEP: Duration = Duration::from_secs(5);

/// Serves `app` until `drain` has ended it. Returns with all connections closed.
///
/// # Cancel safety
/// A dropped future closes all connections at once.
pub async fn serve(listener: TcpListener, app: App, drain: Drain) {
    let shared = Shared::new(app, drain);
    let router = routes(shared.clone());
    let places = Places::new(shared.limits.connections);
    let mut connections = JoinSet::new();
    let mut upkeep = interval(UPKEEP);
    upkeep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    {
        let (ended, accepting) = (shared.ended(), accepted(&listener, &places));
        tokio::pin!(ended, accepting);
        loop {
            tokio::select! {
                () = &mut ended => break,
                (place, stream) = &mut accepting => {
                    accepting.set(accepted(&listener, &places));
                    connections.spawn(connection(stream, place, router.clone(), shared.clone()));
                }
                Some(_) = connections.join_next() => {}
                _ = upkeep.tick() => shared.metrics.iter().for_each(|metrics| metrics.run_upkeep()),
            }
        }
    }
    drop(listener);
    shared.drain.end();
    let closed = async { while connections.join_next().await.is_some() {} };
    if timeout(CLOSING_GRACE, closed).await.is_err() {
        tracing::warn!(connections = connections.len(), "connections are closed before their last bytes are delivered");
    }
    connections.shutdown().await;
}

/// The next connection, with its place.
async fn accepted(listener: &TcpListener, places: &Arc<Places>) -> (Place, TcpStream) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (places.take().await, stream),
            Err(error) => {
                tracing::warn!(%error, "a connection can't be accepted");
                // It gives its file descriptor back.
                places.close_one();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
