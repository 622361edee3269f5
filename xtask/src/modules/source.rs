//! A folder's modules and their references, read by following `mod` declarations.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::paths::{self, Paths, Reference};

/// References of the modules of a folder.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Each module's references, with the file of each.
    pub(super) modules: BTreeMap<String, Vec<(PathBuf, Reference)>>,
    /// Names that the folder re-exports, with the module that defines each.
    pub(super) exports: BTreeMap<String, String>,
}

/// A module with those inside it: of a crate, or of a module.
#[derive(Debug)]
pub(super) struct Folder {
    /// The file that declares them.
    pub(super) file: PathBuf,
    /// Where their files are.
    pub(super) path: PathBuf,
    /// The names of the modules from the root of the crate to this one.
    pub(super) module: Vec<String>,
}

impl Source {
    /// Reads the modules of `folder`. `read` returns the text of a file, or `None` if it does not exist.
    ///
    /// # Errors
    /// A file is missing or is not valid Rust.
    pub(super) fn read(folder: &Folder, read: &dyn Fn(&Path) -> Option<String>) -> Result<Self> {
        let mut source = Self::default();
        let file = parse(&folder.file, read)?;
        source.exports.extend(paths::exports(&file));
        for declared in Paths::of(&file, 0, &folder.module).declared {
            source.modules.insert(declared.name.clone(), Vec::new());
            source.add(&declared.name, (&folder.path, &folder.module), &declared.name, 1, read)?;
        }
        Ok(source)
    }

    /// Adds the file of the module `name`, declared in `folder`, and those below it.
    fn add(
        &mut self,
        top: &str,
        (folder, module): (&Path, &[String]),
        name: &str,
        depth: usize,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<()> {
        let path = file_of(folder, name, read);
        let paths = Paths::of(&parse(&path, read)?, depth, module);
        let references = self.modules.entry(top.to_owned()).or_default();
        references.extend(paths.references.into_iter().map(|reference| (path.clone(), reference)));
        for declared in paths.declared {
            let below = declared.inline.iter().fold(folder.join(name), |folder, name| folder.join(name));
            self.add(top, (&below, module), &declared.name, depth + 1 + declared.inline.len(), read)?;
        }
        Ok(())
    }
}

impl Folder {
    /// The folder of a crate whose root is the file `root`.
    pub(super) fn of_crate(root: &Path) -> Self {
        Self { file: root.into(), path: root.parent().unwrap_or(Path::new("")).into(), module: Vec::new() }
    }

    /// This folder and all below it, with the modules that each declares in files of their own.
    ///
    /// # Errors
    /// A file is missing or is not valid Rust.
    pub(super) fn all(self, read: &dyn Fn(&Path) -> Option<String>) -> Result<Vec<Self>> {
        let mut open = vec![self];
        let mut all = Vec::new();
        while let Some(folder) = open.pop() {
            for declared in Paths::of(&parse(&folder.file, read)?, 0, &[]).declared {
                let inside = declared.inline.iter().fold(folder.path.clone(), |folder, name| folder.join(name));
                let file = file_of(&inside, &declared.name, read);
                let module = folder.module.iter().chain(&declared.inline).chain([&declared.name]).cloned().collect();
                open.push(Self { file, path: inside.join(&declared.name), module });
            }
            all.push(folder);
        }
        Ok(all)
    }
}

/// The file of the module `name`, declared in `folder`.
fn file_of(folder: &Path, name: &str, read: &dyn Fn(&Path) -> Option<String>) -> PathBuf {
    let [flat, nested] = [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")];
    if read(&flat).is_some() { flat } else { nested }
}

fn parse(path: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<syn::File> {
    let text = read(path).with_context(|| format!("no file {}", path.display()))?;
    syn::parse_file(&text).with_context(|| format!("{} is no Rust", path.display()))
}
