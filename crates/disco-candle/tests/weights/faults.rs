//! Bad files of safetensors, bad indices and bad requests: each is an error with a text.

use std::fs::OpenOptions;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device};
use disco_candle::weights::{Part, Weights};

use super::files::*;

fn open_error(path: &Path) -> String {
    Weights::open(path).unwrap_err().to_string()
}

/// The error of a file with this header and `data` bytes behind it, which is `{path} is malformed: {expected}; …`.
#[track_caller]
fn expect_malformed(header: &str, data: usize, expected: &str) {
    let folder = folder();
    let path = raw_safetensors(folder.path(), header, data);
    let expected =
        format!("`{}` is malformed: {expected}; the file is damaged or comes from a faulty program", path.display());
    assert_eq!(open_error(&path), expected);
}

#[test]
fn a_missing_tensor_is_an_error_with_a_similar_name() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write_safetensors(&path, &[("blk.0.attn_q.weight", numbers(&[2], DType::F32))]);
    let weights = Weights::open(&path).unwrap();
    let error = weights.read("blk.0.atn_q.weight", &Part::Whole, DType::F32, &Device::Cpu).unwrap_err().to_string();
    let expected = "has no tensor `blk.0.atn_q.weight`; did you mean `blk.0.attn_q.weight`?";
    assert_eq!(error, format!("`{}` {expected}", path.display()));
    let error = weights.info("something").unwrap_err().to_string();
    assert_eq!(error, format!("`{}` has no tensor `something`", path.display()));
}

#[test]
fn a_part_outside_of_its_tensor_is_an_error() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write_safetensors(&path, &[("t", numbers(&[2, 3], DType::F32))]);
    let weights = Weights::open(&path).unwrap();
    let error = |part| weights.read("t", &part, DType::F32, &Device::Cpu).unwrap_err().to_string();
    let start = format!("`{}`: tensor `t` of shape [2, 3] has no part ", path.display());
    assert_eq!(
        error(Part::Range { dim: 1, range: 1..4 }),
        format!("{start}[dim 1: 1..4]: the range 1..4 is not inside of 0..3")
    );
    assert_eq!(
        error(Part::Range { dim: 2, range: 0..1 }),
        format!("{start}[dim 2: 0..1]: the tensor has 2 dimensions")
    );
    #[expect(clippy::reversed_empty_ranges)]
    let reversed = Part::Ranges { dim: 0, ranges: vec![0..1, 2..1] };
    assert_eq!(error(reversed), format!("{start}[dim 0: 0..1, 2..1]: the range 2..1 is not inside of 0..2"));
}

#[test]
fn a_file_that_is_cut_is_an_error_that_names_the_tensor_and_its_place() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write_safetensors(&path, &[("t", numbers(&[100], DType::F32))]);
    let weights = Weights::open(&path).unwrap();
    let len = std::fs::metadata(&path).unwrap().len();
    let (needs, rest) = (format!("bytes {}..{len}", len - 400), "copy or download the file again");
    OpenOptions::new().write(true).open(&path).unwrap().set_len(len - 10).unwrap();
    let expected =
        format!("`{}` is truncated: tensor `t` needs {needs}, and the file has {}; {rest}", path.display(), len - 10);
    assert_eq!(open_error(&path), expected);
    // Another process cuts the file while it is open.
    let error = weights.read("t", &Part::Whole, DType::F32, &Device::Cpu).unwrap_err().to_string();
    assert_eq!(error, expected);

    OpenOptions::new().write(true).open(&path).unwrap().set_len(20).unwrap();
    let header = len - 400;
    let expected =
        format!("`{}` is truncated: the header needs bytes 0..{header}, and the file has 20; {rest}", path.display());
    assert_eq!(open_error(&path), expected);
    OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert!(open_error(&path).contains("the header needs bytes 0..8, and the file has 0"));
}

#[test]
fn a_header_that_announces_too_many_bytes_is_refused_before_memory_is_taken() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
    let text = "its header has 18446744073709551615 bytes, and at most 100000000 are allowed";
    assert!(open_error(&path).contains(text), "{}", open_error(&path));
}

