//! A name for what logits depend on.

use std::fs::File;
use std::io;
use std::path::Path;

use disco_candle::KERNELS;
use disco_candle::weights::Weights;
use disco_core::DeviceKind;
use sha2::{Digest as _, Sha256};

use crate::adapter;
use crate::worker::Load;

/// A digest of what the logits of a sequence of tokens depend on: the bytes of the model's files and of an adapter's, the type of the
/// weights in memory, the version of the kernels, and the kind of the device. The kernels of the host have the same bits on all machines; only
/// the system's `pow`, `log` and `exp`, which make constants of a model when it is loaded, may differ in the last place. It reads all files.
///
/// # Errors
/// A file can't be read.
pub fn fingerprint(weights: &Weights, load: &Load, device: DeviceKind) -> io::Result<String> {
    let mut hash = Sha256::new();
    hash.update(KERNELS.to_le_bytes());
    hash.update(format!("{device:?} {:?}", load.precision));
    let mut add = |path: &Path| {
        let mut file = File::open(path)?;
        hash.update(file.metadata()?.len().to_le_bytes());
        io::copy(&mut file, &mut hash).map(drop)
    };
    weights.files().try_for_each(&mut add)?;
    if weights.gguf().is_none() {
        let path = weights.path();
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
        add(&folder.join("config.json"))?;
    }
    if let Some(folder) = &load.adapter {
        adapter::FILES.into_iter().try_for_each(|file| add(&folder.join(file)))?;
    }
    let digest = hash.finalize();
    Ok(digest[..8].iter().fold("fp_".to_owned(), |text, byte| format!("{text}{byte:02x}")))
}
