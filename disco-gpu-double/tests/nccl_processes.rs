//! Communicators whose ranks are in several processes: how they end, fail and are given up. What they compute is shown by `values`.
//!
//! One test runs at a time: a process that the tests start takes what this one says about faults.

#![allow(unsafe_code, clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use common::actor::{self, Player};
use common::set;

const SUCCESS: &str = "0";
const SYSTEM_ERROR: &str = "2";
const INVALID_ARGUMENT: &str = "4";
const INVALID_USAGE: &str = "5";
const REMOTE_ERROR: &str = "6";
const IN_PROGRESS: &str = "7";

/// So long nothing happens that should not.
const A_WHILE: Duration = Duration::from_millis(50);

#[test]
fn child_that_is_a_rank() {
    actor::play();
}

/// Has the tests wait for each other.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins a communicator by the unique id of the player `host`.
fn begin(players: &mut [&mut Player], host: usize) {
    let id = players[host].ask("id");
    join(players, &id);
}

fn join(players: &mut [&mut Player], id: &str) {
    let ranks = players.len();
    for (rank, player) in players.iter_mut().enumerate() {
        assert_eq!(player.ask(&format!("begin {id} {ranks} {rank}")), IN_PROGRESS, "{}", player.ask("why"));
    }
    for player in players.iter_mut() {
        assert_eq!(player.ask("settle"), SUCCESS, "{}", player.ask("why"));
    }
}

/// Two ranks, of which one is in another process; the host is that, or this one.
fn two(host: usize) -> [Player; 2] {
    let mut players = [Player::here(0), Player::there(1)];
    let [here, there] = &mut players;
    begin(&mut [here, there], host);
    players
}

fn each(players: &mut [Player], wish: &str) -> Vec<String> {
    players.iter_mut().map(|player| player.ask(wish)).collect()
}

/// Sums what all have, twice over.
fn all_sum(players: &mut [Player]) {
    for (rank, player) in players.iter_mut().enumerate() {
        player.ask(&format!("put {}", rank + 1));
    }
    let ranks = players.len();
    each(players, "sum").iter().chain(&each(players, "sum")).for_each(|code| assert_eq!(code, SUCCESS));
    let sum = (ranks * (ranks + 1) / 2 * ranks).to_string();
    each(players, "get").iter().for_each(|got| assert_eq!(*got, sum));
}

#[test]
fn a_collective_waits_for_the_rank_of_the_other_process() {
    let _alone = alone();
    for host in [0, 1] {
        let mut players = two(host);
        let [here, there] = &mut players;
        for (one, other) in [(0, 1), (1, 0)] {
            let [first, last] = [one, other].map(|which| if which == 0 { 0 } else { 1 });
            let ask = |which: usize, wish: &str, here: &mut Player, there: &mut Player| match which {
                0 => here.ask(wish),
                _ => there.ask(wish),
            };
            assert_eq!(ask(first, "sum", here, there), SUCCESS);
            thread::sleep(A_WHILE);
            assert_eq!(ask(first, "idle", here, there), "false");
            assert_eq!(ask(last, "sum", here, there), SUCCESS);
            ask(first, "get", here, there);
            ask(last, "get", here, there);
        }
        all_sum(&mut players);
    }
}

#[test]
fn ranks_of_three_processes_are_of_one_communicator() {
    let _alone = alone();
    for host in 0..3 {
        let mut players = [Player::here(0), Player::there(1), Player::there(2)];
        let [a, b, c] = &mut players;
        begin(&mut [a, b, c], host);
        all_sum(&mut players);
        // Neither of these two is the host where the first is.
        let [_, b, c] = &mut players;
        b.ask("put 7");
        assert_eq!((b.ask("send 2"), c.ask("receive 1")), (IN_PROGRESS.into(), IN_PROGRESS.into()));
        assert_eq!((b.ask("settle"), c.ask("settle"), c.ask("get")), (SUCCESS.into(), SUCCESS.into(), "7".into()));
    }
}