#[test]
fn a_header_whose_tensors_do_not_fill_the_file_is_an_error() {
    let row = |name: &str, dtype: &str, shape: &str, start: u64, end: u64| {
        format!(r#""{name}": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": [{start}, {end}]}}"#)
    };
    let header = |rows: &[String]| format!("{{{}}}", rows.join(", "));
    let a = row("a", "F32", "[2]", 0, 8);
    expect_malformed(
        &header(&[a.clone(), row("b", "F32", "[2]", 4, 12)]),
        12,
        "tensor `b` overlaps the tensor before it: it begins at 4, and the tensor before it ends at 8",
    );
    expect_malformed(
        &header(&[a.clone(), row("b", "F32", "[2]", 12, 20)]),
        20,
        "tensor `b` follows a gap: it begins at 12, and the tensor before it ends at 8",
    );
    expect_malformed(
        &header(&[row("a", "F32", "[3]", 0, 8)]),
        8,
        "tensor `a` has 8 bytes, and F32 of shape [3] has 12",
    );
    expect_malformed(
        &header(&[row("a", "F32", "[2]", 8, 0)]),
        8,
        "tensor `a` has the offsets 8..0, which end before they begin",
    );
    expect_malformed(&header(std::slice::from_ref(&a)), 13, "its last 5 bytes belong to no tensor");
    let large = "[4294967296, 4294967296, 0]";
    expect_malformed(
        &header(&[row("a", "F32", large, 0, 0)]),
        0,
        "tensor `a` has the shape [4294967296, 4294967296, 0], whose size in bytes is not a number of 63 bits",
    );
    expect_malformed(
        &header(&[row("a", "U8", "[3]", 0, 3), row("a", "U8", "[3]", 3, 6)]),
        6,
        "its header is not valid: tensor `a` appears twice at line 1 column 64",
    );
    let folder = folder();
    let far =
        raw_safetensors(folder.path(), &header(&[row("a", "U8", "[18446744073709551]", 0, 18446744073709551)]), 8);
    assert!(open_error(&far).contains("tensor `a` needs bytes "), "{}", open_error(&far));
}

#[test]
fn a_header_that_is_no_map_of_tensors_is_an_error() {
    let folder = folder();
    for header in ["", "[]", "{", r#"{"a": 1}"#, r#"{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}}"#] {
        let path = raw_safetensors(folder.path(), header, 0);
        assert!(open_error(&path).contains("is malformed: its header is not valid: "), "{header}");
    }
}

#[test]
fn elements_that_candle_lacks_are_an_error_of_reading_and_not_of_opening() {
    let folder = folder();
    let path =
        raw_safetensors(folder.path(), r#"{"mask": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]}}"#, 3);
    let weights = Weights::open(&path).unwrap();
    let error = weights.read("mask", &Part::Whole, DType::U8, &Device::Cpu).unwrap_err().to_string();
    let expected = "tensor `mask` has elements of BOOL, which candle can't hold; the file is not damaged, use the model in \
                    another type";
    assert_eq!(error, format!("`{}`: {expected}", path.display()));
}

#[test]
fn an_unknown_dtype_is_unsupported() {
    let folder = folder();
    let path = raw_safetensors(folder.path(), r#"{"a": {"dtype": "F12", "shape": [2], "data_offsets": [0, 8]}}"#, 8);
    let expected =
        "tensor `a` has the type `F12`, which is unsupported; the file is newer than this program, or damaged";
    assert_eq!(open_error(&path), format!("`{}`: {expected}", path.display()));
}

#[test]
fn files_that_are_something_else_are_called_what_they_are() {
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 9\n", "0".repeat(64));
    let cases: [(&[u8], &str); 5] = [
        (pointer.as_bytes(), "a pointer of Git LFS in place of the file; run `git lfs pull`, or download the file"),
        (b"\n<!DOCTYPE html>\n<html>", "a web page (HTML), which a failed download leaves; download the file again"),
        (b"tjgg\x03\0\0\0", "an old GGML file (ggml, ggmf or ggjt), from before GGUF"),
        (b"PK\x03\x04data.pkl", "an archive as PyTorch writes it (`pytorch_model.bin`, `.pt`, `.pth`)"),
        (b"\x1f\x8b\x08", "a gzip archive; unpack it"),
    ];
    let folder = folder();
    for name in ["model.safetensors", "model.gguf", "model.safetensors.index.json", "model.bin"] {
        let path = folder.path().join(name);
        for (bytes, what) in cases {
            std::fs::write(&path, bytes).unwrap();
            let error = open_error(&path);
            assert!(error.starts_with(&format!("`{}` is {what}", path.display())), "{error}");
        }
    }
}

#[test]
fn a_header_whose_length_looks_like_an_archive_is_read() {
    let folder = folder();
    for len in [0x0280, 0x8b1f, 0x028020] {
        let text = r#"{"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}"#;
        let path = raw_safetensors(folder.path(), &(text.to_owned() + &" ".repeat(len - text.len())), 2);
        assert!(Weights::open(&path).unwrap().contains("a"), "{len:#x}");
    }
}

#[test]
fn a_file_without_an_extension_is_what_its_first_bytes_say() {
    let folder = folder();
    let path = folder.path().join("sha256-6e9f90f02bb3");
    write_gguf(&path, &[], &[("t", quantized(&[2, 96], GgmlDType::Q4_1))]);
    assert!(Weights::open(&path).unwrap().gguf().is_some());
    write_safetensors(&path, &[("t", numbers(&[2], DType::F32))]);
    assert!(Weights::open(&path).unwrap().contains("t"));
}

#[test]
fn a_dense_tensor_is_not_read_as_quantised() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write_safetensors(&path, &[("t", numbers(&[2], DType::F32))]);
    let error = Weights::open(&path).unwrap().read_quantized("t", &Part::Whole, &Device::Cpu).unwrap_err().to_string();
    let expected = "tensor `t` has elements of f32 and is not quantised; read it as a dense tensor";
    assert_eq!(error, format!("`{}`: {expected}", path.display()));
}

#[test]
fn a_cut_inside_of_a_block_is_an_error_of_reading_quantised() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    write_gguf(&path, &[], &[("t", quantized(&[2, 96], GgmlDType::Q4_1))]);
    let weights = Weights::open(&path).unwrap();
    let part = Part::Range { dim: 1, range: 32..80 };
    let error = weights.read_quantized("t", &part, &Device::Cpu).unwrap_err().to_string();
    let expected = "columns 32..80 of tensor `t` cut a block of GGML Q4_1, which has 32 elements; split in units of 32, \
                    or read the tensor dequantised";
    assert_eq!(error, format!("`{}`: {expected}", path.display()));
}

#[test]
fn an_index_may_only_name_files_of_its_folder_that_exist_and_have_the_tensors() {
    let folder = folder();
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    write_safetensors(&folder.path().join("m.safetensors"), &[("a", numbers(&[2], DType::F32))]);
    write_safetensors(&inner.join("m.safetensors"), &[("a", numbers(&[2], DType::F32))]);
    let index = inner.join("model.safetensors.index.json");
    let error = |tensor: &str, file: &str| {
        let file = serde_json::Value::from(file);
        std::fs::write(&index, format!(r#"{{"weight_map": {{"{tensor}": {file}}}}}"#)).unwrap();
        Weights::open(&inner).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(error("a", "m.safetensors"), Ok(()));
    let absolute = folder.path().join("m.safetensors");
    for outside in ["../m.safetensors", "x/../../m.safetensors", absolute.to_str().unwrap(), "", "."] {
        let expected = format!(
            "the index `{}` names the file `{outside}` for tensor `a`, which is outside of the folder of the index; an \
             index may only name files beside it",
            index.display()
        );
        assert_eq!(error("a", outside), Err(expected));
    }
    let expected = format!(
        "`{}` names the file `{}`, which does not exist; copy or download the missing file",
        index.display(),
        inner.join("gone.safetensors").display()
    );
    assert_eq!(error("a", "gone.safetensors"), Err(expected));
    let expected = format!(
        "the index `{}` assigns tensor `b` to `{}`, and that file lacks the tensor; index and files are of different \
         models",
        index.display(),
        inner.join("m.safetensors").display()
    );
    assert_eq!(error("b", "m.safetensors"), Err(expected));
    std::fs::write(&index, "[]").unwrap();
    assert!(open_error(&index).contains("is malformed: it is not an index of tensors: "));
}

#[test]
fn a_tensor_in_two_files_of_a_folder_is_an_error() {
    let folder = folder();
    for name in ["1.safetensors", "2.safetensors"] {
        write_safetensors(&folder.path().join(name), &[("t", numbers(&[2], DType::F32))]);
    }
    let expected = format!(
        "tensor `t` is in `{}` and in `{}`; a folder without an index may have each tensor once",
        folder.path().join("1.safetensors").display(),
        folder.path().join("2.safetensors").display()
    );
    assert_eq!(open_error(folder.path()), expected);
}

#[test]
fn a_path_that_names_no_weights_or_several_models_is_an_error() {
    let folder = folder();
    let path = folder.path();
    assert_eq!(open_error(path), format!("the folder `{}` has no `.safetensors` or `.gguf` file", path.display()));
    let other = path.join("pytorch_model.bin");
    std::fs::write(&other, "x").unwrap();
    let expected = format!(
        "the folder `{}` has no `.safetensors` or `.gguf` file; it has `pytorch_model.bin`, which is not read: save the \
         model as safetensors with transformers' `save_pretrained`",
        path.display()
    );
    assert_eq!(open_error(path), expected);
    let expected =
        "is no file of weights; pass a `.safetensors` or `.gguf` file, an index (`.json`) or a folder with them";
    assert_eq!(open_error(&other), format!("`{}` {expected}", other.display()));
    for name in ["a.gguf", "b.gguf"] {
        write_gguf(&path.join(name), &[], &[]);
    }
    let expected =
        format!("the folder `{}` has several models: a.gguf, b.gguf; pass the path of one of them", path.display());
    assert_eq!(open_error(path), expected);
    let gone = open_error(&path.join("gone.gguf"));
    assert!(gone.ends_with("looking at the path failed: No such file or directory (os error 2)"), "{gone}");
}
