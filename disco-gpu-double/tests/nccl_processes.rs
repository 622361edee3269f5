//! Communicators whose ranks are in several processes: how ranks wait for each other, and what they are refused. What they compute
//! is shown by `values`.

mod common;

use std::thread;

use common::several::{
    A_WHILE, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, SUCCESS, all_sum, alone, begin, each, two,
};
use common::stepped::{self, SteppedRank};

#[test]
fn child_that_is_a_rank() {
    stepped::serve();
}

#[test]
fn a_collective_waits_for_the_rank_of_the_other_process() {
    let _alone = alone();
    for host in [0, 1] {
        let mut members = two(host);
        let [here, there] = &mut members;
        for (one, other) in [(0, 1), (1, 0)] {
            let [first, last] = [one, other].map(|which| if which == 0 { 0 } else { 1 });
            let ask = |which: usize, wish: &str, here: &mut SteppedRank, there: &mut SteppedRank| match which {
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
        all_sum(&mut members);
    }
}

#[test]
fn ranks_of_three_processes_are_of_one_communicator() {
    let _alone = alone();
    for host in 0..3 {
        let mut members = [SteppedRank::here(0), SteppedRank::there(1), SteppedRank::there(2)];
        let [a, b, c] = &mut members;
        begin(&mut [a, b, c], host);
        all_sum(&mut members);
        // Neither of these two is the host where the first is.
        let [_, b, c] = &mut members;
        b.ask("put 7");
        assert_eq!((b.ask("send 2"), c.ask("receive 1")), (IN_PROGRESS.into(), IN_PROGRESS.into()));
        assert_eq!((b.ask("settle"), c.ask("settle"), c.ask("get")), (SUCCESS.into(), SUCCESS.into(), "7".into()));
    }
}

#[test]
fn calls_that_differ_fail_on_all_ranks() {
    let _alone = alone();
    for host in [0, 1] {
        let mut members = two(host);
        let [here, there] = &mut members;
        assert_eq!((here.ask("sum"), there.ask("largest")), (SUCCESS.into(), SUCCESS.into()));
        assert_eq!(each(&mut members, "fail"), [INVALID_USAGE; 2]);
        let why = "ranks have called different collectives; rank 0: ncclAllReduce(1 of ncclFloat32, sum); rank 1: \
                   ncclAllReduce(1 of ncclFloat32, max)";
        assert_eq!(each(&mut members, "why"), [why; 2]);
        assert_eq!(each(&mut members, "sum"), [INVALID_USAGE; 2]);
        assert_eq!(each(&mut members, "abort"), [SUCCESS; 2]);
        each(&mut members, "get");
    }
}

#[test]
fn a_send_that_differs_from_its_receive_fails_on_all_ranks() {
    let _alone = alone();
    for host in 0..3 {
        let mut members = [SteppedRank::here(0), SteppedRank::there(1), SteppedRank::there(2)];
        let [a, b, c] = &mut members;
        begin(&mut [a, b, c], host);
        // The third rank has no part in it.
        let [a, b, _] = &mut members;
        assert_eq!((b.ask("send 0"), a.ask("receive 1 none")), (IN_PROGRESS.into(), IN_PROGRESS.into()));
        assert_eq!(each(&mut members, "fail"), [INVALID_USAGE; 3]);
        let why = "a send and its receive differ; rank 1: ncclSend(1 of ncclFloat32, to 0); rank 0: ncclRecv(0 of \
                   ncclFloat32, from 1)";
        assert_eq!(each(&mut members, "why"), [why; 3]);
    }
}

#[test]
fn a_split_has_ranks_of_any_processes() {
    let _alone = alone();
    for host in 0..3 {
        let mut members = [SteppedRank::here(0), SteppedRank::there(1), SteppedRank::there(2)];
        let [a, b, c] = &mut members;
        begin(&mut [a, b, c], host);
        // Ranks 2 and 1 in this order, neither of which is in the process of rank 0.
        assert_eq!(a.ask("split -1 0"), IN_PROGRESS);
        assert_eq!((b.ask("split 3 5"), c.ask("split 3 4")), (IN_PROGRESS.into(), IN_PROGRESS.into()));
        assert_eq!(each(&mut members, "settle"), [SUCCESS; 3]);
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
}

#[test]
fn finalize_waits_for_the_rank_of_the_other_process_since_2_31() {
    let _alone = alone();
    for host in [0, 1] {
        let mut members = two(host);
        each(&mut members, "meet");
        let [here, there] = &mut members;
        assert_eq!(there.ask("finalize"), IN_PROGRESS);
        thread::sleep(A_WHILE);
        assert_eq!(there.ask("error"), IN_PROGRESS);
        assert_eq!(
            (here.ask("finalize"), here.ask("settle"), there.ask("settle")),
            (IN_PROGRESS.into(), SUCCESS.into(), SUCCESS.into())
        );
        assert_eq!(each(&mut members, "destroy"), [SUCCESS; 2]);
    }
}

#[test]
fn what_ranks_of_a_process_are_refused_those_of_another_are() {
    let _alone = alone();
    for host in [0, 1] {
        let mut members = two(host);
        let id = members[host].ask("id");
        let [here, there] = &mut members;
        assert_eq!(here.ask(&format!("begin {id} 2 0")), IN_PROGRESS);
        thread::sleep(A_WHILE);
        assert_eq!(there.ask(&format!("begin {id} 3 1")), INVALID_ARGUMENT);
        assert!(there.ask("why").contains("ranks disagree on the number of ranks: 3 and 2"), "{}", there.ask("why"));
        assert_eq!(there.ask(&format!("begin {id} 2 0")), IN_PROGRESS);
        assert_eq!(there.ask("fail"), INVALID_USAGE);
        assert_eq!((there.ask("why"), there.ask("abort")), ("rank 0 has joined twice".into(), SUCCESS.into()));
        assert_eq!(there.ask(&format!("begin {id} 2 1")), IN_PROGRESS);
        assert_eq!(each(&mut members, "settle"), [SUCCESS; 2]);
        assert_eq!(each(&mut members, &format!("begin {id} 2 0")), [INVALID_USAGE; 2]);
        assert_eq!(each(&mut members, "why"), ["the unique id was used before"; 2]);
    }
    let mut members = [SteppedRank::here(0), SteppedRank::there(0)];
    let id = members[0].ask("id");
    for (rank, member) in members.iter_mut().enumerate() {
        assert_eq!(member.ask(&format!("begin {id} 2 {rank}")), IN_PROGRESS);
    }
    assert_eq!(each(&mut members, "fail"), [INVALID_USAGE; 2]);
    let why = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0";
    assert_eq!(each(&mut members, "why"), [why; 2]);
}
