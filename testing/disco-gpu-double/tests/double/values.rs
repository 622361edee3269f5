//! Rounding and wrapping of sums, which tests of backends compare with a tolerance.

use crate::common::child::alone;
use crate::common::{at, on_ranks};
use disco_gpu_double::nccl::abi::{Code, DataType, RedOp};
use disco_gpu_double::nccl::exports::collective::ncclAllReduce;
use half::f16;

#[test]
fn small_floats_are_rounded_once() {
    alone(|| {
        // In f16, 2048 + 1 is 2048. The sum would be 2048, too, if it were rounded after each addition.
        on_ranks(3, true, |rank| {
            let value = f16::from_f32(if rank.rank == 0 { 2048.0 } else { 1.0 });
            let pointer = rank.upload(&value.to_le_bytes());
            let pair = at(pointer, 0);
            let code = ncclAllReduce(pair, pair, 1, DataType::F16, RedOp::SUM, rank.comm, rank.stream);
            assert_eq!(code, Code::SUCCESS);
            assert_eq!(rank.download(pointer, 2), f16::from_f32(2050.0).to_le_bytes());
        });
    });
}

#[test]
fn integers_wrap_before_they_are_divided_towards_zero() {
    alone(|| {
        on_ranks(2, true, |rank| {
            let values = [[-1i8, 100, -3], [-2, 100, 3]][rank.rank].map(|x| x as u8);
            let pointer = rank.upload(&values);
            let pair = at(pointer, 0);
            let code = ncclAllReduce(pair, pair, 3, DataType::I8, RedOp::AVG, rank.comm, rank.stream);
            assert_eq!(code, Code::SUCCESS);
            assert_eq!(rank.download(pointer, 3).iter().map(|&x| x as i8).collect::<Vec<_>>(), [-1, -28, 0]);
        });
    });
}
