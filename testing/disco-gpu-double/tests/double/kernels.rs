//! Results of every kernel and element type, and the counts of handshakes that launches keep.

use crate::common::child::alone;
use std::ffi::CStr;
use std::thread;

use crate::common::OK;
use crate::common::member::{COUNTS, Member, STATUS, devices, members, write};
use crate::common::params::Params;
use half::{bf16, f16};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Element {
    F32,
    F16,
    BF16,
}

const ELEMENTS: [Element; 3] = [Element::F32, Element::F16, Element::BF16];

impl Element {
    fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    fn encode(self, values: &[f64]) -> Vec<u8> {
        let encode = |&value: &f64| match self {
            Self::F32 => (value as f32).to_le_bytes().to_vec(),
            Self::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
            Self::BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        };
        values.iter().flat_map(encode).collect()
    }

    fn decode(self, bytes: &[u8]) -> Vec<f64> {
        match self {
            Self::F32 => bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes).into()).collect(),
            Self::F16 => bytes.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).into()).collect(),
            Self::BF16 => bytes.as_chunks().0.iter().map(|&bytes| bf16::from_le_bytes(bytes).into()).collect(),
        }
    }

    /// The relative rounding error: half of the distance between 1 and the next number.
    fn rounding(self) -> f64 {
        match self {
            Self::F32 => 2_f64.powi(-24),
            Self::F16 => 2_f64.powi(-11),
            Self::BF16 => 2_f64.powi(-8),
        }
    }

    fn kernel(self, algorithm: &str) -> &'static CStr {
        match (algorithm, self) {
            ("one_shot", Self::F32) => c"disco_one_shot_f32",
            ("one_shot", Self::F16) => c"disco_one_shot_f16",
            ("one_shot", Self::BF16) => c"disco_one_shot_bf16",
            ("two_shot", Self::F32) => c"disco_two_shot_f32",
            ("two_shot", Self::F16) => c"disco_two_shot_f16",
            ("two_shot", Self::BF16) => c"disco_two_shot_bf16",
            ("hybrid_cube_mesh", Self::F32) => c"disco_hybrid_cube_mesh_f32",
            ("hybrid_cube_mesh", Self::F16) => c"disco_hybrid_cube_mesh_f16",
            ("hybrid_cube_mesh", Self::BF16) => c"disco_hybrid_cube_mesh_bf16",
            other => panic!("{other:?}"),
        }
    }
}

/// The n-th input of a rank, `count` vectors of elements. Neighbouring elements differ.
fn input(element: Element, count: usize, rank: usize, n: usize) -> Vec<u8> {
    let value = |i: usize| ((i * 7 + rank * 5 + n * 3) % 61) as f64 / 7.0 - 4.0;
    element.encode(&(0..16 * count / element.bytes()).map(value).collect::<Vec<_>>())
}

/// Runs `body` for every rank, each on a thread.
fn on_all(members: &[Member], body: impl Fn(&Member) + Sync) {
    let body = &body;
    thread::scope(|scope| {
        for member in members {
            scope.spawn(move || {
                member.enter();
                body(member);
            });
        }
    });
}

/// Launches once on each rank, and checks that all outputs are the sum and have the same bits.
fn sum_and_compare(members: &[Member], element: Element, algorithm: &str, grid: (u32, u32), n: usize) {
    let count = members[0].params.count as usize;
    let inputs: Vec<_> = members.iter().map(|member| input(element, count, member.rank, n)).collect();
    on_all(members, |member| {
        member.put(&inputs[member.rank]);
        assert_eq!(member.launch(element.kernel(algorithm), grid.0, grid.1), OK);
        assert_eq!((member.synchronize(), member.report()), (OK, 0));
    });
    let inputs: Vec<_> = inputs.iter().map(|bytes| element.decode(bytes)).collect();
    let outputs: Vec<_> = members.iter().map(Member::output).collect();
    assert!(outputs.iter().all(|output| *output == outputs[0]), "the same bits on all ranks");
    for (i, sum) in element.decode(&outputs[0]).into_iter().enumerate() {
        let expected: f64 = inputs.iter().map(|input| input[i]).sum();
        let size: f64 = inputs.iter().map(|input| input[i].abs()).sum();
        let near = size * (2.5 * element.rounding() + members.len() as f64 * 2_f64.powi(-24));
        assert!((sum - expected).abs() <= near, "{algorithm} of {element:?}, {grid:?}: {i} is {sum}, not {expected}");
    }
}

