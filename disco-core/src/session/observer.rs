//! What a program learns of a session at any time, without keeping it alive.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::lane_session::LaneSession;
use crate::channel::Inbox as _;
use crate::status::Status;
use crate::stream::collecting::Recordings;
use crate::stream::reply_table::ReplyTable;

/// An observer of a [`LaneSession`], which it does not keep alive. Its methods work while workers hang and after the session
/// has failed, on any thread, and return none once the session is dropped.
#[derive(Clone, Debug)]
pub struct Observer(Weak<ReplyTable>);

impl LaneSession {
    /// An observer of the session.
    pub fn observer(&self) -> Observer {
        Observer(Arc::downgrade(&self.stream.reply_table))
    }
}

impl Observer {
    /// As [`LaneSession::status`].
    pub fn status(&self) -> Option<Status> {
        self.0.upgrade()?.status()
    }

    /// The recording of each worker, with its `last` records: its last operations, and with a
    /// [timeline](crate::activity::RecorderConfig) also commands and spans. Blocks until those of other machines have come, for
    /// at most `limit`. A worker whose node is lost or hangs has an error in place of its recording.
    pub fn recordings(&self, last: usize, limit: Duration) -> Option<Recordings> {
        let table = self.0.upgrade()?;
        let collection = table.gather(last);
        collection.wait(limit);
        Some(collection.take(&table.members(), &format!("its records have not come within {limit:?}")))
    }
}
