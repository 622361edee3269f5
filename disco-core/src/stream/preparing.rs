//! Brings large values to the lanes before their command takes the order ticket.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_lite::future;

use super::command_stream::CommandStream;
use super::lane_set::Lanes;
use super::large::{Ahead, Values, is_concerned, payload_len};
use super::reply_table::ReplyTable;
use crate::channel::SMALL_FRAME;
use crate::error::Result;
use crate::id::WorkerId;
use crate::value::Value;
use crate::wire::Pieces;

/// Time without a byte of any transfer after which a transfer stops waiting for its budget, and its tensors go with
/// their command.
const QUIET_LIMIT: Duration = Duration::from_secs(1);

impl CommandStream {
    /// Checks the size of the values of `operation`, which go to worker `to` or to all, and brings large tensors to the
    /// lanes of these workers: a copy in shared memory, or a transfer to the other end of the lane. The order ticket is
    /// not held meanwhile, so other commands do not wait.
    ///
    /// # Errors
    /// The values are above a lane's limit; a tensor can't leave the process; the session fails or is closed; no byte
    /// of the transfer has moved for [`Deadlines::stall`](super::Deadlines::stall).
    ///
    /// # Cancel safety
    /// Dropping the future or its result withdraws the transfer.
    pub(super) async fn prepare(
        &self,
        operation: &str,
        to: Option<WorkerId>,
        live: fn(&ReplyTable) -> Result<()>,
        values: &[Value],
    ) -> Result<Values> {
        if payload_len(values) <= SMALL_FRAME {
            return Ok(Values::SMALL);
        }
        let all = self.lanes();
        let mut prepared = self.transfers.check(operation, to, &all, values)?;
        let place = to.and_then(|worker| all.members.place(worker));
        let lanes = all.iter().filter(|lane| lane.ahead().is_some() && is_concerned(&***lane, place));
        let lanes: Vec<_> = lanes.cloned().collect();
        if !lanes.is_empty()
            && let Some(content) = Pieces::of_tensors(values)?
        {
            let transfer = self.transfers.transfer(self.order().next_transfer(), content.byte_len());
            let mut ahead = Ahead::new(transfer, to, place, lanes);
            if self.send_ahead(operation, live, &mut ahead, content, &all).await? {
                prepared.set_ahead(ahead);
            }
        }
        Ok(prepared)
    }

    /// Waits until all bytes have been sent over `lanes`. Returns false if the tensors must go with their command: a
    /// budget stays exhausted because other callers hold transfers without polling the futures that own them; or the
    /// session has other lanes by now.
    async fn send_ahead(
        &self,
        operation: &str,
        live: fn(&ReplyTable) -> Result<()>,
        ahead: &mut Ahead,
        content: Pieces,
        lanes: &Lanes,
    ) -> Result<bool> {
        let mut content = Some(Arc::new(content));
        let ticks = self.ticker.start();
        let (mut seen, mut since) = ((false, 0), Instant::now());
        loop {
            let (changed, tick) = (ahead.transfer.listen(), ticks.next());
            self.check(operation, live)?;
            if !self.lanes().is(lanes) {
                return Ok(false);
            }
            let has_begun = ahead.begin(&mut content)?;
            if has_begun && ahead.transfer.is_sent() {
                return Ok(true);
            }
            future::or(changed, tick).await;
            let transfer = &ahead.transfer;
            let moved = if has_begun { transfer.moved() } else { transfer.moved_in_session() };
            if seen != (has_begun, moved) {
                (seen, since) = ((has_begun, moved), Instant::now());
            } else if !has_begun && since.elapsed() >= QUIET_LIMIT {
                return Ok(false);
            } else if has_begun && since.elapsed() >= self.limits.stall {
                self.is_hung.store(true, Ordering::Relaxed);
                return Err(ahead.stalled(operation, self.limits.stall));
            }
        }
    }
}
