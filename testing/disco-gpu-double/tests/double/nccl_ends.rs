//! Communicators with ranks in several processes, some of which abort, exit or are killed.

use crate::common::child::alone;
use crate::common::rank_handle::RankHandle;
use crate::common::several_processes::{
    IN_PROGRESS, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR, ask_all, begin, check_sum, join, two_ranks,
};
use crate::common::{set, settle};

#[test]
fn a_rank_can_abort_before_the_other_process_joins() {
    alone(|| {
        for (host, early) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut members = [RankHandle::local(0), RankHandle::remote(1)];
            let id = members[host].ask("id");
            assert_eq!(members[early].ask(&format!("begin {id} 2 {early}")), IN_PROGRESS);
            settle();
            assert_eq!(
                (members[early].ask("error"), members[early].ask("abort")),
                (IN_PROGRESS.into(), SUCCESS.into())
            );
        }
    });
}

#[test]
fn a_rank_that_aborts_leaves_the_other_process_waiting() {
    alone(|| {
        for host in [0, 1] {
            for (gone, left) in [(0, 1), (1, 0)] {
                let mut members = two_ranks(host);
                assert_eq!((members[left].ask("put 5"), members[left].ask("sum")), ("done".into(), SUCCESS.into()));
                assert_eq!(members[gone].ask("abort"), SUCCESS);
                settle();
                assert_eq!((members[left].ask("idle"), members[left].ask("error")), ("false".into(), SUCCESS.into()));
                members[left].ask("hear");
                assert_eq!(members[left].ask("fail"), REMOTE_ERROR);
                assert_eq!((members[left].ask("abort"), members[left].ask("rest")), (SUCCESS.into(), "done".into()));
                set(c"GPU_DOUBLE_REMOTE_ERRORS", c"0");
            }
        }
    });
}

#[test]
fn a_collective_does_not_complete_after_a_rank_has_aborted() {
    alone(|| {
        for host in [0, 1] {
            for (gone, late) in [(0, 1), (1, 0)] {
                let mut members = two_ranks(host);
                ask_all(&mut members, "put 3");
                assert_eq!((members[gone].ask("sum"), members[gone].ask("abort")), (SUCCESS.into(), SUCCESS.into()));
                assert_eq!(members[late].ask("sum"), SUCCESS);
                settle();
                assert_eq!((members[late].ask("idle"), members[gone].ask("rest")), ("false".into(), "done".into()));
                assert_eq!((members[late].ask("abort"), members[late].ask("rest")), (SUCCESS.into(), "done".into()));
            }
        }
    });
}

#[test]
fn a_process_that_is_killed_in_a_collective_leaves_the_other_waiting() {
    alone(|| {
        for host in [0, 1] {
            let mut members = [RankHandle::local(0), RankHandle::remote(1), RankHandle::remote(2)];
            let [a, b, c] = &mut members;
            begin(&mut [a, b, c], host);
            let [local, killed, remote] = &mut members;
            let mut others = [local, remote];
            others.iter_mut().for_each(|member| assert_eq!(member.ask("sum"), SUCCESS));
            killed.kill();
            settle();
            for member in &mut others {
                assert_eq!((member.ask("idle"), member.ask("error")), ("false".into(), SUCCESS.into()));
                member.ask("hear");
                assert_eq!(member.ask("fail"), REMOTE_ERROR);
                assert_eq!((member.ask("abort"), member.ask("rest")), (SUCCESS.into(), "done".into()));
            }
            set(c"GPU_DOUBLE_REMOTE_ERRORS", c"0");
        }
    });
}

#[test]
fn ranks_finalize_without_a_process_that_was_killed() {
    alone(|| {
        for host in [0, 1] {
            let mut members = two_ranks(host);
            let [local, remote] = &mut members;
            remote.kill();
            assert_eq!((local.ask("finalize"), local.ask("settle")), (IN_PROGRESS.into(), SUCCESS.into()));
        }
    });
}

#[test]
fn ranks_of_a_host_without_ranks_fail_when_it_is_killed() {
    alone(|| {
        let (mut host, mut members) = (RankHandle::remote(3), [RankHandle::local(0), RankHandle::remote(1)]);
        let id = host.ask("id");
        let [local, remote] = &mut members;
        join(&mut [local, remote], &id);
        check_sum(&mut members);
        assert_eq!(members[0].ask("sum"), SUCCESS);
        host.kill();
        assert_eq!(ask_all(&mut members, "fail"), [SYSTEM_ERROR; 2]);
        assert!(members[1].ask("why").starts_with("the process that made the unique id has ended"));
        assert_eq!((ask_all(&mut members, "abort"), members[0].ask("rest")), (vec![SUCCESS.into(); 2], "done".into()));
    });
}

#[test]
fn a_host_that_is_killed_while_ranks_join_is_an_error() {
    alone(|| {
        let (mut host, mut local) = (RankHandle::remote(3), RankHandle::local(0));
        let id = host.ask("id");
        assert_eq!(local.ask(&format!("begin {id} 2 0")), IN_PROGRESS);
        host.kill();
        assert_eq!(local.ask("fail"), REMOTE_ERROR);
        assert_eq!(local.ask("abort"), SUCCESS);
        assert_eq!(local.ask(&format!("begin {id} 2 0")), SYSTEM_ERROR);
        assert!(
            local.ask("why").starts_with("the process that made the unique id cannot be reached"),
            "{}",
            local.ask("why")
        );
    });
}

#[test]
fn a_host_that_exits_lets_the_other_processes_end_their_work() {
    alone(|| {
        for _ in 0..20 {
            let mut members = two_ranks(1);
            let [local, host] = &mut members;
            assert_eq!((local.ask("put 1"), host.ask("put 2")), ("done".into(), "done".into()));
            assert_eq!(
                (local.ask("sum"), host.ask("sum"), host.ask("destroy")),
                (SUCCESS.into(), SUCCESS.into(), SUCCESS.into())
            );
            host.send("exit");
            assert_eq!(
                (local.ask("get"), local.ask("finalize"), local.ask("settle")),
                ("3".into(), IN_PROGRESS.into(), SUCCESS.into())
            );
            assert_eq!(local.ask("destroy"), SUCCESS);
        }
    });
}
