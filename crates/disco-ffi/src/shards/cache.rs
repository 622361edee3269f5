//! The content of `tensor-cache.json`.
//!
//! ```text
//! {"metadata": …, "records": [
//!   {"dataPath": "params_shard_0.bin", "format": "raw-shard", "nbytes": 256, "md5sum": …, "records": [
//!     {"name": "param_0", "shape": [4, 16], "dtype": "float32", "format": "raw", "nbytes": 256, "byteOffset": 0}, …]}, …]}
//! ```
//!
//! The files are beside `tensor-cache.json`. The format `f32-to-bf16` stores the upper halves of `float32` elements;
//! elements of other dtypes are stored as they are. TVM reads the file in `src/runtime/vm/tensor_cache_support.cc`.

use std::collections::HashMap;
use std::path::{Component, Path};

use disco_core::{DType, Error, Result, Shape};
use serde::Deserialize;

/// Largest size of the text, in bytes.
const MAX_TEXT_BYTES: usize = 64 << 20;

#[derive(Deserialize)]
struct Document {
    records: Vec<FileRecord>,
}

#[derive(Deserialize)]
struct FileRecord {
    #[serde(rename = "dataPath")]
    data_path: String,
    format: String,
    nbytes: u64,
    #[serde(rename = "md5sum")]
    md5: Option<String>,
    records: Vec<ParameterRecord>,
}

#[derive(Deserialize)]
struct ParameterRecord {
    name: String,
    shape: Vec<i64>,
    dtype: String,
    format: String,
    nbytes: u64,
    #[serde(rename = "byteOffset")]
    byte_offset: u64,
}

/// A file with elements of parameters.
#[derive(Debug)]
pub(super) struct DataFile {
    /// The path, relative to the folder of `tensor-cache.json`.
    pub(super) path: String,
    pub(super) bytes: u64,
    /// The MD5 sum of the whole file, in lower-case hexadecimal digits.
    pub(super) md5: Option<String>,
}

/// A parameter, whose elements are in a file.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    /// Whether the file has the upper halves of `f32` elements.
    pub(super) is_halved: bool,
    pub(super) file: usize,
    pub(super) offset: u64,
}

/// Files and parameters, in the order of the text.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) files: Vec<DataFile>,
    pub(super) parameters: Vec<Parameter>,
    by_name: HashMap<String, usize>,
}

impl Cache {
    /// Parses and checks the text of `tensor-cache.json`. `path` is its path, for errors.
    ///
    /// # Errors
    /// The text is invalid; the error names the file and the parameter.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self> {
        let wrong = |what: String| Error::invalid(format!("`{}`: {what}", path.display()));
        if text.len() > MAX_TEXT_BYTES {
            return Err(wrong(format!("{} bytes of metadata; at most {MAX_TEXT_BYTES} are read", text.len())));
        }
        let document: Document =
            serde_json::from_str(text).map_err(|error| wrong(format!("no metadata of tensors: {error}")))?;
        let mut cache = Self { files: Vec::new(), parameters: Vec::new(), by_name: HashMap::new() };
        for file in document.records {
            let data_path = file.data_path.clone();
            cache.add(file).map_err(|what| wrong(format!("file `{data_path}`: {what}")))?;
        }
        Ok(cache)
    }

    fn add(&mut self, file: FileRecord) -> Result<(), String> {
        if file.format != "raw-shard" {
            return Err(format!("the format is `{}`; only `raw-shard` is known", file.format));
        }
        let is_inside = Path::new(&file.data_path).components().all(|part| matches!(part, Component::Normal(_)));
        if !is_inside || file.data_path.is_empty() {
            return Err("the path is no file beside the metadata".to_owned());
        }
        for record in file.records {
            let name = record.name.clone();
            let parameter = record.check(self.files.len(), file.nbytes);
            let parameter = parameter.map_err(|what| format!("parameter `{name}`: {what}"))?;
            if self.by_name.insert(name.clone(), self.parameters.len()).is_some() {
                return Err(format!("parameter `{name}`: the name is there twice"));
            }
            self.parameters.push(parameter);
        }
        let md5 = file.md5.map(|sum| sum.to_ascii_lowercase());
        self.files.push(DataFile { path: file.data_path, bytes: file.nbytes, md5 });
        Ok(())
    }

    /// The parameter of this name.
    pub(super) fn find(&self, name: &str) -> Option<&Parameter> {
        self.by_name.get(name).map(|index| &self.parameters[*index])
    }
}

impl ParameterRecord {
    fn check(self, file: usize, file_bytes: u64) -> Result<Parameter, String> {
        let dtype = dtype(&self.dtype).ok_or_else(|| format!("the dtype `{}` is not known", self.dtype))?;
        let is_halved = match self.format.as_str() {
            "raw" => false,
            "f32-to-bf16" => dtype == DType::F32,
            other => return Err(format!("the format is `{other}`; `raw` and `f32-to-bf16` are known")),
        };
        let shape = Shape::from(&self.shape[..]);
        let size = if is_halved { 2 } else { dtype.size() as u64 };
        let bytes = shape.elements().and_then(|elements| (elements as u64).checked_mul(size));
        let bytes = bytes.ok_or_else(|| format!("the shape {shape} has no size"))?;
        if bytes != self.nbytes {
            return Err(format!("{dtype}{shape} has {bytes} bytes in the file, but the metadata says {}", self.nbytes));
        }
        let end = self.byte_offset.checked_add(bytes);
        if end.is_none_or(|end| end > file_bytes) {
            let offset = self.byte_offset;
            return Err(format!("{bytes} bytes from {offset} leave the file, which has {file_bytes} bytes"));
        }
        let (name, offset) = (self.name, self.byte_offset);
        Ok(Parameter { name, dtype, shape, is_halved, file, offset })
    }
}

