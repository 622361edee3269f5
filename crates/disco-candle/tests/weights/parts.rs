//! A part equals the slice of candle's own full read.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::{DType, Device, Tensor};
use disco_candle::weights::{Encoding, Part, Weights, WeightsError};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::files::*;

const DENSE: [DType; 10] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
];

const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

/// Up to three ranges along a dimension of `shape`, in units of `unit` elements.
fn part(shape: &[usize], dim: Index, ends: &[(Index, Index)], unit: impl Fn(usize) -> usize) -> Part {
    let dim = dim.index(shape.len());
    let unit = unit(dim);
    let ranges = ends.iter().map(|(a, b)| {
        let (a, b) = (a.index(shape[dim] / unit + 1), b.index(shape[dim] / unit + 1));
        a.min(b) * unit..a.max(b) * unit
    });
    let ranges: Vec<Range<usize>> = ranges.collect();
    match ranges.as_slice() {
        [] => Part::Whole,
        [range] => Part::Range { dim, range: range.clone() },
        _ => Part::Ranges { dim, ranges },
    }
}

/// The slice of a tensor that candle has read whole.
fn slice(whole: &Tensor, part: &Part) -> Tensor {
    let (dim, ranges) = match part {
        Part::Range { dim, range } => (*dim, vec![range.clone()]),
        Part::Ranges { dim, ranges } => (*dim, ranges.clone()),
        _ => return whole.clone(),
    };
    let mut shape = whole.dims().to_vec();
    shape[dim] = ranges.iter().map(Range::len).sum();
    if shape.contains(&0) {
        // candle panics if an empty slice is concatenated or converted.
        return Tensor::zeros(shape, whole.dtype(), &Device::Cpu).unwrap();
    }
    let pieces: Vec<_> = ranges.iter().map(|range| whole.narrow(dim, range.start, range.len()).unwrap()).collect();
    if let [piece] = pieces.as_slice() { piece.clone() } else { Tensor::cat(&pieces, dim).unwrap() }
}

fn candle_gguf(path: &Path, name: &str) -> Tensor {
    let mut file = File::open(path).unwrap();
    let content = gguf_file::Content::read(&mut file).unwrap();
    content.tensor(&mut file, name, &Device::Cpu).unwrap().dequantize(&Device::Cpu).unwrap()
}