#[test]
fn calls_that_differ_fail_on_all_ranks() {
    let _alone = alone();
    for host in [0, 1] {
        let mut players = two(host);
        let [here, there] = &mut players;
        assert_eq!((here.ask("sum"), there.ask("largest")), (SUCCESS.into(), SUCCESS.into()));
        assert_eq!(each(&mut players, "fail"), [INVALID_USAGE; 2]);
        let why = "ranks have called different collectives; rank 0: ncclAllReduce(1 of ncclFloat32, sum); rank 1: \
                   ncclAllReduce(1 of ncclFloat32, max)";
        assert_eq!(each(&mut players, "why"), [why; 2]);
        assert_eq!(each(&mut players, "sum"), [INVALID_USAGE; 2]);
        assert_eq!(each(&mut players, "abort"), [SUCCESS; 2]);
        each(&mut players, "get");
    }
}

#[test]
fn a_send_that_differs_from_its_receive_fails_on_all_ranks() {
    let _alone = alone();
    for host in 0..3 {
        let mut players = [Player::here(0), Player::there(1), Player::there(2)];
        let [a, b, c] = &mut players;
        begin(&mut [a, b, c], host);
        // The third rank has no part in it.
        let [a, b, _] = &mut players;
        assert_eq!((b.ask("send 0"), a.ask("receive 1 none")), (IN_PROGRESS.into(), IN_PROGRESS.into()));
        assert_eq!(each(&mut players, "fail"), [INVALID_USAGE; 3]);
        let why = "a send and its receive differ; rank 1: ncclSend(1 of ncclFloat32, to 0); rank 0: ncclRecv(0 of \
                   ncclFloat32, from 1)";
        assert_eq!(each(&mut players, "why"), [why; 3]);
    }
}

#[test]
fn a_split_has_ranks_of_any_processes() {
    let _alone = alone();
    for host in 0..3 {
        let mut players = [Player::here(0), Player::there(1), Player::there(2)];
        let [a, b, c] = &mut players;
        begin(&mut [a, b, c], host);
        // Ranks 2 and 1 in this order, neither of which is in the process of rank 0.
        assert_eq!(a.ask("split -1 0"), IN_PROGRESS);
        assert_eq!((b.ask("split 3 5"), c.ask("split 3 4")), (IN_PROGRESS.into(), IN_PROGRESS.into()));
        assert_eq!(each(&mut players, "settle"), [SUCCESS; 3]);
        let [a, b, c] = &mut players;
        for player in [&mut *b, &mut *c] {
            player.ask("part");
            assert_eq!(player.ask("settle"), SUCCESS);
        }
        assert_eq!((b.ask("put 1"), c.ask("put 2")), ("done".into(), "done".into()));
        assert_eq!((b.ask("broadcast 0"), c.ask("broadcast 0")), (SUCCESS.into(), SUCCESS.into()));
        assert_eq!((b.ask("get"), c.ask("get")), ("2".into(), "2".into()), "rank 2 of the parent is rank 0");
        assert_eq!((b.ask("finalize"), c.ask("finalize")), (IN_PROGRESS.into(), IN_PROGRESS.into()));
        assert_eq!((b.ask("settle"), c.ask("settle")), (SUCCESS.into(), SUCCESS.into()));
        assert_eq!(a.ask("error"), SUCCESS);
    }
}

#[test]
fn finalize_waits_for_the_rank_of_the_other_process() {
    let _alone = alone();
    for host in [0, 1] {
        let mut players = two(host);
        let [here, there] = &mut players;
        assert_eq!(there.ask("finalize"), IN_PROGRESS);
        thread::sleep(A_WHILE);
        assert_eq!(there.ask("error"), IN_PROGRESS);
        assert_eq!(
            (here.ask("finalize"), here.ask("settle"), there.ask("settle")),
            (IN_PROGRESS.into(), SUCCESS.into(), SUCCESS.into())
        );
        assert_eq!(each(&mut players, "destroy"), [IN_PROGRESS; 2]);
    }
}