/// The dtype of TVM's name.
pub(super) fn dtype(name: &str) -> Option<DType> {
    const OTHER: [(&str, DType); 4] = [
        ("bool", DType::Bool),
        ("bfloat16", DType::BF16),
        ("float8_e4m3fn", DType::F8E4M3),
        ("float8_e5m2", DType::F8E5M2),
    ];
    if let Some((_, dtype)) = OTHER.iter().find(|(known, _)| *known == name) {
        return Some(*dtype);
    }
    let (letter, bits) = [("float", "f"), ("uint", "u"), ("int", "i")]
        .iter()
        .find_map(|(prefix, letter)| Some((letter, name.strip_prefix(prefix)?)))?;
    format!("{letter}{bits}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text with one file of 64 bytes and one parameter, after replacing a part of the text.
    fn parse(replaced: &str, by: &str) -> Result<Cache> {
        let text = r#"{"metadata": {}, "records": [{"dataPath": "w.bin", "format": "raw-shard", "nbytes": 64, "records": [
            {"name": "param_0", "shape": [2, 4], "dtype": "float32", "format": "raw", "nbytes": 32, "byteOffset": 32}]}]}"#;
        assert!(text.contains(replaced), "{replaced}");
        Cache::parse(Path::new("m/tensor-cache.json"), &text.replacen(replaced, by, 1))
    }

    #[test]
    fn each_damage_of_the_metadata_is_an_error_with_file_and_parameter() {
        let cases = [
            (r#""raw-shard""#, r#""zip""#, "file `w.bin`: the format is `zip`; only `raw-shard` is known"),
            ("w.bin", "../w.bin", "file `../w.bin`: the path is no file beside the metadata"),
            ("w.bin", "/w.bin", "file `/w.bin`: the path is no file beside the metadata"),
            ("w.bin", "", "file ``: the path is no file beside the metadata"),
            ("float32", "float31", "file `w.bin`: parameter `param_0`: the dtype `float31` is not known"),
            (r#""raw""#, r#""gz""#, "parameter `param_0`: the format is `gz`; `raw` and `f32-to-bf16` are known"),
            ("[2, 4]", "[2, -4]", "parameter `param_0`: the shape [2, -4] has no size"),
            ("[2, 4]", "[4611686018427387904, 4]", "has no size"),
            ("[2, 4]", "[2, 5]", "parameter `param_0`: f32[2, 5] has 40 bytes in the file, but the metadata says 32"),
            (r#""byteOffset": 32"#, r#""byteOffset": 33"#, "32 bytes from 33 leave the file, which has 64 bytes"),
            (r#""byteOffset": 32"#, r#""byteOffset": 18446744073709551615"#, "leave the file, which has 64 bytes"),
            ("64", "-64", "no metadata of tensors: "),
            ("{\"metadata\"", "[\"metadata\"", "no metadata of tensors: "),
        ];
        for (replaced, by, expected) in cases {
            let text = parse(replaced, by).unwrap_err().to_string();
            assert!(text.starts_with("`m/tensor-cache.json`: ") && text.contains(expected), "{by}: {text}");
        }
        let twice = r#"}, {"name": "param_0", "shape": [0], "dtype": "int8", "format": "raw", "nbytes": 0, "byteOffset": 0}]}]}"#;
        let text = parse("}]}]}", twice).unwrap_err().to_string();
        assert!(text.ends_with("file `w.bin`: parameter `param_0`: the name is there twice"), "{text}");
    }

    #[test]
    fn a_parameter_has_its_place_in_its_file() {
        let cache = parse("metadata", "metadata").unwrap();
        let parameter = cache.find("param_0").unwrap();
        assert_eq!((parameter.dtype, parameter.offset), (DType::F32, 32));
        assert_eq!(parameter.shape, Shape::from([2, 4]));
        assert!(cache.find("param_1").is_none());
    }

    #[test]
    fn only_float32_is_stored_in_halves() {
        let halved = parse(r#""raw", "nbytes": 32"#, r#""f32-to-bf16", "nbytes": 16"#).unwrap();
        assert!(halved.parameters[0].is_halved);
        let text = r#""dtype": "float32", "format": "raw""#;
        let int = parse(text, r#""dtype": "int32", "format": "f32-to-bf16""#).unwrap();
        assert!(!int.parameters[0].is_halved);
    }

    #[test]
    fn dtypes_have_tvm_s_names() {
        let names = ["float32", "float16", "bfloat16", "int8", "uint32", "bool", "float8_e4m3fn", "float8_e5m2"];
        let known = names.map(|name| dtype(name).unwrap().name());
        assert_eq!(known, ["f32", "f16", "bf16", "i8", "u32", "bool", "f8e4m3", "f8e5m2"]);
        for unknown in ["float", "f32", "float32x4", "int4", "handle", ""] {
            assert_eq!(dtype(unknown), None, "{unknown}");
        }
    }
}
