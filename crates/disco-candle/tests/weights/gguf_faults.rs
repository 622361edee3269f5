//! Headers of GGUF that no program writes: each is an error with a text, and takes no memory beyond the file's length.

use std::path::PathBuf;

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device};
use disco_candle::weights::{Part, Weights};
use tempfile::TempDir;

use super::files::*;

/// Bytes of a header of version 3.
pub(super) struct Header(pub(super) Vec<u8>);

impl Header {
    pub(super) fn new(tensors: u64, metadata: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(3).u64(tensors).u64(metadata)
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn string(mut self, text: &str) -> Self {
        self = self.u64(text.len() as u64);
        self.0.extend(text.as_bytes());
        self
    }

    /// A tensor with its dimensions, innermost first.
    pub(super) fn tensor(self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        let header = self.string(name).u32(dims.len() as u32);
        dims.iter().fold(header, |header, dim| header.u64(*dim)).u32(kind).u64(offset)
    }

    /// Zeros up to the data, and `data` bytes of it.
    pub(super) fn data(mut self, data: usize) -> Self {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + data, 0);
        self
    }

    pub(super) fn write(self) -> (TempDir, PathBuf) {
        let folder = folder();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, self.0).unwrap();
        (folder, path)
    }

    #[track_caller]
    fn expect_malformed(self, expected: &str) {
        self.expect_error(&format!("is malformed: {expected}; the file is damaged or comes from a faulty program"));
    }

    /// Expects an error that begins with the file.
    #[track_caller]
    fn expect_error(self, expected: &str) {
        let (_folder, path) = self.write();
        let error = Weights::open(&path).unwrap_err().to_string();
        let end = error.strip_prefix(&format!("`{}`", path.display()));
        assert_eq!(end.map(|end| end.trim_start_matches([':', ' '])), Some(expected));
    }
}

const F32: u32 = 0;
const Q4_0: u32 = 2;
const Q1_0: u32 = 41;
const UINT8: u32 = 0;
const UINT32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

#[test]
fn a_well_formed_header_is_read() {
    let header = Header::new(2, 0).tensor("a", &[4], F32, 0).tensor("b", &[32, 2], Q4_0, 32).data(32 + 36);
    let (_folder, path) = header.write();
    let weights = Weights::open(&path).unwrap();
    assert_eq!(weights.info("b").unwrap().shape(), [2, 32]);
    assert_eq!(weights.info("b").unwrap().bytes(), 2 * 18);
}

#[test]
fn files_of_other_formats_and_versions_are_refused() {
    Header(b"GGML\0\0\0\0".to_vec()).expect_malformed("it does not begin with `GGUF`");
    let swapped = Header(b"GGUF".to_vec()).u32(3u32.swap_bytes());
    swapped.expect_error(
        "is a big-endian GGUF file, which is not read; convert the original model on a little-endian machine",
    );
    Header(b"GGUF".to_vec()).u32(9).expect_malformed("it has version 9 of GGUF, and 1, 2 and 3 are known");
}

#[test]
fn counts_and_lengths_beyond_the_file_are_refused() {
    Header::new(u64::MAX, 0)
        .expect_malformed("its header announces 18446744073709551615 tensors at byte 24, and has room for 0 bytes");
    Header::new(0, 1 << 40)
        .expect_malformed("its header announces 1099511627776 metadata entries at byte 24, and has room for 0 bytes");
    Header::new(0, 1).u64(u64::MAX).u64(0).expect_malformed(
        "its header announces 18446744073709551615 bytes of a string at byte 32, and has room for 8 bytes",
    );
    let array = Header::new(0, 1).string("k").u32(ARRAY);
    array.u32(UINT8).u64(1 << 60).data(0).expect_malformed(
        "its header announces 1152921504606846976 elements of an array at byte 49, and has room for 15 bytes",
    );
}

#[test]
fn arrays_that_nest_deeply_are_refused() {
    let mut header = Header::new(0, 1).string("k").u32(ARRAY);
    for _ in 0..1000 {
        header = header.u32(ARRAY).u64(1);
    }
    header.expect_malformed("its metadata entry `k` nests more than 8 arrays");
}

