//! `tensor-cache.json` of TVM's weights, and behind a zero byte the shard info: refused, or parameters that are inside of
//! their files.

#![no_main]

use disco_core::{Error, Result};
use disco_ffi::Shards;

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<()> {
    let text = std::str::from_utf8(bytes).map_err(|error| Error::invalid(error.to_string()))?;
    let (metadata, info) = text.split_once('\0').unwrap_or((text, ""));
    let mut shards = Shards::new("tensor-cache.json", metadata);
    shards.info = Some(info.to_owned());
    shards.check()
}

fn seeds() -> Vec<Vec<u8>> {
    let parameter = |name, dtype, format, bytes, offset| {
        format!(
            r#"{{"name": "{name}", "shape": [2, 3], "dtype": "{dtype}", "format": "{format}", "nbytes": {bytes}, "byteOffset": {offset}}}"#
        )
    };
    let records = [
        parameter("param_0", "float32", "f32-to-bf16", 12, 0),
        parameter("param_1", "uint8", "raw", 6, 12),
        parameter("param_2", "float8_e4m3fn", "raw", 6, 18),
    ];
    let records = records.join(", ");
    let metadata = format!(
        r#"{{"metadata": {{}}, "records": [{{"dataPath": "a/b.bin", "format": "raw-shard", "nbytes": 24, "records": [{records}]}}]}}"#
    );
    let info = r#"{"param_0": [["cut", [[2, 1, 3], "float16"], 1, -2], ["turn", [[2, 3, 1], "float16"]]]}"#;
    vec![metadata.clone().into_bytes(), format!("{metadata}\0{info}").into_bytes()]
}
