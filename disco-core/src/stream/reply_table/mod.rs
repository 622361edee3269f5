//! The session's inbox: awaited replies of workers, the first failure, and losses.

mod cancellations;
mod evidence;
mod lane_inbox;
mod losses;
mod pending;
mod results;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use lane_inbox::LaneInbox;
pub(crate) use pending::Replies;
pub(super) use table::Expected;
pub(crate) use table::ReplyTable;
