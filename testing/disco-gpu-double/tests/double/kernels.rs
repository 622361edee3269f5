//! Results of every kernel and element type.

use std::ffi::CStr;
use std::thread;

use crate::common::OK;
use crate::common::child::alone;
use crate::common::member::{Member, devices, members};
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

/// The input of a rank, `count` vectors of elements. Neighbouring elements differ.
fn input(element: Element, count: usize, rank: usize) -> Vec<u8> {
    let value = |i: usize| ((i * 7 + rank * 5) % 61) as f64 / 7.0 - 4.0;
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
fn sum_and_compare(members: &[Member], element: Element, algorithm: &str, grid: (u32, u32)) {
    let count = members[0].params.count as usize;
    let inputs: Vec<_> = members.iter().map(|member| input(element, count, member.rank)).collect();
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

#[test]
fn every_kernel_sums_every_element_in_all_grids() {
    alone(|| {
        devices();
        let grids = [(1, (1, 32)), (9, (1, 32)), (100, (3, 32)), (257, (2, 128)), (1500, (64, 32)), (600, (1, 512))];
        for (world, (count, grid)) in [2, 3, 5, 8].into_iter().flat_map(|world| grids.map(|grid| (world, grid))) {
            let members = members(world, count);
            let last = (world == 8).then_some("hybrid_cube_mesh");
            for algorithm in ["one_shot", "two_shot"].into_iter().chain(last) {
                ELEMENTS.into_iter().for_each(|element| sum_and_compare(&members, element, algorithm, grid));
            }
        }
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
        sum_and_compare(&members, Element::F32, "hybrid_cube_mesh", (1, 32));
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
    });
}