fn all_grids(world: usize, algorithm: &str) {
    for (count, grid) in
        [(1, (1, 32)), (9, (1, 32)), (100, (3, 32)), (257, (2, 128)), (1500, (64, 32)), (600, (1, 512))]
    {
        let members = members(world, count);
        for element in ELEMENTS {
            sum_and_compare(&members, element, algorithm, grid, 0);
        }
        members.into_iter().for_each(Member::end);
    }
}

#[test]
fn one_shot_sums() {
    alone(|| {
        devices();
        [2, 3, 5, 8].into_iter().for_each(|world| all_grids(world, "one_shot"));
    });
}

#[test]
fn two_shot_sums() {
    alone(|| {
        devices();
        [2, 3, 5, 8].into_iter().for_each(|world| all_grids(world, "two_shot"));
    });
}

#[test]
fn hybrid_cube_mesh_sums() {
    alone(|| {
        devices();
        all_grids(8, "hybrid_cube_mesh");
    });
}

#[test]
fn a_hybrid_cube_mesh_meets_only_neighbours() {
    alone(|| {
        devices();
        let mut members = members(8, 4);
        for member in &mut members {
            let (near, relay, nowhere) = (member.params.near, member.params.relay, 16);
            for rank in (0..8).filter(|&rank| near >> rank & 1 == 0 && rank != relay) {
                member.params.data[rank as usize] = nowhere;
                member.params.state[rank as usize] = nowhere;
            }
        }
        sum_and_compare(&members, Element::F32, "hybrid_cube_mesh", (1, 32), 0);
        members.into_iter().for_each(Member::end);
    });
}

