//! Where Python keeps the libraries that it installs.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// These files, as far as they are there: in the environment that is active, of this user, of the system.
pub fn find(files: &[&str]) -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let own = env::var_os("HOME").map(|home| Path::new(&home).join(".local"));
    let prefixes = active.chain(own).chain(["/usr/local", "/usr"].map(PathBuf::from));
    let packages: Vec<PathBuf> = prefixes.flat_map(|prefix| packages(&prefix)).collect();
    let all = packages.iter().flat_map(|packages| files.iter().map(move |file| packages.join(file)));
    all.filter(|file| file.is_file()).collect()
}

/// A prefix's folders of packages, one a version of Python, the newest first.
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
    use super::*;

    #[test]
    fn newer_pythons_come_first() {
        let prefix = env::temp_dir().join(format!("disco-wheels-{}", std::process::id()));
        for python in ["python3.9", "python3.12", "python3", "other"] {
            fs::create_dir_all(prefix.join("lib").join(python)).unwrap();
        }
        let found = packages(&prefix);
        fs::remove_dir_all(&prefix).unwrap();
        let names: Vec<_> =
            found.iter().map(|path| path.strip_prefix(&prefix).unwrap().display().to_string()).collect();
        assert_eq!(
            names[..3],
            ["lib/python3.12/site-packages", "lib/python3.12/dist-packages", "lib/python3.9/site-packages"]
        );
        assert_eq!(names.len(), 6);
    }
}
