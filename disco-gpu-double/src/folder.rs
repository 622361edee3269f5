//! Where loaders find the double, under the names of what it stands for.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{env, fs, io, process};

/// What it is found as where it stands for NVIDIA's libraries.
pub const NAMES: [&str; 4] = ["libcuda.so.1", "libcuda.so", "libnccl.so.2", "libnvidia-ml.so.1"];
/// What it is found as where it stands for AMD's.
pub const HIP_NAMES: [&str; 2] = ["libamdhip64.so.6", "librccl.so.1"];

/// A folder for `LD_LIBRARY_PATH`, beside the shared object that cargo has built for the program that asks: links of
/// NVIDIA's names.
///
/// # Panics
/// The shared object is not there, or the folder can't be made.
pub fn folder() -> PathBuf {
    with("gpu-double", &NAMES, |_| {})
}

/// The same of AMD's names, in a folder of its own: a loader has another image of the double there, with another memory.
///
/// # Panics
/// As [`folder`].
pub fn hip_folder() -> PathBuf {
    with("gpu-double-hip", &HIP_NAMES, |_| {})
}

/// The same of some names, and of an object that was changed: `what` is the folder's name, alike for what is alike.
///
/// # Panics
/// As [`folder`].
pub fn with(what: &str, names: &[&str], change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    make(what, names, change).unwrap_or_else(|error| panic!("the test double can't be found: {error}"))
}

/// Takes a function out of an object: it has another name then.
///
/// # Panics
/// It is not there.
pub fn hide(object: &mut [u8], function: &str) {
    let name = format!("\0{function}\0").into_bytes();
    let mut found = 0;
    for at in 0..object.len().saturating_sub(name.len()) {
        if object[at..].starts_with(&name) {
            object[at + 1] = b'x';
            found += 1;
        }
    }
    assert!(found > 0, "there is no {function}");
}

fn make(what: &str, names: &[&str], change: impl FnOnce(&mut Vec<u8>)) -> io::Result<PathBuf> {
    let program = env::current_exe()?;
    let near = program.ancestors().skip(1).take(2).flat_map(|folder| [folder.join("deps"), folder.to_owned()]);
    let object = near.map(|folder| folder.join("libdisco_gpu_double.so")).find(|object| object.is_file());
    let object = object.ok_or_else(|| io::Error::other("libdisco_gpu_double.so is not beside this program"))?;
    let folder = object.with_file_name(what);
    fs::create_dir_all(&folder)?;
    let mut bytes = fs::read(&object)?;
    change(&mut bytes);
    let is_made = |file: &Path| fs::read(file).is_ok_and(|found| found == bytes);
    place(&folder.join("double.so"), is_made, |file| fs::write(file, &bytes))?;
    let is_made = |link: &Path| fs::read_link(link).is_ok_and(|to| to == Path::new("double.so"));
    for name in names {
        place(&folder.join(name), is_made, |link| std::os::unix::fs::symlink("double.so", link))?;
    }
    Ok(folder)
}

/// Makes a file that others may make or read at the same time. One that is right already stays the file it is: a loader that has
/// opened it under one name must not find another under the next.
fn place(at: &Path, is_made: impl Fn(&Path) -> bool, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if is_made(at) {
        return Ok(());
    }
    let own = at.with_extension(process::id().to_string());
    make(&own)?;
    fs::rename(&own, at)
}
