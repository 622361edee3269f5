//! A crate's modules and their references, read by following `mod` declarations.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::paths::{self, Paths, Reference};

/// References of the top-level modules of a crate.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Each module's references, with the file of each.
    pub(super) modules: BTreeMap<String, Vec<(PathBuf, Reference)>>,
    /// Names that the root re-exports, with the module that defines each.
    pub(super) exports: BTreeMap<String, String>,
}

impl Source {
    /// Reads the crate whose root is the file `root`. `read` returns the text of a file, or `None` if it does not
    /// exist.
    ///
    /// # Errors
    /// A file is missing or is not valid Rust.
    pub(super) fn read(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Self> {
        let mut source = Self::default();
        let file = parse(root, read)?;
        source.exports.extend(paths::exports(&file));
        let folder = root.parent().unwrap_or(Path::new(""));
        for declared in Paths::of(&file, 0).declared {
            source.modules.insert(declared.name.clone(), Vec::new());
            source.add(&declared.name, folder, &declared.name, 1, read)?;
        }
        Ok(source)
    }

    /// Adds the file of the module `name`, declared in `folder`, and those below it.
    fn add(
        &mut self,
        top: &str,
        folder: &Path,
        name: &str,
        depth: usize,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<()> {
        let [flat, nested] = [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")];
        let path = if read(&flat).is_some() { flat } else { nested };
        let paths = Paths::of(&parse(&path, read)?, depth);
        let references = self.modules.entry(top.to_owned()).or_default();
        references.extend(paths.references.into_iter().map(|reference| (path.clone(), reference)));
        for declared in paths.declared {
            let below = declared.inline.iter().fold(folder.join(name), |folder, name| folder.join(name));
            self.add(top, &below, &declared.name, depth + 1 + declared.inline.len(), read)?;
        }
        Ok(())
    }
}

fn parse(path: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<syn::File> {
    let text = read(path).with_context(|| format!("no file {}", path.display()))?;
    syn::parse_file(&text).with_context(|| format!("{} is no Rust", path.display()))
}
