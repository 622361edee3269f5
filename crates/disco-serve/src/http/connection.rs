//! One connection.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_service::Service as _;

use super::drain::ending;
use super::places::Place;
use super::shared::Shared;
use super::stall::Stalling;

/// How long a connection that gives way to another one has to deliver its last bytes.
const YIELD_GRACE: Duration = Duration::from_millis(100);

/// Answers the requests of a connection until the client or the server closes it.
///
/// hyper drops the answer to a request, and with it the request's texts, once the client has closed the connection, unless
/// the client has sent bytes of another request.
pub(super) async fn connection(stream: TcpStream, place: Place, router: Router, shared: Arc<Shared>) {
    // A token is not to wait for the acknowledgement of the one before. Without it, streams are slower, and correct.
    let _ = stream.set_nodelay(true);
    let mut phase = shared.drain.subscribe();
    let place = Arc::new(place);
    let limits = &shared.limits;
    let stream = TokioIo::new(Stalling::new(stream, limits.write_time));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head_time).max_buf_size(limits.head_bytes);
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(place.clone());
        router.clone().call(request)
    });
    let connection = http.serve_connection(stream, service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = ending(&mut phase) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = place.gives_way() => loop {
            connection.as_mut().graceful_shutdown();
            match timeout(YIELD_GRACE, connection.as_mut()).await {
                Ok(ended) => break ended,
                Err(_) if place.is_waiting() => return,
                // A request came just before.
                Err(_) => {}
            }
        },
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
