//! Results of collectives, compared with loops in `f64`.

use crate::common::child::alone;
use crate::common::{Rank, at, free, on_ranks};
use disco_gpu_double::cuda::abi::DevicePointer;
use disco_gpu_double::nccl::abi::{Code, DataType, RedOp};
use disco_gpu_double::nccl::exports::collective::{
    ncclAllGather, ncclAllReduce, ncclAlltoAll, ncclBroadcast, ncclGather, ncclReduce, ncclReduceScatter, ncclScatter,
};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

const TYPES: [DataType; 12] = [
    DataType::I8,
    DataType::U8,
    DataType::I32,
    DataType::U32,
    DataType::I64,
    DataType::U64,
    DataType::F16,
    DataType::F32,
    DataType::F64,
    DataType::BF16,
    DataType::F8E4M3,
    DataType::F8E5M2,
];
const OPERATIONS: [RedOp; 5] = [RedOp::SUM, RedOp::PROD, RedOp::MAX, RedOp::MIN, RedOp::AVG];
const COUNT: usize = 7;

/// Encodes numbers as elements of a type.
fn encode(dtype: DataType, values: &[f64]) -> Vec<u8> {
    let bytes = |x: &f64| match dtype {
        DataType::I8 => (*x as i8).to_le_bytes().to_vec(),
        DataType::U8 => (*x as u8).to_le_bytes().to_vec(),
        DataType::I32 => (*x as i32).to_le_bytes().to_vec(),
        DataType::U32 => (*x as u32).to_le_bytes().to_vec(),
        DataType::I64 => (*x as i64).to_le_bytes().to_vec(),
        DataType::U64 => (*x as u64).to_le_bytes().to_vec(),
        DataType::F16 => f16::from_f64(*x).to_le_bytes().to_vec(),
        DataType::F32 => (*x as f32).to_le_bytes().to_vec(),
        DataType::F64 => x.to_le_bytes().to_vec(),
        DataType::BF16 => bf16::from_f64(*x).to_le_bytes().to_vec(),
        DataType::F8E4M3 => vec![F8E4M3::from_f64(*x).to_bits()],
        DataType::F8E5M2 => vec![F8E5M2::from_f64(*x).to_bits()],
        other => panic!("{other:?}"),
    };
    values.iter().flat_map(bytes).collect()
}

/// Decodes elements of a type. Only small numbers occur.
fn decode(dtype: DataType, bytes: &[u8]) -> Vec<f64> {
    let size = encode(dtype, &[0.0]).len();
    let number = |bytes: &[u8]| match dtype {
        DataType::I8 => f64::from(bytes[0] as i8),
        DataType::U8 => f64::from(bytes[0]),
        DataType::I32 => f64::from(i32::from_le_bytes(bytes.try_into().unwrap())),
        DataType::U32 => f64::from(u32::from_le_bytes(bytes.try_into().unwrap())),
        DataType::I64 => i64::from_le_bytes(bytes.try_into().unwrap()) as f64,
        DataType::U64 => u64::from_le_bytes(bytes.try_into().unwrap()) as f64,
        DataType::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DataType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        DataType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
        DataType::BF16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DataType::F8E4M3 => F8E4M3::from_bits(bytes[0]).to_f64(),
        DataType::F8E5M2 => F8E5M2::from_bits(bytes[0]).to_f64(),
        other => panic!("{other:?}"),
    };
    bytes.chunks_exact(size).map(number).collect()
}

/// The input of a rank: numbers from 0 to 3, which all types can represent.
fn input(rank: usize, count: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 7 + rank * 3 + i * rank) % 4) as f64).collect()
}

fn reduced(ranks: usize, count: usize, op: RedOp, dtype: DataType) -> Vec<f64> {
    let element = |i: usize| {
        let values = (0..ranks).map(|rank| input(rank, count)[i]);
        let value = match op {
            RedOp::PROD => values.product(),
            RedOp::MAX => values.fold(f64::MIN, f64::max),
            RedOp::MIN => values.fold(f64::MAX, f64::min),
            RedOp::AVG if dtype.0 <= DataType::U64.0 => values.sum::<f64>() / ranks as f64,
            RedOp::AVG if dtype == DataType::F64 => values.sum::<f64>() * (1.0 / ranks as f64),
            RedOp::AVG => f64::from(values.sum::<f64>() as f32 * (1.0 / ranks as f32)),
            _ => values.sum(),
        };
        let is_integer = dtype.0 <= DataType::U64.0;
        if is_integer { value.trunc() } else { decode(dtype, &encode(dtype, &[value]))[0] }
    };
    (0..count).map(element).collect()
}

fn ok(code: Code) {
    assert_eq!(code, Code::SUCCESS, "{}", crate::common::last_error(std::ptr::null_mut()));
}

