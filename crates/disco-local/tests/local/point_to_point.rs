//! Sends and receives, alone and in groups.

use disco_core::{Communicator as _, CommunicatorExt, Error, Op, Rank, Tensor};
use disco_local::Communicator;

use super::{floats, on_ranks, zeros};

fn send(src: &Tensor, to: usize) -> Op {
    Op::Send { src: src.clone(), to: Rank::new(to as u32) }
}

fn recv(dst: &Tensor, from: usize) -> Op {
    Op::Recv { dst: dst.clone(), from: Rank::new(from as u32) }
}

fn me(comm: &Communicator) -> usize {
    comm.rank().index()
}

#[test]
fn a_pair_exchanges_messages_while_a_third_rank_is_in_a_barrier() {
    on_ranks(3, |mut comm| {
        let x = floats(&[1.0]);
        match me(&comm) {
            0 => (0..100).for_each(|_| comm.send(&x, Rank::new(1)).unwrap()),
            1 => (0..100).for_each(|_| comm.recv(&x, Rank::new(0)).unwrap()),
            _ => {}
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn groups_that_can_not_complete_are_refused() {
    on_ranks(2, |mut comm| {
        let (own, x) = (me(&comm), zeros(4));
        let why = comm.send(&x, Rank::new(own as u32)).unwrap_err().to_string();
        assert!(why.contains("sends 1 tensors to itself and receives 0"), "{why}");
        let (low, high) = (x.window(0, [3]).unwrap(), x.window(2, [2]).unwrap());
        let why = comm.enqueue(&[send(&low, 1 - own), recv(&high, 1 - own)]).unwrap_err();
        assert!(why.to_string().contains("which overlap"), "{why}");
        let why = comm.enqueue(&[recv(&low, 1 - own), recv(&high, 1 - own)]).unwrap_err().to_string();
        assert!(why.starts_with("one group receives into") && why.ends_with("which overlap"), "{why}");
        let why = comm.enqueue(&[Op::Barrier, send(&x, 1 - own)]).unwrap_err();
        assert!(matches!(why, Error::Invalid(_)), "{why}");
        comm.barrier().unwrap();
    });
}

#[test]
fn sender_and_receiver_of_different_sizes_get_the_same_mismatch() {
    let errors = on_ranks(3, |mut comm| match me(&comm) {
        0 => comm.send(&zeros(400), Rank::new(1)).unwrap_err(),
        1 => comm.recv(&zeros(500), Rank::new(0)).unwrap_err(),
        _ => comm.recv(&zeros(1), Rank::new(0)).unwrap_err(),
    });
    let text = "send and recv: ranks disagree: rank 0 sends f32 x 400, rank 1 receives f32 x 500";
    for error in &errors[..2] {
        assert!(matches!(error, Error::Mismatch { .. }));
        assert_eq!(error.to_string(), text);
    }
    assert!(errors[2].to_string().contains(text), "{}", errors[2]);
}

#[test]
fn the_sender_of_a_mismatched_inline_tensor_fails_at_its_next_call() {
    let errors = on_ranks(2, |mut comm| match me(&comm) {
        0 => {
            comm.send(&zeros(4), Rank::new(1)).unwrap();
            comm.barrier().unwrap_err().to_string()
        }
        _ => comm.recv(&zeros(5), Rank::new(0)).unwrap_err().to_string(),
    });
    for error in errors {
        assert!(error.contains("rank 0 sends f32 x 4, rank 1 receives f32 x 5"), "{error}");
    }
}

#[test]
fn small_tensors_of_a_rank_that_left_are_received() {
    on_ranks(2, |mut comm| match me(&comm) {
        0 => (0..3).for_each(|n| comm.send(&floats(&[n as f32]), Rank::new(1)).unwrap()),
        _ => {
            let x = zeros(1);
            for n in 0..3 {
                comm.recv(&x, Rank::new(0)).unwrap();
                assert_eq!(x.to_vec::<f32>().unwrap(), [n as f32]);
            }
            let error = comm.recv(&x, Rank::new(0)).unwrap_err();
            assert!(matches!(error, Error::Lost { .. }), "{error}");
        }
    });
}