fn ends() -> impl Strategy<Value = Vec<(Index, Index)>> {
    prop::collection::vec(any::<(Index, Index)>(), 0..=3)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_part_of_safetensors_is_the_slice_of_the_whole(
        shape in prop::collection::vec(0usize..7, 1..=4),
        (stored, asked) in (select(&DENSE[..]), select(&FLOATS[..])),
        dim in any::<Index>(),
        ends in ends(),
    ) {
        let folder = folder();
        let path = folder.path().join("model.safetensors");
        // A tensor before it, so that the data does not start at an aligned place of the file.
        write_safetensors(&path, &[("t", numbers(&shape, stored)), ("odd", numbers(&[3], DType::U8))]);
        let part = part(&shape, dim, &ends, |_| 1);
        let weights = Weights::open(&path).unwrap();
        prop_assert_eq!(weights.info("t").unwrap().encoding(), Encoding::Dense(stored));

        let whole = &candle_core::safetensors::load(&path, &Device::Cpu).unwrap()["t"];
        let sliced = slice(whole, &part);
        // candle never ends the conversion of 8-bit floats to F64.
        let exact = if stored == DType::F8E4M3 { sliced.to_dtype(DType::F32).unwrap() } else { sliced };
        let expected = exact.to_dtype(asked).unwrap();
        let read = weights.read("t", &part, asked, &Device::Cpu).unwrap();
        prop_assert_eq!(contents(&read), contents(&expected), "{}", part);
        let unchanged = weights.read("t", &part, stored, &Device::Cpu).unwrap();
        prop_assert_eq!(contents(&unchanged), contents(&slice(whole, &part)), "{}", part);
    }

    #[test]
    fn a_part_of_gguf_is_the_slice_of_the_whole_also_if_it_cuts_blocks(
        (outer, blocks) in (prop::collection::vec(0usize..5, 0..=2), 1usize..4),
        (dtype, asked) in (select(&GGML[..]), select(&FLOATS[..])),
        dim in any::<Index>(),
        ends in ends(),
    ) {
        let folder = folder();
        let path = folder.path().join("model.gguf");
        let shape = [outer, vec![blocks * dtype.block_size()]].concat();
        let tensor = quantized(&shape, dtype);
        let dequantized = tensor.dequantize(&Device::Cpu).unwrap();
        write_gguf(&path, &[], &[("first", quantized(&[5], GgmlDType::F16)), ("t", tensor)]);
        let weights = Weights::open(&path).unwrap();
        prop_assert_eq!(weights.info("t").unwrap().encoding(), Encoding::Ggml(dtype));

        // candle's reader makes a slice of a dangling pointer of a tensor without elements.
        let whole = if candle_reads(dtype) && dequantized.elem_count() > 0 { candle_gguf(&path, "t") } else { dequantized };
        let any_part = part(&shape, dim, &ends, |_| 1);
        let read = weights.read("t", &any_part, asked, &Device::Cpu).unwrap();
        let expected = slice(&whole, &any_part).to_dtype(asked).unwrap();
        prop_assert_eq!(contents(&read), contents(&expected), "{}", any_part);

        let whole_blocks = part(&shape, dim, &ends, |dim| if dim + 1 == shape.len() { dtype.block_size() } else { 1 });
        let read = weights.read_quantized("t", &whole_blocks, &Device::Cpu).unwrap();
        prop_assert_eq!(read.dtype(), dtype);
        let read = read.dequantize(&Device::Cpu).unwrap();
        prop_assert_eq!(contents(&read), contents(&slice(&whole, &whole_blocks)), "{}", whole_blocks);

        match weights.read_covering("t", &any_part, &Device::Cpu) {
            Ok((blocks, columns)) if blocks.shape().elem_count() > 0 => {
                let read = blocks.dequantize(&Device::Cpu).unwrap();
                let read = read.narrow(shape.len() - 1, columns.start, columns.len()).unwrap();
                prop_assert_eq!(contents(&read), contents(&slice(&whole, &any_part)), "{}", any_part);
            }
            Ok(_) => (),
            Err(error) => {
                let is_cut = matches!(error, WeightsError::CutBlock { .. });
                prop_assert!(is_cut && matches!(any_part, Part::Ranges { .. }), "{}: {}", any_part, error);
            }
        }
    }
}

#[test]
fn the_header_of_gguf_has_the_values_that_candle_reads() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    let nested = Value::Array(vec![Value::Array(vec![Value::I8(-1)]), Value::Array(vec![])]);
    let values = [
        Value::U8(1),
        Value::I8(-2),
        Value::U16(3),
        Value::I16(-4),
        Value::U32(5),
        Value::I32(-6),
        Value::U64(7),
        Value::I64(-8),
        Value::F32(0.5),
        Value::F64(-0.25),
        Value::Bool(true),
        Value::String("äöü".into()),
        Value::Array(vec![Value::String("a".into()), Value::String(String::new())]),
        nested,
    ];
    let names: Vec<String> = (0..values.len()).map(|index| format!("key.{index}")).collect();
    let metadata: Vec<_> = names.iter().map(String::as_str).zip(&values).collect();
    write_gguf(&path, &metadata, &[("t", quantized(&[2, 3, 64], GgmlDType::Q4_1))]);

    let expected = gguf_file::Content::read(&mut File::open(&path).unwrap()).unwrap();
    let weights = Weights::open(&path).unwrap();
    let read = weights.gguf().unwrap();
    let mut expected: Vec<_> = expected.metadata.iter().map(|entry| format!("{entry:?}")).collect();
    expected.sort();
    let all: Vec<_> = read.iter().map(|entry| format!("{entry:?}")).collect();
    assert_eq!(all, expected);
    let alone: Vec<_> = read.iter().map(|(key, _)| format!("{:?}", (&key, read.get(&key).unwrap()))).collect();
    assert_eq!(alone, expected);
    assert!(["", "key", "key.99"].iter().all(|key| read.get(key).is_none()));
    assert_eq!(weights.info("t").unwrap().shape(), [2, 3, 64]);
}