#[test]
fn metadata_of_unknown_types_or_with_one_key_twice_is_refused() {
    Header::new(0, 1).string("k").u32(77).u64(0).expect_malformed("its metadata entry `k` has the unknown type 77");
    Header::new(0, 1).string("k").u32(7).u32(9).expect_malformed("its metadata entry `k` has the truth value 9");
    let twice = Header::new(0, 2).string("k").u32(UINT32).u32(1).string("k").u32(STRING).string("text");
    twice.expect_malformed("its metadata has `k` twice");
}

#[test]
fn an_alignment_that_is_no_power_of_two_is_refused() {
    for alignment in [0, 24] {
        Header::new(0, 1)
            .string("general.alignment")
            .u32(UINT32)
            .u32(alignment)
            .expect_malformed(&format!("its `general.alignment` is U32({alignment}), which is not a power of two"));
    }
}

#[test]
fn a_type_that_candle_lacks_is_an_error_of_reading_and_not_of_opening() {
    let header = Header::new(2, 0).tensor("a", &[256, 2], Q1_0, 0).tensor("b", &[4], F32, 96).data(96 + 16);
    let (_folder, path) = header.write();
    let weights = Weights::open(&path).unwrap();
    assert_eq!(weights.info("a").unwrap().bytes(), 2 * 36);
    weights.read("b", &Part::Whole, DType::F32, &Device::Cpu).unwrap();
    let error = weights.read("a", &Part::Whole, DType::F32, &Device::Cpu).unwrap_err().to_string();
    let expected = "tensor `a` has elements of Q1_0, which candle can't hold; the file is not damaged, use the model in \
                    another type";
    assert_eq!(error, format!("`{}`: {expected}", path.display()));
}

#[test]
fn a_type_that_is_not_known_is_an_error() {
    Header::new(1, 0).tensor("t", &[4], 99, 0).expect_error(
        "tensor `t` has the type 99 of GGML, which is unsupported; the file is newer than this program, or damaged",
    );
}

#[test]
fn tensors_that_break_the_rules_are_refused() {
    Header::new(1, 0)
        .tensor("t", &[1; 5], F32, 0)
        .expect_malformed("tensor `t` has 5 dimensions, and at most 4 are allowed");
    Header::new(1, 0)
        .tensor("t", &[48, 2], Q4_0, 0)
        .data(54)
        .expect_malformed("tensor `t` has the shape [2, 48], whose last dimension is not whole blocks of 32 elements");
    Header::new(1, 0).tensor("t", &[1 << 32, 1 << 32, 0], F32, 0).data(0).expect_malformed(
        "tensor `t` has the shape [0, 4294967296, 4294967296], whose size in bytes is not a number of 63 bits",
    );
    Header::new(1, 0)
        .tensor("t", &[4], F32, 8)
        .data(32)
        .expect_malformed("tensor `t` begins at 8, which is not a multiple of the alignment 32");
    Header::new(2, 0).tensor("a", &[16], F32, 0).tensor("b", &[4], F32, 32).data(64).expect_malformed(
        "tensor `b` overlaps the tensor before it: it begins at 32, and the tensor before it ends at 64",
    );
    Header::new(2, 0)
        .tensor("a", &[4], F32, 0)
        .tensor("a", &[4], F32, 32)
        .data(64)
        .expect_malformed("tensor `a` appears twice");
}

#[test]
fn tensors_and_headers_beyond_the_end_of_the_file_are_truncated() {
    let (_folder, path) = Header::new(1, 0).tensor("t", &[16], F32, 0).data(60).write();
    let error = Weights::open(&path).unwrap_err().to_string();
    let expected = format!(
        "`{}` is truncated: tensor `t` needs bytes 64..128, and the file has 124; copy or download the file again",
        path.display()
    );
    assert_eq!(error, expected);

    // Every prefix of a file of candle is an error, too.
    let folder = folder();
    let path = folder.path().join("model.gguf");
    write_gguf(&path, &[], &[("t", quantized(&[2, 32], GgmlDType::Q4_0))]);
    let bytes = std::fs::read(&path).unwrap();
    let data = 2 * GgmlDType::Q4_0.type_size();
    let padding = data.next_multiple_of(32) - data;
    for len in 0..bytes.len() - padding {
        std::fs::write(&path, &bytes[..len]).unwrap();
        let error = Weights::open(&path).unwrap_err().to_string();
        assert!(error.contains("is truncated: ") || error.contains("its header announces "), "{len}: {error}");
    }
}
