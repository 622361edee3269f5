//! Folders in which loaders find the double, under the names of the libraries that it replaces.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{env, fs, io, process};

/// File names of the double in place of NVIDIA's libraries.
pub const NAMES: [&str; 4] = ["libcuda.so.1", "libcuda.so", "libnccl.so.2", "libnvidia-ml.so.1"];
/// File names of the double in place of AMD's libraries.
pub const HIP_NAMES: [&str; 2] = ["libamdhip64.so.6", "librccl.so.1"];

/// A folder for `LD_LIBRARY_PATH` with links of NVIDIA's names, beside the shared object that cargo has built for this
/// program.
///
/// # Panics
/// The shared object is missing, or the folder can't be created.
pub fn folder() -> PathBuf {
    with("gpu-double", &NAMES, |_| {})
}

/// A folder with links of AMD's names. Loaders load another image of the double from it, with its own memory.
///
/// # Panics
/// See [`folder`].
pub fn hip_folder() -> PathBuf {
    with("gpu-double-hip", &HIP_NAMES, |_| {})
}

/// A folder named `what` with links of `names` to a changed copy of the shared object. Use the same name for the same
/// change only.
///
/// # Panics
/// See [`folder`].
pub fn with(what: &str, names: &[&str], change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    make(what, names, change).unwrap_or_else(|error| panic!("the test double can't be found: {error}"))
}

/// Hides a function of a shared object: replaces the first character of its name in the symbol table.
///
/// # Panics
/// The object has no such function.
pub fn hide(object: &mut [u8], function: &str) {
    let name = format!("\0{function}\0").into_bytes();
    let mut found = 0;
    for at in 0..object.len().saturating_sub(name.len()) {
        if object[at..].starts_with(&name) {
            object[at + 1] = b'x';
            found += 1;
        }
    }
    assert!(found > 0, "the shared object has no function {function}");
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

/// Creates a file atomically, because other processes may create or read it at the same time. A file that is already
/// right is kept, so that a loader that opens it by several names finds the same file.
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
