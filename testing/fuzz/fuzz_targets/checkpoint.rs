//! The index of a checkpoint, without its checksum: refused, or parts that are inside of their shards and make whole tensors.

#![no_main]

use disco_checkpoint::{Error, fuzzing};

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), Error> {
    // Bytes that are not UTF-8 are refused when the file is read.
    let Ok(text) = std::str::from_utf8(bytes) else { return Ok(()) };
    fuzzing::index(text)
}

fn seeds() -> Vec<Vec<u8>> {
    let shard = |worker| {
        format!(
            r#"{{"worker": {worker}, "file": "worker-{worker}-of-2.safetensors", "bytes": 48, "header_bytes": 16, "header_crc32": "00000000"}}"#
        )
    };
    let part = |worker, shape, start, offset| {
        format!(
            r#"{{"worker": {worker}, "dtype": "F32", "shape": {shape}, "start": {start}, "offset": {offset}, "crc32": "0000000f"}}"#
        )
    };
    let tensor = |layout, parts: &[String]| format!(r#"{{"layout": {layout}, "parts": [{}]}}"#, parts.join(", "));
    let tensors = [
        tensor(r#""replicated""#, &[part(0, "[2, 2]", 0, 16)]),
        tensor(r#"{"split": {"dim": 1, "over": "world"}}"#, &[part(0, "[2, 1]", 0, 32), part(1, "[2, 3]", 1, 16)]),
        tensor(r#"{"split": {"dim": 0, "over": "group"}}"#, &[part(0, "[1]", 0, 40), part(1, "[1]", 1, 40)]),
        tensor(r#""per_worker""#, &[part(1, "[]", 0, 44)]),
    ];
    let tensors: Vec<_> = tensors.iter().zip('a'..).map(|(tensor, name)| format!(r#""{name}": {tensor}"#)).collect();
    let index = format!(
        r#"{{"version": 1, "step": 7, "workers": 2, "groups": 1, "notes": {{"seed": "1"}}, "shards": [{}, {}], "tensors": {{{}}}}}"#,
        shard(0),
        shard(1),
        tensors.join(", ")
    );
    vec![index.into_bytes()]
}