#[test]
fn parts_of_no_rows_have_no_elements() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    write_gguf(&path, &[], &[("t", quantized(&[4, 64], GgmlDType::Q8_0))]);
    let weights = Weights::open(&path).unwrap();
    let header = weights.bytes_read();
    let part = Part::Range { dim: 0, range: 2..2 };
    assert_eq!(weights.read("t", &part, DType::F32, &Device::Cpu).unwrap().dims(), [0, 64]);
    assert_eq!(weights.read_quantized("t", &part, &Device::Cpu).unwrap().shape().dims(), [0, 64]);
    assert_eq!(weights.bytes_read(), header);
}

#[test]
fn a_folder_with_an_index_and_a_folder_without_have_the_tensors_of_all_files() {
    let folder = folder();
    let (first, second) = (numbers(&[4, 3], DType::F32), numbers(&[2], DType::BF16));
    write_safetensors(&folder.path().join("model-1.safetensors"), &[("a", first.clone()), ("b", second.clone())]);
    write_safetensors(&folder.path().join("model-2.safetensors"), &[("c", second.clone())]);
    let without = Weights::open(folder.path()).unwrap();
    assert_eq!(without.names().collect::<Vec<_>>(), ["a", "b", "c"]);

    let index = folder.path().join("model.safetensors.index.json");
    let text =
        r#"{"metadata": {"total_size": 1}, "weight_map": {"c": "model-2.safetensors", "a": "model-1.safetensors"}}"#;
    std::fs::write(&index, text).unwrap();
    for path in [folder.path(), &index] {
        let weights = Weights::open(path).unwrap();
        assert_eq!(weights.names().collect::<Vec<_>>(), ["a", "c"], "the index decides");
        let read = weights.read("c", &Part::Whole, DType::BF16, &Device::Cpu).unwrap();
        assert_eq!(contents(&read), contents(&second));
        assert_eq!(weights.info("a").unwrap().file(), folder.path().join("model-1.safetensors"));
    }
}

#[test]
fn a_model_of_several_gguf_files_is_opened_by_its_folder_and_by_its_first_file() {
    let folder = folder();
    let first = folder.path().join("m-00001-of-00002.gguf");
    let second = folder.path().join("m-00002-of-00002.gguf");
    let count = Value::U16(2);
    write_gguf(&first, &[("split.count", &count), ("general.name", &Value::String("m".into()))], &[]);
    write_gguf(&second, &[("split.count", &count)], &[("t", quantized(&[2, 32], GgmlDType::Q4_0))]);
    for path in [folder.path(), &first] {
        let weights = Weights::open(path).unwrap();
        assert_eq!(weights.info("t").unwrap().file(), second);
        assert!(weights.gguf().unwrap().get("general.name").is_some());
    }
    let error = Weights::open(&second).unwrap_err().to_string();
    assert!(
        error.contains("open the first of them, with its original name that ends with `-00001-of-00002.gguf`"),
        "{error}"
    );
    std::fs::remove_file(&second).unwrap();
    let error = Weights::open(&first).unwrap_err().to_string();
    let expected = format!(
        "`{}` names the file `{}`, which does not exist; copy or download the missing file",
        first.display(),
        second.display()
    );
    assert_eq!(error, expected);
}

#[test]
fn opened_weights_can_be_shared_by_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Weights>();
    shared::<disco_candle::weights::Shards>();
}

#[test]
fn files_of_other_tensors_have_another_fingerprint() {
    let folder = folder();
    let fingerprint = |name: &str, tensors: &[(&str, Tensor)]| {
        let path = folder.path().join(name);
        write_safetensors(&path, tensors);
        Weights::open(path).unwrap().fingerprint()
    };
    let tensor = numbers(&[2, 3], DType::F32);
    let first = fingerprint("a.safetensors", &[("t", tensor.clone())]);
    assert_eq!(fingerprint("b.safetensors", &[("t", tensor.clone())]), first);
    assert_ne!(fingerprint("c.safetensors", &[("u", tensor.clone())]), first);
    assert_ne!(fingerprint("d.safetensors", &[("t", tensor.t().unwrap().contiguous().unwrap())]), first);
    assert_ne!(fingerprint("e.safetensors", &[("t", numbers(&[2, 3], DType::I32))]), first);
}
