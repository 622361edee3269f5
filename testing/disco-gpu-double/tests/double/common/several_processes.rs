//! Helpers of tests with ranks in several processes.

use super::rank_handle::RankHandle;

/// Codes as texts of replies.
pub(crate) const SUCCESS: &str = "0";
pub(crate) const SYSTEM_ERROR: &str = "2";
pub(crate) const INVALID_ARGUMENT: &str = "4";
pub(crate) const INVALID_USAGE: &str = "5";
pub(crate) const REMOTE_ERROR: &str = "6";
pub(crate) const IN_PROGRESS: &str = "7";

/// Creates a communicator with a unique id of the member `host`.
pub(crate) fn begin(members: &mut [&mut RankHandle], host: usize) {
    let id = members[host].ask("id");
    join(members, &id);
}

/// Creates a communicator with a unique id.
pub(crate) fn join(members: &mut [&mut RankHandle], id: &str) {
    let ranks = members.len();
    for (rank, member) in members.iter_mut().enumerate() {
        assert_eq!(member.ask(&format!("begin {id} {ranks} {rank}")), IN_PROGRESS, "{}", member.ask("why"));
    }
    for member in members.iter_mut() {
        assert_eq!(member.ask("settle"), SUCCESS, "{}", member.ask("why"));
    }
}

/// A communicator of a rank of this process (member 0) and a rank of a child process (member 1). The process of member
/// `host` is the host.
pub(crate) fn two_ranks(host: usize) -> [RankHandle; 2] {
    let mut members = [RankHandle::local(0), RankHandle::remote(1)];
    let [local, remote] = &mut members;
    begin(&mut [local, remote], host);
    members
}

/// Sends a request to all members one after the other, and returns their replies.
pub(crate) fn ask_all(members: &mut [RankHandle], request: &str) -> Vec<String> {
    members.iter_mut().map(|member| member.ask(request)).collect()
}

/// Checks two all-reduces over all members.
pub(crate) fn check_sum(members: &mut [RankHandle]) {
    for (rank, member) in members.iter_mut().enumerate() {
        member.ask(&format!("put {}", rank + 1));
    }
    let ranks = members.len();
    ask_all(members, "sum").iter().chain(&ask_all(members, "sum")).for_each(|code| assert_eq!(code, SUCCESS));
    let sum = (ranks * (ranks + 1) / 2 * ranks).to_string();
    ask_all(members, "get").iter().for_each(|got| assert_eq!(*got, sum));
}
