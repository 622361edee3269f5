//! Finds libraries that Python packages have installed.
//!
//! Environments are searched in this order: that of the interpreter in this process, the active one (`VIRTUAL_ENV`, `CONDA_PREFIX`), the environment of each
//! `python3` on the `PATH`, which need not be active, this user's packages, the system's packages. A `python3` that is a script, as pyenv's shims are, is asked
//! for its environment, once in a process and only if the search has not ended before.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::Duration;
use std::{env, fs, thread};

use disco_core::sync;

use crate::Candidate;

const SYSTEM: [&str; 2] = ["/usr/local", "/usr"];
/// Prints the environment of an interpreter, and that of the interpreter that made the environment.
const ASK: &str = "import sys; print(sys.prefix); print(sys.base_prefix)";
/// Time for the answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The environment of the interpreter that runs in this process.
static OWN: OnceLock<PathBuf> = OnceLock::new();
/// Answers of interpreters that were asked.
static ANSWERS: Mutex<BTreeMap<PathBuf, Result<Vec<PathBuf>, String>>> = Mutex::new(BTreeMap::new());

/// The folder of an environment, or an interpreter whose environment is unknown, with the reason.
type Environment = Result<PathBuf, (PathBuf, String)>;

/// Searches this environment first: that of the interpreter in this process, which need not be the active one. A second
/// call changes nothing.
pub fn set_own_environment(prefix: PathBuf) {
    OWN.get_or_init(|| prefix);
}

/// Candidates in the package folders of the environments: those of `files` that exist, opened as `open` says, and each
/// folder that has none of them. A file is relative to a package folder, for example `nvidia/nccl/lib/libnccl.so.2`.
pub fn packaged(files: &[&str], open: fn(OsString) -> Candidate) -> impl Iterator<Item = Candidate> + use<> {
    let folders = |prefix: PathBuf| packages(&prefix).into_iter().filter(|folder| folder.is_dir()).collect();
    candidates(environments(), folders, files, open)
}

/// Candidates in the environments, as [`packaged`] gives them. A file is relative to an environment, for example
/// `lib/libmpi.so.12`.
pub fn installed(files: &[&str], open: fn(OsString) -> Candidate) -> impl Iterator<Item = Candidate> + use<> {
    candidates(environments(), |prefix| vec![prefix], files, open)
}

fn candidates<E: Iterator<Item = Environment>>(
    environments: E,
    folders: fn(PathBuf) -> Vec<PathBuf>,
    files: &[&str],
    open: fn(OsString) -> Candidate,
) -> impl Iterator<Item = Candidate> + use<E> {
    let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
    // Some libraries are in no package.
    let environments = environments.take(if files.is_empty() { 0 } else { usize::MAX });
    let in_folder = move |folder: PathBuf| {
        let paths = files.iter().map(|file| folder.join(file)).filter(|path| path.is_file());
        let found: Vec<_> = paths.map(|path| open(path.into())).collect();
        let absent = || Candidate::Absent { why: format!("it has no {}", files.join(", ")), place: folder.clone() };
        if found.is_empty() { vec![absent()] } else { found }
    };
    environments.flat_map(move |environment| match environment {
        Ok(prefix) => folders(prefix).into_iter().flat_map(&in_folder).collect(),
        Err((place, why)) => vec![Candidate::Absent { place, why }],
    })
}

fn environments() -> impl Iterator<Item = Environment> {
    prefixes(OWN.get().cloned(), |variable| env::var_os(variable))
}