#[test]
fn a_rank_gives_up_while_the_other_process_has_not_come() {
    let _alone = alone();
    for (host, early) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut players = [Player::here(0), Player::there(1)];
        let id = players[host].ask("id");
        assert_eq!(players[early].ask(&format!("begin {id} 2 {early}")), IN_PROGRESS);
        thread::sleep(A_WHILE);
        assert_eq!((players[early].ask("error"), players[early].ask("abort")), (IN_PROGRESS.into(), SUCCESS.into()));
    }
}

#[test]
fn a_rank_that_aborts_leaves_the_other_process_waiting() {
    let _alone = alone();
    for host in [0, 1] {
        for (gone, left) in [(0, 1), (1, 0)] {
            let mut players = two(host);
            assert_eq!((players[left].ask("put 5"), players[left].ask("sum")), ("done".into(), SUCCESS.into()));
            assert_eq!(players[gone].ask("abort"), SUCCESS);
            thread::sleep(A_WHILE);
            assert_eq!((players[left].ask("idle"), players[left].ask("error")), ("false".into(), SUCCESS.into()));
            players[left].ask("hear");
            assert_eq!(players[left].ask("fail"), REMOTE_ERROR);
            assert_eq!((players[left].ask("abort"), players[left].ask("get")), (SUCCESS.into(), "5".into()));
            set(c"GPU_DOUBLE_REMOTE_ERRORS", c"0");
        }
    }
}

#[test]
fn a_collective_that_a_rank_has_aborted_is_not_done_when_the_other_comes() {
    let _alone = alone();
    for host in [0, 1] {
        for (gone, late) in [(0, 1), (1, 0)] {
            let mut players = two(host);
            each(&mut players, "put 3");
            assert_eq!((players[gone].ask("sum"), players[gone].ask("abort")), (SUCCESS.into(), SUCCESS.into()));
            assert_eq!(players[late].ask("sum"), SUCCESS);
            thread::sleep(A_WHILE);
            assert_eq!((players[late].ask("idle"), players[gone].ask("get")), ("false".into(), "3".into()));
            assert_eq!((players[late].ask("abort"), players[late].ask("get")), (SUCCESS.into(), "3".into()));
        }
    }
}

#[test]
fn a_process_that_is_killed_in_a_collective_leaves_the_other_waiting() {
    let _alone = alone();
    for host in [0, 1] {
        let mut players = [Player::here(0), Player::there(1), Player::there(2)];
        let [a, b, c] = &mut players;
        begin(&mut [a, b, c], host);
        let [here, killed, there] = &mut players;
        let mut others = [here, there];
        others.iter_mut().for_each(|player| assert_eq!(player.ask("sum"), SUCCESS));
        killed.kill();
        thread::sleep(A_WHILE);
        for player in &mut others {
            assert_eq!((player.ask("idle"), player.ask("error")), ("false".into(), SUCCESS.into()));
            player.ask("hear");
            assert_eq!(player.ask("fail"), REMOTE_ERROR);
            assert_eq!((player.ask("abort"), player.ask("rest")), (SUCCESS.into(), "done".into()));
        }
        set(c"GPU_DOUBLE_REMOTE_ERRORS", c"0");
    }
}

#[test]
fn ranks_finalize_without_a_process_that_was_killed() {
    let _alone = alone();
    for host in [0, 1] {
        let mut players = two(host);
        let [here, there] = &mut players;
        there.kill();
        assert_eq!((here.ask("finalize"), here.ask("settle")), (IN_PROGRESS.into(), SUCCESS.into()));
    }
}

