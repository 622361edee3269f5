//! Finds libraries that Python packages have installed.
//!
//! Environments are searched in this order: that of the interpreter in this process, the active one (`VIRTUAL_ENV`, `CONDA_PREFIX`), the environment of each
//! `python3` on the `PATH`, which need not be active, this user's packages, the system's packages.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fs};

const SYSTEM: [&str; 2] = ["/usr/local", "/usr"];

/// The environment of the interpreter that runs in this process.
static OWN: OnceLock<PathBuf> = OnceLock::new();

/// Searches this environment first: that of the interpreter in this process, which need not be the active one. A second
/// call changes nothing.
pub fn set_own_environment(prefix: PathBuf) {
    OWN.get_or_init(|| prefix);
}

/// Paths of `files` that exist in the package folders of the environments. A file is relative to a package folder, for
/// example `nvidia/nccl/lib/libnccl.so.2`.
pub fn packaged(files: &[&str]) -> Vec<PathBuf> {
    let packages: Vec<PathBuf> = environments().iter().flat_map(|prefix| packages(prefix)).collect();
    existing(&packages, files)
}

/// Paths of `files` that exist in the environments. A file is relative to an environment, for example
/// `lib/libmpi.so.12`.
pub fn installed(files: &[&str]) -> Vec<PathBuf> {
    existing(&environments(), files)
}

fn environments() -> Vec<PathBuf> {
    let others = prefixes(|variable| env::var_os(variable));
    OWN.get().cloned().into_iter().chain(others.into_iter().filter(|prefix| OWN.get() != Some(prefix))).collect()
}

fn existing(folders: &[PathBuf], files: &[&str]) -> Vec<PathBuf> {
    let all = folders.iter().flat_map(|folder| files.iter().map(move |file| folder.join(file)));
    all.filter(|file| file.is_file()).collect()
}

/// The folders of environments, each once.
fn prefixes(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(&variable).map(PathBuf::from);
    let path = variable("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).flat_map(|folder| of_python(&folder.join("python3")));
    // A user's packages come before the system's.
    let on_path = on_path.filter(|prefix| SYSTEM.iter().all(|system| prefix != Path::new(system)));
    let own = variable("HOME").map(|home| Path::new(&home).join(".local"));
    let mut found: Vec<PathBuf> = Vec::new();
    for prefix in active.chain(on_path).chain(own).chain(SYSTEM.map(PathBuf::from)) {
        if !found.contains(&prefix) {
            found.push(prefix);
        }
    }
    found
}

/// The environment of an interpreter, and the environment of the interpreter to which it links.
fn of_python(python: &Path) -> Vec<PathBuf> {
    // The Python of a virtual environment is a link to the Python that made the environment.
    let Ok(target) = fs::canonicalize(python) else { return Vec::new() };
    [python, &target].into_iter().filter_map(|python| python.parent()?.parent()).map(Path::to_owned).collect()
}

/// The package folders of an environment, newest Python version first.
fn packages(prefix: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(prefix.join("lib")).into_iter().flatten().filter_map(Result::ok);
    let mut pythons: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")))
        .collect();
    let minor = |path: &PathBuf| path.extension().and_then(|minor| minor.to_str()?.parse::<u32>().ok());
    pythons.sort_by_key(|path| std::cmp::Reverse(minor(path)));
    pythons.iter().flat_map(|python| ["site-packages", "dist-packages"].map(|kind| python.join(kind))).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A temporary folder, removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let folder = env::temp_dir().join(format!("disco-python-{}-{test}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder.canonicalize().unwrap())
        }

        fn with(&self, folder: &str) -> PathBuf {
            let folder = self.0.join(folder);
            fs::create_dir_all(&folder).unwrap();
            folder
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn packages_of_newer_pythons_come_first() {
        let prefix = Folder::new("newer");
        for python in ["python3.9", "python3.12", "python3", "other"] {
            prefix.with(&format!("lib/{python}"));
        }
        let found = packages(&prefix.0);
        let names: Vec<_> =
            found.iter().map(|path| path.strip_prefix(&prefix.0).unwrap().display().to_string()).collect();
        assert_eq!(
            names[..3],
            ["lib/python3.12/site-packages", "lib/python3.12/dist-packages", "lib/python3.9/site-packages"]
        );
        assert_eq!(names.len(), 6);
    }

    #[test]
    fn an_environment_that_is_not_active_is_found_by_its_python_on_the_path() {
        let folder = Folder::new("venv");
        let (base, venv) = (folder.with("base/bin"), folder.with("venv/bin"));
        fs::write(base.join("python3.12"), "").unwrap();
        symlink(base.join("python3.12"), venv.join("python3")).unwrap();
        let packages = folder.with("venv/lib/python3.12/site-packages/nvidia/nccl/lib");
        fs::write(packages.join("libnccl.so.2"), "").unwrap();
        fs::write(folder.0.join("venv/lib/libmpi.so.12"), "").unwrap();
        let path = env::join_paths([folder.0.join("nowhere"), venv]).unwrap();
        let found = prefixes(|variable| match variable {
            "PATH" => Some(path.clone()),
            "HOME" => Some("/home/somebody".into()),
            _ => None,
        });
        let expected = [&folder.0.join("venv"), &folder.0.join("base")].map(|prefix| prefix.display().to_string());
        let names: Vec<_> = found.iter().map(|prefix| prefix.display().to_string()).collect();
        assert_eq!(names, [&expected[0], &expected[1], "/home/somebody/.local", "/usr/local", "/usr"]);
        let folders: Vec<PathBuf> = found.iter().flat_map(|prefix| super::packages(prefix)).collect();
        assert_eq!(existing(&folders, &["nvidia/nccl/lib/libnccl.so.2"]), [packages.join("libnccl.so.2")]);
        assert_eq!(existing(&found[..2], &["lib/libmpi.so.12"]), [folder.0.join("venv/lib/libmpi.so.12")]);
    }

    #[test]
    fn the_active_environment_comes_first_and_each_is_searched_once() {
        let folder = Folder::new("active");
        let bin = folder.with("venv/bin");
        fs::write(bin.join("python3"), "").unwrap();
        let found = prefixes(|variable| match variable {
            "PATH" => env::join_paths([Path::new("/nowhere"), &bin, &bin]).ok(),
            "CONDA_PREFIX" => Some("/conda".into()),
            "VIRTUAL_ENV" => Some(folder.0.join("venv").into()),
            _ => None,
        });
        let expected = [folder.0.join("venv"), "/conda".into(), "/usr/local".into(), "/usr".into()];
        assert_eq!(found, expected);
    }
}
