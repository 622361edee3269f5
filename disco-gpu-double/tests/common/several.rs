//! What tests do with ranks of several processes.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::stepped::SteppedRank;

/// Codes as they are answered.
pub(crate) const SUCCESS: &str = "0";
pub(crate) const SYSTEM_ERROR: &str = "2";
pub(crate) const INVALID_ARGUMENT: &str = "4";
pub(crate) const INVALID_USAGE: &str = "5";
pub(crate) const REMOTE_ERROR: &str = "6";
pub(crate) const IN_PROGRESS: &str = "7";

/// So long nothing happens that should not.
pub(crate) const A_WHILE: Duration = Duration::from_millis(50);

/// Has the tests wait for each other.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins a communicator by the unique id of the member with the number `host`.
pub(crate) fn begin(members: &mut [&mut SteppedRank], host: usize) {
    let id = members[host].ask("id");
    join(members, &id);
}

/// Begins a communicator by a unique id.
pub(crate) fn join(members: &mut [&mut SteppedRank], id: &str) {
    let ranks = members.len();
    for (rank, member) in members.iter_mut().enumerate() {
        assert_eq!(member.ask(&format!("begin {id} {ranks} {rank}")), IN_PROGRESS, "{}", member.ask("why"));
    }
    for member in members.iter_mut() {
        assert_eq!(member.ask("settle"), SUCCESS, "{}", member.ask("why"));
    }
}

/// Two ranks, of which one is in another process; the host is that, or this one.
pub(crate) fn two(host: usize) -> [SteppedRank; 2] {
    let mut members = [SteppedRank::here(0), SteppedRank::there(1)];
    let [here, there] = &mut members;
    begin(&mut [here, there], host);
    members
}

/// Asks all, and says what each has answered.
pub(crate) fn each(members: &mut [SteppedRank], wish: &str) -> Vec<String> {
    members.iter_mut().map(|member| member.ask(wish)).collect()
}

/// Sums what all have, twice over.
pub(crate) fn all_sum(members: &mut [SteppedRank]) {
    for (rank, member) in members.iter_mut().enumerate() {
        member.ask(&format!("put {}", rank + 1));
    }
    let ranks = members.len();
    each(members, "sum").iter().chain(&each(members, "sum")).for_each(|code| assert_eq!(code, SUCCESS));
    let sum = (ranks * (ranks + 1) / 2 * ranks).to_string();
    each(members, "get").iter().for_each(|got| assert_eq!(*got, sum));
}
