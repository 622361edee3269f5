//! Communicators with ranks in several processes: waits between ranks, and refusals. `values` tests the results of
//! collectives.

use crate::common::child::alone;
use crate::common::rank_handle::{self, RankHandle};
use crate::common::settle;
use crate::common::several_processes::{
    IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, SUCCESS, ask_all, begin, check_sum, two_ranks,
};

#[test]
fn child_that_is_a_rank() {
    rank_handle::serve();
}

#[test]
fn a_collective_waits_for_the_rank_of_the_other_process() {
    alone(|| {
        for host in [0, 1] {
            let mut members = two_ranks(host);
            let [local, remote] = &mut members;
            for (one, other) in [(0, 1), (1, 0)] {
                let [first, last] = [one, other].map(|which| if which == 0 { 0 } else { 1 });
                let ask = |which: usize, request: &str, local: &mut RankHandle, remote: &mut RankHandle| match which {
                    0 => local.ask(request),
                    _ => remote.ask(request),
                };
                assert_eq!(ask(first, "sum", local, remote), SUCCESS);
                settle();
                assert_eq!(ask(first, "idle", local, remote), "false");
                assert_eq!(ask(last, "sum", local, remote), SUCCESS);
                ask(first, "get", local, remote);
                ask(last, "get", local, remote);
            }
            check_sum(&mut members);
        }
    });
}

#[test]
fn ranks_of_three_processes_form_one_communicator() {
    alone(|| {
        for host in 0..3 {
            let mut members = [RankHandle::local(0), RankHandle::remote(1), RankHandle::remote(2)];
            let [a, b, c] = &mut members;
            begin(&mut [a, b, c], host);
            check_sum(&mut members);
            // If member 0 is the host, neither of the other two is.
            let [_, b, c] = &mut members;
            b.ask("put 7");
            assert_eq!((b.ask("send 2"), c.ask("receive 1")), (IN_PROGRESS.into(), IN_PROGRESS.into()));
            assert_eq!((b.ask("settle"), c.ask("settle"), c.ask("get")), (SUCCESS.into(), SUCCESS.into(), "7".into()));
        }
    });
}

#[test]
fn calls_that_differ_fail_on_all_ranks() {
    alone(|| {
        for host in [0, 1] {
            let mut members = two_ranks(host);
            let [local, remote] = &mut members;
            assert_eq!((local.ask("sum"), remote.ask("largest")), (SUCCESS.into(), SUCCESS.into()));
            assert_eq!(ask_all(&mut members, "fail"), [INVALID_USAGE; 2]);
            let why = "ranks have called different collectives; rank 0: ncclAllReduce(1 of ncclFloat32, sum); rank 1: \
                       ncclAllReduce(1 of ncclFloat32, max)";
            assert_eq!(ask_all(&mut members, "why"), [why; 2]);
            assert_eq!(ask_all(&mut members, "sum"), [INVALID_USAGE; 2]);
            assert_eq!(ask_all(&mut members, "abort"), [SUCCESS; 2]);
            ask_all(&mut members, "get");
        }
    });
}

#[test]
fn a_send_that_differs_from_its_receive_fails_on_all_ranks() {
    alone(|| {
        for host in 0..3 {
            let mut members = [RankHandle::local(0), RankHandle::remote(1), RankHandle::remote(2)];
            let [a, b, c] = &mut members;
            begin(&mut [a, b, c], host);
            // The third rank takes no part in the transfer.
            let [a, b, _] = &mut members;
            assert_eq!((b.ask("send 0"), a.ask("receive 1 none")), (IN_PROGRESS.into(), IN_PROGRESS.into()));
            assert_eq!(ask_all(&mut members, "fail"), [INVALID_USAGE; 3]);
            let why = "a send and its receive differ; rank 1: ncclSend(1 of ncclFloat32, to 0); rank 0: ncclRecv(0 of \
                       ncclFloat32, from 1)";
            assert_eq!(ask_all(&mut members, "why"), [why; 3]);
        }
    });
}