#[test]
fn every_type_is_reduced_by_every_operation() {
    alone(|| {
        for ranks in [2, 3] {
            on_ranks(ranks, true, |rank| {
                for dtype in TYPES {
                    for op in OPERATIONS {
                        reductions(rank, dtype, op);
                    }
                }
            });
        }
    });
}

fn reductions(rank: &Rank, dtype: DataType, op: RedOp) {
    let (ranks, own, stream, comm) = (rank.ranks, rank.rank, rank.stream, rank.comm);
    let bytes = encode(dtype, &[0.0; COUNT]).len();
    let send = rank.upload(&encode(dtype, &input(own, COUNT)));
    let recv = rank.upload(&vec![0xee; bytes]);
    let expected = reduced(ranks, COUNT, op, dtype);
    let what = format!("{dtype:?} {op:?} of {ranks}");

    ok(ncclAllReduce(at(send, 0), at(recv, 0), COUNT, dtype, op, comm, stream));
    assert_eq!(decode(dtype, &rank.download(recv, bytes)), expected, "all-reduce {what}");

    rank.write(recv, &vec![0xee; bytes]);
    ok(ncclReduce(at(send, 0), at(recv, 0), COUNT, dtype, op, 1, comm, stream));
    let received = rank.download(recv, bytes);
    match own {
        1 => assert_eq!(decode(dtype, &received), expected, "reduce {what}"),
        _ => assert_eq!(received, vec![0xee; bytes], "reduce {what} is the root's alone"),
    }

    let wide = rank.upload(&encode(dtype, &input(own, COUNT * ranks)));
    ok(ncclReduceScatter(at(wide, 0), at(recv, 0), COUNT, dtype, op, comm, stream));
    let expected = reduced(ranks, COUNT * ranks, op, dtype);
    let received = decode(dtype, &rank.download(recv, bytes));
    assert_eq!(received, expected[own * COUNT..][..COUNT], "reduce-scatter {what}");
    [send, recv, wide].into_iter().for_each(free);
}

#[test]
fn collectives_without_reduction_move_the_right_blocks() {
    alone(|| {
        on_ranks(3, true, |rank| {
            let (own, stream, comm, f32) = (rank.rank, rank.stream, rank.comm, DataType::F32);
            let block = |from: usize, to: usize| [100.0 * from as f32 + to as f32, 0.5];
            let own_blocks = (0..3).flat_map(|to| block(own, to)).collect::<Vec<_>>();
            let (one, three) = (rank.floats(&block(own, 9)), rank.floats(&own_blocks));
            let (to_one, to_three) = (rank.floats(&[-1.0; 2]), rank.floats(&[-1.0; 6]));
            let read = |pointer: DevicePointer, count| rank.read_floats(pointer, count);

            ok(ncclAllGather(at(one, 0), at(to_three, 0), 2, f32, comm, stream));
            assert_eq!(read(to_three, 6), (0..3).flat_map(|from| block(from, 9)).collect::<Vec<_>>());
            ok(ncclAlltoAll(at(three, 0), at(to_three, 0), 2, f32, comm, stream));
            assert_eq!(read(to_three, 6), (0..3).flat_map(|from| block(from, own)).collect::<Vec<_>>());
            ok(ncclBroadcast(at(one, 0), at(to_one, 0), 2, f32, 2, comm, stream));
            assert_eq!(read(to_one, 2), block(2, 9));
            ok(ncclScatter(at(three, 0), at(to_one, 0), 2, f32, 1, comm, stream));
            assert_eq!(read(to_one, 2), block(1, own));
            ok(ncclGather(at(one, 0), at(to_three, 0), 2, f32, 0, comm, stream));
            if own == 0 {
                assert_eq!(read(to_three, 6), (0..3).flat_map(|from| block(from, 9)).collect::<Vec<_>>());
            }
            rank.synchronize();
        });
    });
}

#[test]
fn small_floats_are_rounded_once() {
    alone(|| {
        // In f16, 2048 + 1 is 2048. The sum would be 2048, too, if it were rounded after each addition.
        on_ranks(3, true, |rank| {
            let value = if rank.rank == 0 { 2048.0 } else { 1.0 };
            let pointer = rank.upload(&encode(DataType::F16, &[value]));
            let pair = at(pointer, 0);
            ok(ncclAllReduce(pair, pair, 1, DataType::F16, RedOp::SUM, rank.comm, rank.stream));
            assert_eq!(decode(DataType::F16, &rank.download(pointer, 2)), [2050.0]);
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
            ok(ncclAllReduce(pair, pair, 3, DataType::I8, RedOp::AVG, rank.comm, rank.stream));
            assert_eq!(rank.download(pointer, 3).iter().map(|&x| x as i8).collect::<Vec<_>>(), [-1, -28, 0]);
        });
    });
}
