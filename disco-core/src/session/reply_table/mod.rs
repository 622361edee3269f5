//! The session's inbox: awaited replies of workers, the first failure, and losses.

mod evidence;
mod lane_inbox;
mod losses;
mod pending;
mod table;
#[cfg(test)]
mod tests;

pub(super) use lane_inbox::LaneInbox;
pub(super) use pending::Replies;
pub(super) use table::{Expected, ReplyTable};
