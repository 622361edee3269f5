//! What tests do with ranks of several processes.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::rank_handle::RankHandle;

/// Codes as they are answered.
pub(crate) const SUCCESS: &str = "0";
pub(crate) const SYSTEM_ERROR: &str = "2";
pub(crate) const INVALID_ARGUMENT: &str = "4";
pub(crate) const INVALID_USAGE: &str = "5";
pub(crate) const REMOTE_ERROR: &str = "6";
pub(crate) const IN_PROGRESS: &str = "7";

/// So long nothing happens that should not.
pub(crate) const SETTLE_TIME: Duration = Duration::from_millis(50);

/// Has the tests wait for each other.
pub(crate) fn one_test_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins a communicator by the unique id of the member with the number `host`.
pub(crate) fn begin(members: &mut [&mut RankHandle], host: usize) {
    let id = members[host].ask("id");
    join(members, &id);
}

/// Begins a communicator by a unique id.
pub(crate) fn join(members: &mut [&mut RankHandle], id: &str) {
    let ranks = members.len();
    for (rank, member) in members.iter_mut().enumerate() {
        assert_eq!(member.ask(&format!("begin {id} {ranks} {rank}")), IN_PROGRESS, "{}", member.ask("why"));
    }
    for member in members.iter_mut() {
        assert_eq!(member.ask("settle"), SUCCESS, "{}", member.ask("why"));
    }
}

/// Two ranks, of which one is in another process; the host is that, or this one.
pub(crate) fn two_ranks(host: usize) -> [RankHandle; 2] {
    let mut members = [RankHandle::local(0), RankHandle::remote(1)];
    let [local, remote] = &mut members;
    begin(&mut [local, remote], host);
    members
}

/// Asks all, and says what each has answered.
pub(crate) fn ask_all(members: &mut [RankHandle], request: &str) -> Vec<String> {
    members.iter_mut().map(|member| member.ask(request)).collect()
}

/// Sums what all have, twice over.
pub(crate) fn check_sum(members: &mut [RankHandle]) {
    for (rank, member) in members.iter_mut().enumerate() {
        member.ask(&format!("put {}", rank + 1));
    }
    let ranks = members.len();
    ask_all(members, "sum").iter().chain(&ask_all(members, "sum")).for_each(|code| assert_eq!(code, SUCCESS));
    let sum = (ranks * (ranks + 1) / 2 * ranks).to_string();
    ask_all(members, "get").iter().for_each(|got| assert_eq!(*got, sum));
}
