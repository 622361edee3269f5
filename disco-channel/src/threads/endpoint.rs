//! The worker's end of a thread lane.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use disco_core::channel::{LARGE_REPLY, Reply};
use disco_core::{Endpoint, Error, Frame, Inbox, Link, Result, Value, WorkerId};

use crate::replies::LeftReplies;
use crate::ring::spin_policy::Expect;
use crate::ring::{Closed, Reader};

/// How often a worker with a large reply checks whether the inbox accepts it.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The [`Endpoint`] of a worker that is a thread of the controller's process.
pub struct ThreadEndpoint {
    pub(super) worker: WorkerId,
    pub(super) frames: Reader<Arc<Frame>>,
    /// How the next wait for a frame spins.
    pub(super) expect: Expect,
    pub(super) link: Arc<Link>,
    pub(super) inbox: Arc<dyn Inbox>,
    /// Where this worker leaves replies without a value for callers that poll, and its place there.
    pub(super) replies: Arc<LeftReplies>,
    pub(super) index: usize,
}

impl Endpoint for ThreadEndpoint {
    fn recv(&mut self) -> Result<&Frame> {
        let frame = self.frames.recv_expecting(self.expect).map_err(|Closed| Error::Closed(self.worker.to_string()))?;
        self.expect = self.expect.after(frame.command(), self.worker);
        Ok(frame)
    }

    fn reply(&mut self, seq: u64, reply: Reply) -> Result<()> {
        if matches!(reply, Ok(Value::None)) && self.replies.leave(self.index, seq) {
            return Ok(());
        }
        while is_large(&reply) && !self.inbox.accepts_large_replies() && !self.frames.is_closed() {
            thread::sleep(POLL_INTERVAL);
        }
        self.inbox.reply(self.worker, seq, reply);
        Ok(())
    }

    fn link(&self) -> Arc<Link> {
        self.link.clone()
    }
}

disco_core::format_as!(
    Debug for ThreadEndpoint, |it|
    "ThreadEndpoint {{ worker: {:?}, frames: {:?} }}", it.worker, it.frames
);

fn is_large(reply: &Reply) -> bool {
    let bytes = match reply {
        Ok(Value::Bytes(bytes)) => bytes.len(),
        Ok(Value::Str(text)) => text.len(),
        Ok(Value::Tensor(tensor)) => tensor.byte_len(),
        Ok(Value::Object(object)) => object.size(),
        _ => 0,
    };
    bytes > LARGE_REPLY
}