#[test]
fn ranks_of_a_host_without_ranks_fail_when_it_is_killed() {
    let _alone = alone();
    let (mut host, mut players) = (Player::there(3), [Player::here(0), Player::there(1)]);
    let id = host.ask("id");
    let [here, there] = &mut players;
    join(&mut [here, there], &id);
    all_sum(&mut players);
    assert_eq!(players[0].ask("sum"), SUCCESS);
    host.kill();
    assert_eq!(each(&mut players, "fail"), [SYSTEM_ERROR; 2]);
    assert!(players[1].ask("why").starts_with("the process that has made the unique id has ended"));
    assert_eq!((each(&mut players, "abort"), players[0].ask("rest")), (vec![SUCCESS.into(); 2], "done".into()));
}

#[test]
fn a_host_that_is_killed_while_ranks_join_is_an_error() {
    let _alone = alone();
    let (mut host, mut here) = (Player::there(3), Player::here(0));
    let id = host.ask("id");
    assert_eq!(here.ask(&format!("begin {id} 2 0")), IN_PROGRESS);
    host.kill();
    assert_eq!(here.ask("fail"), REMOTE_ERROR);
    assert_eq!(here.ask("abort"), SUCCESS);
    assert_eq!(here.ask(&format!("begin {id} 2 0")), SYSTEM_ERROR);
    assert!(
        here.ask("why").starts_with("the process that has made the unique id cannot be reached"),
        "{}",
        here.ask("why")
    );
}

#[test]
fn a_host_that_ends_at_once_lets_the_others_end_their_work() {
    let _alone = alone();
    for _ in 0..20 {
        let mut players = two(1);
        let [here, host] = &mut players;
        assert_eq!((here.ask("put 1"), host.ask("put 2")), ("done".into(), "done".into()));
        assert_eq!(
            (here.ask("sum"), host.ask("sum"), host.ask("destroy")),
            (SUCCESS.into(), SUCCESS.into(), IN_PROGRESS.into())
        );
        host.tell("exit");
        assert_eq!(
            (here.ask("get"), here.ask("finalize"), here.ask("settle")),
            ("3".into(), IN_PROGRESS.into(), SUCCESS.into())
        );
        assert_eq!(here.ask("destroy"), IN_PROGRESS);
    }
}

#[test]
fn what_ranks_of_a_process_are_refused_those_of_another_are() {
    let _alone = alone();
    for host in [0, 1] {
        let mut players = two(host);
        let id = players[host].ask("id");
        let [here, there] = &mut players;
        assert_eq!(here.ask(&format!("begin {id} 2 0")), IN_PROGRESS);
        thread::sleep(A_WHILE);
        assert_eq!(there.ask(&format!("begin {id} 3 1")), INVALID_ARGUMENT);
        assert!(there.ask("why").contains("a rank says that there are 3 ranks, and another 2"), "{}", there.ask("why"));
        assert_eq!(there.ask(&format!("begin {id} 2 0")), IN_PROGRESS);
        assert_eq!(there.ask("fail"), INVALID_USAGE);
        assert_eq!((there.ask("why"), there.ask("abort")), ("there are two of rank 0".into(), SUCCESS.into()));
        assert_eq!(there.ask(&format!("begin {id} 2 1")), IN_PROGRESS);
        assert_eq!(each(&mut players, "settle"), [SUCCESS; 2]);
        assert_eq!(each(&mut players, &format!("begin {id} 2 0")), [INVALID_USAGE; 2]);
        assert_eq!(each(&mut players, "why"), ["the unique id was used before"; 2]);
    }
    let mut players = [Player::here(0), Player::there(0)];
    let id = players[0].ask("id");
    for (rank, player) in players.iter_mut().enumerate() {
        assert_eq!(player.ask(&format!("begin {id} 2 {rank}")), IN_PROGRESS);
    }
    assert_eq!(each(&mut players, "fail"), [INVALID_USAGE; 2]);
    let why = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0";
    assert_eq!(each(&mut players, "why"), [why; 2]);
}
