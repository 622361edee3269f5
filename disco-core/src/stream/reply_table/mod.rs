//! The session's inbox: awaited replies of workers, the first failure, and losses.

mod cancellations;
mod cancelling;
mod evidence;
mod former;
mod lane_inbox;
mod losses;
mod pending;
mod results;
mod streams;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use lane_inbox::LaneInbox;
pub(crate) use pending::Replies;
pub(super) use table::Expected;
pub(crate) use table::ReplyTable;