#[test]
fn elements_are_summed_as_floats_in_the_order_of_ranks() {
    alone(|| {
        devices();
        let members = members(3, 1);
        // In f32, 2^24 + 1 is 2^24, so the result depends on the order. In f16, there is no number between 2048 and 2050.
        let f32s = [
            [2_f64.powi(24), 1.0, -2_f64.powi(24), 1.0],
            [1.0, 2_f64.powi(24), 1.0, -0.0],
            [-2_f64.powi(24), -2_f64.powi(24), 2_f64.powi(24), 0.0],
        ];
        let f16s = [[2048.0; 8], [1.0; 8], [-1.0; 8]];
        let sums = |element: Element, values: [Vec<f64>; 3]| {
            on_all(&members, |member| {
                member.put(&element.encode(&values[member.rank]));
                assert_eq!((member.launch(element.kernel("one_shot"), 1, 32), member.synchronize()), (OK, OK));
            });
            element.decode(&members[0].output())
        };
        assert_eq!(sums(Element::F32, f32s.map(Vec::from)), [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(sums(Element::F16, f16s.map(Vec::from)), [2048.0; 8]);
        let zeros = sums(Element::F32, [[-0.0_f64; 4]; 3].map(Vec::from));
        assert!(zeros.iter().all(|zero| zero.is_sign_negative()), "-0 and -0 are -0");
        let ties = [[256.0; 8], [1.0; 8], [0.0; 8]].map(Vec::from);
        assert_eq!(sums(Element::BF16, ties), [256.0; 8], "of two as near the even one");
        members.into_iter().for_each(Member::end);
    });
}

#[test]
fn input_and_output_may_be_the_same() {
    alone(|| {
        devices();
        for algorithm in ["one_shot", "two_shot", "hybrid_cube_mesh"] {
            let mut members = members(8, 50);
            let outputs: Vec<_> = members.iter().map(|member| member.params.output).collect();
            members.iter_mut().for_each(|member| member.params.output = member.params.input);
            sum_and_compare(&members, Element::F16, algorithm, (2, 32), 0);
            members.iter_mut().zip(outputs).for_each(|(member, output)| member.params.output = output);
            members.into_iter().for_each(Member::end);
        }
    });
}

#[test]
fn launches_continue_the_counts_of_the_last_launch() {
    alone(|| {
        devices();
        let members = members(3, 40);
        for n in 0..10 {
            let (algorithm, grid) = [("one_shot", (2, 32)), ("two_shot", (1, 64))][n % 2];
            sum_and_compare(&members, Element::F32, algorithm, grid, n);
        }
        for member in &members {
            member.enter();
            for peer in (0..3).filter(|&peer| peer != member.rank) {
                // Five launches with two handshakes of one-shot, and in block 0 five with three handshakes of two-shot.
                assert_eq!([0, 1].map(|block| member.state(COUNTS + 4 * (8 * block + peer))), [25, 10]);
                assert_eq!([0, 1].map(|block| member.state(128 * (8 * block + peer))), [25, 10]);
            }
            assert_eq!(member.state(STATUS), 0);
            assert_eq!(member.state(COUNTS + 4 * member.rank), 0, "a rank makes no handshake with itself");
        }
        members.into_iter().for_each(Member::end);
    });
}

#[test]
fn counts_of_handshakes_wrap() {
    alone(|| {
        devices();
        let members = members(3, 8);
        for member in &members {
            let state = member.params.state[member.rank];
            for peer in (0..3).filter(|&peer| peer != member.rank) {
                [128 * peer, COUNTS + 4 * peer]
                    .iter()
                    .for_each(|&at| write(state + at as u64, &(u32::MAX - 2).to_le_bytes()));
            }
        }
        for n in 0..4 {
            sum_and_compare(&members, Element::F32, "two_shot", (1, 32), n);
        }
        members[0].enter();
        assert_eq!(members[0].state(COUNTS + 4), 9);
        members.into_iter().for_each(Member::end);
    });
}

/// Submits many launches without waiting, so that ranks get ahead of each other.
#[test]
fn queued_launches_do_not_confuse_their_handshakes() {
    alone(|| {
        devices();
        let (launches, count, world) = (60, 300, 4);
        let (element, bytes) = (Element::F32, 16 * count);
        let members = members(world, launches * count);
        let inputs = |rank: usize| (0..launches).map(move |n| input(element, count, rank, n));
        on_all(&members, |member| {
            member.put(&inputs(member.rank).flatten().collect::<Vec<_>>());
            let mut params = Params { count: count as u32, ..member.params };
            for n in 0..launches {
                let algorithm = if n % 3 == 0 { "two_shot" } else { "one_shot" };
                assert_eq!(member.launch_with(&params, element.kernel(algorithm), 3, 32), OK);
                (params.input, params.output) = (params.input + bytes as u64, params.output + bytes as u64);
            }
            assert_eq!(member.launch(c"disco_barrier", 1, 32), OK);
            assert_eq!((member.synchronize(), member.report()), (OK, 0));
        });
        let outputs: Vec<_> = members.iter().map(Member::output).collect();
        assert!(outputs.iter().all(|output| *output == outputs[0]));
        let inputs: Vec<_> =
            (0..world).map(|rank| element.decode(&inputs(rank).flatten().collect::<Vec<_>>())).collect();
        for (i, sum) in element.decode(&outputs[0]).into_iter().enumerate() {
            let expected: f64 = inputs.iter().map(|input| input[i]).sum();
            assert!((sum - expected).abs() < 1e-4, "launch {}: {i} is {sum}, not {expected}", 4 * i / bytes);
        }
        members.into_iter().for_each(Member::end);
    });
}
