//! Communicators whose ranks are in several processes, of which some give up, end or are killed.

mod common;

use std::thread;

use common::set;
use common::several::{
    A_WHILE, IN_PROGRESS, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR, all_sum, alone, begin, each, join, two,
};
use common::stepped::{self, SteppedRank};

#[test]
fn child_that_is_a_rank() {
    stepped::serve();
}

#[test]
fn a_rank_gives_up_while_the_other_process_has_not_come() {
    let _alone = alone();
    for (host, early) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut members = [SteppedRank::here(0), SteppedRank::there(1)];
        let id = members[host].ask("id");
        assert_eq!(members[early].ask(&format!("begin {id} 2 {early}")), IN_PROGRESS);
        thread::sleep(A_WHILE);
        assert_eq!((members[early].ask("error"), members[early].ask("abort")), (IN_PROGRESS.into(), SUCCESS.into()));
    }
}

#[test]
fn a_rank_that_aborts_leaves_the_other_process_waiting() {
    let _alone = alone();
    for host in [0, 1] {
        for (gone, left) in [(0, 1), (1, 0)] {
            let mut members = two(host);
            assert_eq!((members[left].ask("put 5"), members[left].ask("sum")), ("done".into(), SUCCESS.into()));
            assert_eq!(members[gone].ask("abort"), SUCCESS);
            thread::sleep(A_WHILE);
            assert_eq!((members[left].ask("idle"), members[left].ask("error")), ("false".into(), SUCCESS.into()));
            members[left].ask("hear");
            assert_eq!(members[left].ask("fail"), REMOTE_ERROR);
            assert_eq!((members[left].ask("abort"), members[left].ask("rest")), (SUCCESS.into(), "done".into()));
            set(c"GPU_DOUBLE_REMOTE_ERRORS", c"0");
        }
    }
}

#[test]
fn a_collective_that_a_rank_has_aborted_is_not_done_when_the_other_comes() {
    let _alone = alone();
    for host in [0, 1] {
        for (gone, late) in [(0, 1), (1, 0)] {
            let mut members = two(host);
            each(&mut members, "put 3");
            assert_eq!((members[gone].ask("sum"), members[gone].ask("abort")), (SUCCESS.into(), SUCCESS.into()));
            assert_eq!(members[late].ask("sum"), SUCCESS);
            thread::sleep(A_WHILE);
            assert_eq!((members[late].ask("idle"), members[gone].ask("rest")), ("false".into(), "done".into()));
            assert_eq!((members[late].ask("abort"), members[late].ask("rest")), (SUCCESS.into(), "done".into()));
        }
    }
}

#[test]
fn a_process_that_is_killed_in_a_collective_leaves_the_other_waiting() {
    let _alone = alone();
    for host in [0, 1] {
        let mut members = [SteppedRank::here(0), SteppedRank::there(1), SteppedRank::there(2)];
        let [a, b, c] = &mut members;
        begin(&mut [a, b, c], host);
        let [here, killed, there] = &mut members;
        let mut others = [here, there];
        others.iter_mut().for_each(|member| assert_eq!(member.ask("sum"), SUCCESS));
        killed.kill();
        thread::sleep(A_WHILE);
        for member in &mut others {
            assert_eq!((member.ask("idle"), member.ask("error")), ("false".into(), SUCCESS.into()));
            member.ask("hear");
            assert_eq!(member.ask("fail"), REMOTE_ERROR);
            assert_eq!((member.ask("abort"), member.ask("rest")), (SUCCESS.into(), "done".into()));
        }
        set(c"GPU_DOUBLE_REMOTE_ERRORS", c"0");
    }
}

#[test]
fn ranks_finalize_without_a_process_that_was_killed() {
    let _alone = alone();
    for host in [0, 1] {
        let mut members = two(host);
        let [here, there] = &mut members;
        there.kill();
        assert_eq!((here.ask("finalize"), here.ask("settle")), (IN_PROGRESS.into(), SUCCESS.into()));
    }
}

#[test]
fn ranks_of_a_host_without_ranks_fail_when_it_is_killed() {
    let _alone = alone();
    let (mut host, mut members) = (SteppedRank::there(3), [SteppedRank::here(0), SteppedRank::there(1)]);
    let id = host.ask("id");
    let [here, there] = &mut members;
    join(&mut [here, there], &id);
    all_sum(&mut members);
    assert_eq!(members[0].ask("sum"), SUCCESS);
    host.kill();
    assert_eq!(each(&mut members, "fail"), [SYSTEM_ERROR; 2]);
    assert!(members[1].ask("why").starts_with("the process that made the unique id has ended"));
    assert_eq!((each(&mut members, "abort"), members[0].ask("rest")), (vec![SUCCESS.into(); 2], "done".into()));
}

#[test]
fn a_host_that_is_killed_while_ranks_join_is_an_error() {
    let _alone = alone();
    let (mut host, mut here) = (SteppedRank::there(3), SteppedRank::here(0));
    let id = host.ask("id");
    assert_eq!(here.ask(&format!("begin {id} 2 0")), IN_PROGRESS);
    host.kill();
    assert_eq!(here.ask("fail"), REMOTE_ERROR);
    assert_eq!(here.ask("abort"), SUCCESS);
    assert_eq!(here.ask(&format!("begin {id} 2 0")), SYSTEM_ERROR);
    assert!(
        here.ask("why").starts_with("the process that made the unique id cannot be reached"),
        "{}",
        here.ask("why")
    );
}

#[test]
fn a_host_that_ends_at_once_lets_the_others_end_their_work() {
    let _alone = alone();
    for _ in 0..20 {
        let mut members = two(1);
        let [here, host] = &mut members;
        assert_eq!((here.ask("put 1"), host.ask("put 2")), ("done".into(), "done".into()));
        assert_eq!(
            (here.ask("sum"), host.ask("sum"), host.ask("destroy")),
            (SUCCESS.into(), SUCCESS.into(), SUCCESS.into())
        );
        host.tell("exit");
        assert_eq!(
            (here.ask("get"), here.ask("finalize"), here.ask("settle")),
            ("3".into(), IN_PROGRESS.into(), SUCCESS.into())
        );
        assert_eq!(here.ask("destroy"), SUCCESS);
    }
}
