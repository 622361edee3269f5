//! A session for one test.

use disco::{Builder, LaneSession, block_on};

/// Starts a session, runs a test with it, and shuts it down.
pub(crate) fn with_session(builder: Builder, test: impl AsyncFnOnce(&LaneSession)) {
    let session = builder.start().unwrap();
    block_on(async {
        test(&session).await;
        session.shutdown().await.unwrap();
    });
}
