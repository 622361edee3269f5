//! Failures in sessions of threads, and the error texts that users see.

mod errors;
mod functions;
mod waiting;

use disco::{Builder, LaneSession};

fn threads(workers: usize) -> LaneSession {
    Builder::threads(workers).start().unwrap()
}

fn text<T: std::fmt::Debug>(result: disco::Result<T>) -> String {
    result.unwrap_err().to_string()
}

/// Submits a call that fails, and returns the error text of `sync_all`.
async fn call_and_sync(session: &LaneSession, name: &str, arg: i64) -> String {
    session.call(name, (arg,)).await.unwrap();
    text(session.sync_all().await)
}
