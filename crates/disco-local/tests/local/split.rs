//! Splits of communicators.

use disco_core::{Communicator, CommunicatorExt, Reduction};

use super::{LONG, floats, on_ranks, on_threads, ranks};

/// The parent's ranks of all members of a child, in the order of the child's ranks.
fn members(child: &mut dyn Communicator, old: usize) -> Vec<f32> {
    let all = floats(&vec![0.0; child.size()]);
    child.all_gather(&floats(&[old as f32]), &all).unwrap();
    all.to_vec().unwrap()
}

#[test]
fn ranks_of_one_color_are_together_ordered_by_key_then_rank() {
    on_ranks(6, |mut comm| {
        let old = comm.rank().index();
        let mut child = comm.split(Some(old as u32 % 2), 0).unwrap().unwrap();
        assert_eq!(members(&mut *child, old), if old % 2 == 0 { [0.0, 2.0, 4.0] } else { [1.0, 3.0, 5.0] });
        let mut child = comm.split(Some(7), -(old as i32)).unwrap().unwrap();
        assert_eq!(members(&mut *child, old), [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]);
        let mut child = comm.split(Some(7), i32::from(old < 2)).unwrap().unwrap();
        assert_eq!(members(&mut *child, old), [2.0, 3.0, 4.0, 5.0, 0.0, 1.0]);
    });
}

#[test]
fn no_color_gives_no_communicator() {
    on_ranks(3, |mut comm| {
        let old = comm.rank().index();
        let child = comm.split((old != 1).then_some(0), 0).unwrap();
        assert_eq!(child.is_none(), old == 1);
        if let Some(mut child) = child {
            assert_eq!(members(&mut *child, old), [0.0, 2.0]);
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn children_outlive_their_parents() {
    on_ranks(4, |mut comm| {
        let old = comm.rank().index();
        let mut child = comm.split(Some(old as u32 / 2), 0).unwrap().unwrap();
        drop(comm);
        let mut grandchild = child.split(Some(0), 1 - child.rank().index() as i32).unwrap().unwrap();
        drop(child);
        let expected = if old < 2 { [1.0, 0.0] } else { [3.0, 2.0] };
        assert_eq!(members(&mut *grandchild, old), expected);
    });
}

#[test]
fn an_abort_of_the_root_communicator_reaches_its_children() {
    let ranks = ranks(2, LONG).unwrap();
    let aborter = ranks[0].aborter();
    let children = on_threads(ranks, |mut comm| {
        let mut child = comm.split(Some(0), 0).unwrap().unwrap();
        drop(comm);
        child.barrier().unwrap();
        if child.rank().index() == 1 {
            aborter.abort(&"worker 3 failed".into());
        }
        child.barrier().unwrap_err().to_string()
    });
    assert!(children[0].contains("worker 3 failed"), "{}", children[0]);
    assert_eq!(children[1], "barrier: the communicator is broken since: worker 3 failed");
}

#[test]
fn an_abort_of_a_child_does_not_abort_its_parent() {
    on_ranks(2, |mut comm| {
        let mut child = comm.split(Some(0), 0).unwrap().unwrap();
        child.aborter().abort(&"enough".into());
        assert!(child.barrier().is_err());
        comm.all_reduce_in_place(&floats(&[1.0]), Reduction::Sum).unwrap();
    });
}
