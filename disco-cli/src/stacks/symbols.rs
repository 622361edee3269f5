//! Names of functions and places in the source.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use addr2line::{Loader, demangle_auto};

use super::Frame;
use super::maps::Mapping;

/// The symbols of files, read once.
#[derive(Default)]
pub(super) struct Symbols {
    files: HashMap<PathBuf, Option<Loader>>,
}

impl Symbols {
    /// Adds the functions at an address of a process: several if functions were inlined, the innermost first. `offset` is
    /// what its addresses exceed those of the file by.
    pub(super) fn resolve(&mut self, mapping: &Mapping, offset: Option<u64>, address: u64, to: &mut Vec<Frame>) {
        let Some((path, offset)) = mapping.path.as_ref().zip(offset) else {
            let name = if mapping.name.is_empty() { "code without a file" } else { &mapping.name };
            return to.push(Frame { code: format!("{name} {address:#x}"), ..Frame::default() });
        };
        let address = address.wrapping_sub(offset);
        let name = Path::new(&mapping.name).file_name().unwrap_or_default().display();
        let code = format!("{name} {address:#x}");
        let loader = self.files.entry(path.clone()).or_insert_with(|| Loader::new(path).ok());
        let frames = loader.as_ref().map(|loader| of_file(loader, address)).unwrap_or_default();
        if frames.is_empty() {
            to.push(Frame { code, ..Frame::default() })
        } else {
            to.extend(frames.into_iter().map(|frame| Frame { code: code.clone(), ..frame }))
        }
    }
}

/// The functions by debug information, or by the table of symbols.
fn of_file(loader: &Loader, address: u64) -> Vec<Frame> {
    let mut found = Vec::new();
    if let Ok(mut frames) = loader.find_frames(address) {
        while let Ok(Some(frame)) = frames.next() {
            let function = frame.function.and_then(|name| Some(name.demangle().ok()?.into_owned()));
            let location = frame.location.and_then(|location| Some((location.file?.to_owned(), location.line)));
            let location = location.map(|(file, line)| place(&file, line));
            found.push(Frame { function, location, ..Frame::default() });
        }
    }
    // The last function is the one that is not inlined. Its symbol has the whole path, debug information perhaps not.
    if let Some(function) = symbol(loader, address) {
        match found.last_mut() {
            Some(frame) => frame.function = Some(function),
            None => found.push(Frame { function: Some(function), ..Frame::default() }),
        }
    }
    found
}

fn symbol(loader: &Loader, address: u64) -> Option<String> {
    loader.find_symbol(address).map(|name| demangle_auto(Cow::Borrowed(name), None).into_owned())
}

fn place(file: &str, line: Option<u32>) -> String {
    // Files of the standard library: `/rustc/HASH/library/…`.
    let file = file.strip_prefix("/rustc/").and_then(|rest| rest.split_once('/')).map_or(file, |(_, file)| file);
    line.map_or_else(|| file.to_owned(), |line| format!("{file}:{line}"))
}
