//! Each rank reads its own bytes alone: exactly its share, the replicated tensors and the headers.

use std::fs::File;
use std::sync::{Arc, Mutex};

use candle_core::quantized::{GgmlDType, gguf_file};
use candle_core::{DType, Device};
use disco_candle::weights::{Block, Part, Plan, Shards, Split, Weights};

use super::files::*;

#[test]
fn ranks_of_safetensors_read_their_shares_the_replicated_tensors_and_the_headers() {
    let folder = folder();
    let tensors = [
        ("rows", numbers(&[10, 6], DType::F32)),
        ("columns", numbers(&[5, 14], DType::BF16)),
        ("fused", numbers(&[22, 3], DType::F16)),
        ("norm", numbers(&[7], DType::F32)),
    ];
    write_safetensors(&folder.path().join("1.safetensors"), &tensors[..2]);
    write_safetensors(&folder.path().join("2.safetensors"), &tensors[2..]);
    let index = r#"{"weight_map": {"rows": "1.safetensors", "columns": "1.safetensors", "fused": "2.safetensors",
        "norm": "2.safetensors"}}"#;
    std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    let header = |name| {
        let bytes = std::fs::read(folder.path().join(name)).unwrap();
        8 + u64::from_le_bytes(*bytes.first_chunk().unwrap())
    };
    let headers = header("1.safetensors") + header("2.safetensors") + index.len() as u64;
    let plan = Plan::new()
        .with("rows", Split::even(0, 2))
        .with("columns", Split::even(1, 1))
        .with("fused", Split::fused(0, [Block::even(12, 3), Block::even(10, 1)]));

    for size in 2..=4 {
        let mut split_bytes = 0;
        for rank in 0..size {
            let weights = Arc::new(Weights::open(folder.path()).unwrap());
            assert_eq!(weights.bytes_read(), headers, "opening reads no tensor");
            // Shares by arithmetic: units of rank `rank`, times the bytes of one.
            let units = |count: usize| (count + size - 1 - rank) / size;
            let share = units(5) * 2 * 6 * 4 + 5 * units(14) * 2 + (units(4) * 3 + units(10)) * 3 * 2;
            split_bytes += share;
            let expected = (share + 7 * 4) as u64;

            let seen = Arc::new(Mutex::new(Vec::new()));
            let reports = seen.clone();
            let shards = Shards::new(weights.clone(), plan.clone(), rank, size, DType::F64, Device::Cpu)
                .with_progress(move |done, total| reports.lock().unwrap().push((done, total)));
            assert_eq!(shards.expected_bytes(), expected);
            for (name, tensor) in &tensors {
                shards.tensor_of(name, tensor.dims()).unwrap();
            }
            assert_eq!(weights.bytes_read() - headers, expected, "rank {rank} of {size}");
            let seen = seen.lock().unwrap();
            assert!(seen.is_sorted() && seen.len() == 4, "{seen:?}");
            assert_eq!(seen.last(), Some(&(expected, expected)));
        }
        assert_eq!(split_bytes, 10 * 6 * 4 + 5 * 14 * 2 + 22 * 3 * 2, "the shares of all ranks are the split tensors");
    }
}

#[test]
fn ranks_of_gguf_read_their_blocks_the_replicated_tensors_and_the_header() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    let tensors = [
        ("rows", quantized(&[9, 256], GgmlDType::Q4K)),
        ("columns", quantized(&[6, 5 * 32], GgmlDType::Q4_1)),
        ("norm", quantized(&[16], GgmlDType::F32)),
    ];
    write_gguf(&path, &[], &tensors);
    let data = gguf_file::Content::read(&mut File::open(&path).unwrap()).unwrap().tensor_data_offset;
    let plan = Plan::new().with("rows", Split::even(0, 1)).with("columns", Split::even(1, 32));
    for size in 2..=4 {
        for rank in 0..size {
            let weights = Arc::new(Weights::open(&path).unwrap());
            let header = weights.bytes_read();
            assert!((data - 31..=data).contains(&header), "the header ends before the padding: {header} {data}");
            let shards = Shards::new(weights.clone(), plan.clone(), rank, size, DType::F32, Device::Cpu);
            let units = |count: usize| (count + size - 1 - rank) / size;
            let rows = units(9) * GgmlDType::Q4K.type_size();
            let columns = 6 * units(5) * GgmlDType::Q4_1.type_size();
            let expected = (rows + columns + 16 * 4) as u64;
            assert_eq!(shards.expected_bytes(), expected);
            shards.quantized("rows").unwrap();
            shards.quantized("columns").unwrap();
            shards.tensor("norm").unwrap();
            assert_eq!(weights.bytes_read() - header, expected, "rank {rank} of {size}");
        }
    }
}

#[test]
fn a_range_that_cuts_blocks_reads_the_blocks_that_cover_it() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    write_gguf(&path, &[], &[("t", quantized(&[3, 5 * 32], GgmlDType::Q8_0))]);
    let weights = Weights::open(&path).unwrap();
    let header = weights.bytes_read();
    let part = Part::Range { dim: 1, range: 33..97 };
    weights.read("t", &part, DType::F32, &Device::Cpu).unwrap();
    assert_eq!(weights.bytes_read() - header, 3 * 3 * 34, "3 rows of 3 blocks");
}
