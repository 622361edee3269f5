//! Folders of packed matrices, and of adapters, with damage anywhere: an error, or other weights.

#![no_main]

#[allow(dead_code, reason = "this target writes no models of its own")]
#[path = "../../../crates/disco-models/tests/transformer/ours.rs"]
mod ours;
#[allow(dead_code, reason = "`ours` writes models of it")]
#[path = "../../../crates/disco-models/tests/transformer/slow.rs"]
mod slow;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use disco_candle::Comm;
use disco_models::{Adapter, ExpertSplit, ModelError};

disco_fuzz::target!(check, seeds);

/// The folder of the tests of `disco-models`, and those of its folders that are damaged.
const TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/disco-models/tests/formats");
const FORMATS: [&str; 11] = [
    "awq-32",
    "awq-128",
    "gptq-64",
    "gptq-asym-act-order",
    "gptq-v2-channel",
    "compressed-int4-asym",
    "nf4-double",
    "mxfp4",
    "nvfp4",
    "nvfp4-modelopt",
    "lora",
];

/// The configuration and the weights of each format.
static FILES: LazyLock<Vec<[Vec<u8>; 2]>> = LazyLock::new(|| {
    let read = |name: &str| names(name).map(|file| fs::read(Path::new(TESTS).join(name).join(file)).expect("a file"));
    FORMATS.iter().map(|name| read(name)).collect()
});

/// The folder of the copies, in memory where there is such a file system.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = PathBuf::from("/dev/shm");
    let parent = if shared.is_dir() { shared } else { std::env::temp_dir() };
    let folder = parent.join(format!("disco-fuzz-formats-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for copies");
    folder
});

fn names(format: &str) -> [&'static str; 2] {
    match format {
        "lora" => ["adapter_config.json", "adapter_model.safetensors"],
        _ => ["config.json", "model.safetensors"],
    }
}

/// The first byte chooses the format, and each four of the others replace a byte: the file, its place, and the new byte.
fn check(bytes: &[u8]) -> Result<(), ModelError> {
    let Some((first, changes)) = bytes.split_first() else { return Ok(()) };
    let format = usize::from(*first) % FORMATS.len();
    let mut files = FILES[format].clone();
    for change in changes.chunks_exact(4).take(16) {
        let file = &mut files[usize::from(change[0] % 2)];
        // Half of the places are among the first 4 KiB, where the header of weights is.
        let end = if change[0] & 2 == 0 { file.len().min(4096) } else { file.len() };
        let place = usize::from(u16::from_le_bytes([change[1], change[2]])) * end / (1 << 16);
        file[place] = change[3];
    }
    for (name, bytes) in names(FORMATS[format]).into_iter().zip(files) {
        fs::write(FOLDER.join(name), bytes).expect("a file of a copy");
    }
    if FORMATS[format] == "lora" {
        return Adapter::resolve(Path::new(TESTS).join("base"), Some(FOLDER.clone())).map(drop);
    }
    ours::logits(&FOLDER, ExpertSplit::Within, &[1, 2, 3], 2, Comm::alone()).map(drop)
}

fn seeds() -> Vec<Vec<u8>> {
    (0..FORMATS.len() as u8).map(|format| vec![format]).collect()
}
