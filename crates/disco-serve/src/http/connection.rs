//! One connection.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use super::answer::answer;
use super::drain::ending;
use super::shared::Shared;
use super::stall::Stalling;

/// Answers the requests of a connection until the client or the server closes it.
///
/// hyper drops the answer to a request, and with it the request's texts, once the client has closed the connection, unless
/// the client has sent bytes of another request.
pub(super) async fn connection(stream: TcpStream, router: Router, shared: Arc<Shared>) {
    // A token is not to wait for the acknowledgement of the one before. Without it, streams are slower, and correct.
    let _ = stream.set_nodelay(true);
    let mut phase = shared.drain.subscribe();
    let limits = &shared.limits;
    let stream = TokioIo::new(Stalling::new(stream, limits.write_time));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head_time).max_buf_size(limits.head_bytes);
    let service = service_fn(|request| {
        let answer = answer(request, router.clone(), shared.clone());
        async { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http.serve_connection(stream, service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = ending(&mut phase) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
