//! The packages of the workspace, as cargo describes them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Deserialize;

use crate::built::{self, root};

/// A package.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    /// The registries that it may be published to; `None` for any.
    pub(crate) publish: Option<Vec<String>>,
    pub(crate) features: BTreeMap<String, Vec<String>>,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
}

/// A dependency.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
}

/// A target, such as a library or a test program.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) kind: Vec<String>,
    pub(crate) name: String,
    /// The features that it needs.
    #[serde(default, rename = "required-features")]
    pub(crate) required_features: Vec<String>,
}

/// The packages of the workspace.
///
/// # Errors
/// Cargo fails.
pub(crate) fn packages() -> Result<Vec<Package>> {
    built::packages(&["--no-deps"])
}

impl Package {
    /// Its folder, relative to the root of the workspace: empty for the facade.
    pub(crate) fn folder(&self) -> PathBuf {
        let folder = self.manifest_path.parent().unwrap_or(Path::new(""));
        folder.strip_prefix(root()).unwrap_or(folder).to_owned()
    }

    /// The names of its targets of a kind.
    pub(crate) fn targets_of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Target> {
        self.targets.iter().filter(move |target| target.kind.iter().any(|it| it == kind))
    }
}