/// The environments, each once: `own`, and those that the variables name.
fn prefixes(own: Option<PathBuf>, variable: impl Fn(&str) -> Option<OsString>) -> impl Iterator<Item = Environment> {
    let active: Vec<_> = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(&variable).map(PathBuf::from).collect();
    let path = variable("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = env::split_paths(&path).map(|folder| folder.join("python3")).collect();
    // A user's packages come before the system's.
    let is_system = |it: &Environment| it.as_ref().is_ok_and(|it| SYSTEM.iter().any(|system| it == Path::new(system)));
    let on_path = path.into_iter().flat_map(|python| of_python(&python)).filter(move |it| !is_system(it));
    let user = variable("HOME").map(|home| Path::new(&home).join(".local"));
    let before = own.into_iter().chain(active).map(Ok);
    let after = user.into_iter().chain(SYSTEM.map(PathBuf::from)).map(Ok);
    let mut found = HashSet::new();
    before.chain(on_path).chain(after).filter(move |it| found.insert(it.clone()))
}

/// The environment of an interpreter, and the environment of the interpreter to which it links.
fn of_python(python: &Path) -> Vec<Environment> {
    // The Python of a virtual environment is a link to the Python that made the environment.
    let Ok(target) = fs::canonicalize(python) else { return Vec::new() };
    if is_interpreter(&target) {
        return [python, &target]
            .into_iter()
            .filter_map(|it| it.parent()?.parent())
            .map(|it| Ok(it.to_owned()))
            .collect();
    }
    let answer = sync::lock(&ANSWERS).entry(python.to_owned()).or_insert_with(|| ask(python)).clone();
    match answer {
        Ok(prefixes) => prefixes.into_iter().map(Ok).collect(),
        Err(why) => vec![Err((python.to_owned(), why))],
    }
}

/// Whether a file is an interpreter, and not a program that starts one, such as a shim.
fn is_interpreter(file: &Path) -> bool {
    let mut start = [0; 2];
    let is_script = fs::File::open(file).and_then(|mut file| file.read_exact(&mut start)).is_ok() && &start == b"#!";
    !is_script && file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"))
}

/// Asks an interpreter for its environments.
///
/// # Errors
/// It can't be started, names none, or does not answer in time.
fn ask(python: &Path) -> Result<Vec<PathBuf>, String> {
    let mut command = Command::new(python);
    command.args(["-I", "-c", ASK]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("it can't be started: {error}"))?;
    let (sender, answer) = mpsc::channel();
    if let Some(mut out) = child.stdout.take() {
        thread::spawn(move || {
            let mut text = String::new();
            out.read_to_string(&mut text).map(|_| sender.send(text))
        });
    }
    let answer = answer.recv_timeout(ANSWER_LIMIT);
    // Fails if the process has ended.
    _ = child.kill();
    _ = child.wait();
    let text = answer.map_err(|_| format!("it has not named its environment within {ANSWER_LIMIT:?}"))?;
    let prefixes: Vec<_> = text.lines().map(PathBuf::from).filter(|prefix| prefix.is_absolute()).collect();
    if prefixes.is_empty() {
        Err(format!("it names no environment; try `{} --version`", python.display()))
    } else {
        Ok(prefixes)
    }
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
    use std::os::unix::fs::{PermissionsExt as _, symlink};

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

    /// The environments of somebody with these folders in the `PATH`.
    fn on_path(folders: &[PathBuf]) -> Vec<Environment> {
        let found = prefixes(None, |variable| match variable {
            "PATH" => env::join_paths(folders).ok(),
            "HOME" => Some("/home/somebody".into()),
            _ => None,
        });
        found.collect()
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
        let found = on_path(&[folder.0.join("nowhere"), venv]);
        let expected = ["venv", "base"].map(|prefix| folder.0.join(prefix));
        let others = ["/home/somebody/.local", "/usr/local", "/usr"].map(PathBuf::from);
        assert_eq!(found, expected.into_iter().chain(others).map(Ok).collect::<Vec<_>>());
        let found_in = |environments: &[Environment], folders: fn(PathBuf) -> Vec<PathBuf>, file: &str| -> Vec<_> {
            candidates(environments.iter().cloned(), folders, &[file], Candidate::File).collect()
        };
        let nccl = found_in(&found[..1], |prefix| super::packages(&prefix), "nvidia/nccl/lib/libnccl.so.2");
        assert_eq!(nccl[0], Candidate::file(packages.join("libnccl.so.2")));
        let absent = Candidate::Absent { place: folder.0.join("base"), why: "it has no lib/libmpi.so.12".into() };
        let mpi = Candidate::file(folder.0.join("venv/lib/libmpi.so.12"));
        assert_eq!(found_in(&found[..2], |prefix| vec![prefix], "lib/libmpi.so.12"), [mpi, absent]);
    }

    #[test]
    fn a_python_that_is_a_script_is_asked_for_its_environments_and_one_that_names_none_is_reported() {
        let folder = Folder::new("shims");
        let shim = |name: &str, script: &str| {
            let bin = folder.with(name);
            fs::write(bin.join("python3"), format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(bin.join("python3"), fs::Permissions::from_mode(0o755)).unwrap();
            bin
        };
        let asked = folder.0.join("asked");
        // The script gets the question of Python, and answers once.
        let answer =
            format!("[ \"$3\" = '{ASK}' ] && mkdir {} && echo /shims/venv && echo /shims/base", asked.display());
        let shims = [shim("good", &answer), shim("bad", "echo none; exit 127")];
        let bad = shims[1].join("python3");
        let why = format!("it names no environment; try `{} --version`", bad.display());
        for _ in 0..2 {
            let found = on_path(&shims);
            let expected = [Ok("/shims/venv".into()), Ok("/shims/base".into()), Err((bad.clone(), why.clone()))];
            assert_eq!(found[..3], expected);
        }
        assert!(asked.is_dir());
    }

    #[test]
    fn the_active_environment_comes_first_and_each_is_searched_once() {
        let folder = Folder::new("active");
        let bin = folder.with("venv/bin");
        fs::write(bin.join("python3"), "").unwrap();
        let found = prefixes(Some("/own".into()), |variable| match variable {
            "PATH" => env::join_paths([Path::new("/nowhere"), &bin, &bin]).ok(),
            "CONDA_PREFIX" => Some("/conda".into()),
            "VIRTUAL_ENV" => Some(folder.0.join("venv").into()),
            _ => None,
        });
        let venv = folder.0.join("venv");
        let expected = [Path::new("/own"), &venv, Path::new("/conda"), Path::new("/usr/local"), Path::new("/usr")];
        assert_eq!(found.collect::<Vec<_>>(), expected.map(|prefix| Ok(prefix.to_owned())));
    }
}