#[test]
fn a_split_has_ranks_of_any_processes() {
    alone(|| {
        for host in 0..3 {
            let mut members = [RankHandle::local(0), RankHandle::remote(1), RankHandle::remote(2)];
            let [a, b, c] = &mut members;
            begin(&mut [a, b, c], host);
            // The child communicator has ranks 2 and 1 in this order. Neither is in the process of rank 0.
            assert_eq!(a.ask("split -1 0"), IN_PROGRESS);
            assert_eq!((b.ask("split 3 5"), c.ask("split 3 4")), (IN_PROGRESS.into(), IN_PROGRESS.into()));
            assert_eq!(ask_all(&mut members, "settle"), [SUCCESS; 3]);
            let [a, b, c] = &mut members;
            for member in [&mut *b, &mut *c] {
                member.ask("part");
                assert_eq!(member.ask("settle"), SUCCESS);
            }
            assert_eq!((b.ask("put 1"), c.ask("put 2")), ("done".into(), "done".into()));
            assert_eq!((b.ask("broadcast 0"), c.ask("broadcast 0")), (SUCCESS.into(), SUCCESS.into()));
            assert_eq!((b.ask("get"), c.ask("get")), ("2".into(), "2".into()), "rank 2 of the parent is rank 0");
            assert_eq!((b.ask("finalize"), c.ask("finalize")), (IN_PROGRESS.into(), IN_PROGRESS.into()));
            assert_eq!((b.ask("settle"), c.ask("settle")), (SUCCESS.into(), SUCCESS.into()));
            assert_eq!(a.ask("error"), SUCCESS);
        }
    });
}

#[test]
fn finalize_waits_for_the_rank_of_the_other_process_since_2_31() {
    alone(|| {
        for host in [0, 1] {
            let mut members = two_ranks(host);
            ask_all(&mut members, "meet");
            let [local, remote] = &mut members;
            assert_eq!(remote.ask("finalize"), IN_PROGRESS);
            settle();
            assert_eq!(remote.ask("error"), IN_PROGRESS);
            assert_eq!(
                (local.ask("finalize"), local.ask("settle"), remote.ask("settle")),
                (IN_PROGRESS.into(), SUCCESS.into(), SUCCESS.into())
            );
            assert_eq!(ask_all(&mut members, "destroy"), [SUCCESS; 2]);
        }
    });
}

#[test]
fn refusals_are_the_same_for_ranks_of_other_processes() {
    alone(|| {
        for host in [0, 1] {
            let mut members = two_ranks(host);
            let id = members[host].ask("id");
            let [local, remote] = &mut members;
            assert_eq!(local.ask(&format!("begin {id} 2 0")), IN_PROGRESS);
            settle();
            assert_eq!(remote.ask(&format!("begin {id} 3 1")), INVALID_ARGUMENT);
            assert!(
                remote.ask("why").contains("ranks disagree on the number of ranks: 3 and 2"),
                "{}",
                remote.ask("why")
            );
            assert_eq!(remote.ask(&format!("begin {id} 2 0")), IN_PROGRESS);
            assert_eq!(remote.ask("fail"), INVALID_USAGE);
            assert_eq!((remote.ask("why"), remote.ask("abort")), ("rank 0 has joined twice".into(), SUCCESS.into()));
            assert_eq!(remote.ask(&format!("begin {id} 2 1")), IN_PROGRESS);
            assert_eq!(ask_all(&mut members, "settle"), [SUCCESS; 2]);
            assert_eq!(ask_all(&mut members, &format!("begin {id} 2 0")), [INVALID_USAGE; 2]);
            assert_eq!(ask_all(&mut members, "why"), ["the unique id was used before"; 2]);
        }
        let mut members = [RankHandle::local(0), RankHandle::remote(0)];
        let id = members[0].ask("id");
        for (rank, member) in members.iter_mut().enumerate() {
            assert_eq!(member.ask(&format!("begin {id} 2 {rank}")), IN_PROGRESS);
        }
        assert_eq!(ask_all(&mut members, "fail"), [INVALID_USAGE; 2]);
        let why = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0";
        assert_eq!(ask_all(&mut members, "why"), [why; 2]);
    });
}
