//! The Python package: its types, its stubs, and its tests, with an interpreter and packages of its own in `target/python`.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::built::{cargo, root};
use crate::features::ALL_FEATURES;
use crate::libraries::{self, run};

/// The version whose wheels the requirements name.
const VERSION: &str = "3.11";

/// What runs.
#[derive(Debug, Args)]
pub(crate) struct Python {
    /// Arguments for pytest, such as the name of a file; without any, everything runs
    #[arg(last = true)]
    pytest: Vec<String>,
}

impl Python {
    /// Builds the native part and runs the checks of types, of stubs, and the tests. Without Python 3.11 nothing runs, unless
    /// `DISCO_REQUIRE` names `ffi`.
    ///
    /// # Errors
    /// The packages can't be fetched, the native part does not build, or a check fails.
    pub(crate) fn run(&self) -> Result<()> {
        let Some(python) = interpreter()? else { return Ok(()) };
        libraries::fetch(false);
        let folder = root().join("target/python");
        let venv = environment(&python, &folder, &package().join("tests/requirements.txt"))?;
        let site = site(&folder)?;
        let tool = |arguments: &[&str]| {
            let mut command = Command::new(venv.join("bin/python"));
            command.args(arguments).current_dir(package());
            command.env("PYTHONPATH", &site).env("MYPYPATH", &site).env("PYTHONDONTWRITEBYTECODE", "1");
            command.env("MYPY_CACHE_DIR", folder.join("mypy"));
            command
        };
        if self.pytest.is_empty() {
            show(&mut tool(&["-m", "mypy", "-p", "disco"]))?;
            let stubtest = ["-m", "mypy.stubtest", "disco", "--mypy-config-file", "pyproject.toml"];
            show(tool(&stubtest).args(["--allowlist", "tests/stubtest.txt"]))?;
        }
        show(tool(&["-m", "pytest", "-p", "no:cacheprovider"]).args(&self.pytest))
    }
}

/// Runs a tool whose output is for the reader.
fn show(tool: &mut Command) -> Result<()> {
    let status = tool.status().context("the tool can't be started")?;
    ensure!(status.success(), "{:?}: {status}", tool.get_args().collect::<Vec<_>>());
    Ok(())
}

/// The folder of the package.
fn package() -> PathBuf {
    root().join("crates/disco-python")
}

/// The interpreter, if it has the version of the requirements.
///
/// # Errors
/// `DISCO_REQUIRE` asks for it, and it is not there.
fn interpreter() -> Result<Option<PathBuf>> {
    let said = ["python3.11", "python3"].into_iter().map(|name| (name, version(name)));
    let found: Vec<_> = said.collect();
    if let Some((name, _)) = found.iter().find(|(_, version)| version.as_deref() == Some(VERSION)) {
        return Ok(Some(name.into()));
    }
    let is_required = env::var("DISCO_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name == "ffi"));
    let text = format!("the tests of the Python package need Python {VERSION}, and found {found:?}");
    ensure!(!is_required, "{text}");
    eprintln!("== skipped: {text}");
    Ok(None)
}

fn version(name: &str) -> Option<String> {
    let code = "import sys; print('%d.%d' % sys.version_info[:2])";
    let output = Command::new(name).args(["-c", code]).output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned()).filter(|version| !version.is_empty())
}

/// A virtual environment with the packages of a file, which is made anew after a change of the file.
fn environment(python: &Path, folder: &Path, requirements: &Path) -> Result<PathBuf> {
    let venv = folder.join("venv");
    let stamp = venv.join("requirements.txt");
    let wanted = fs::read(requirements)?;
    if fs::read(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(venv);
    }
    eprintln!("== fetching the packages of {}", requirements.display());
    if venv.exists() {
        fs::remove_dir_all(&venv)?;
    }
    run(Command::new(python).args(["-m", "venv"]).arg(&venv))?;
    let mut install = Command::new(venv.join("bin/python"));
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
        "-r",
    ]);
    run(install.arg(requirements)).context("the packages for the tests of the Python package can't be fetched")?;
    fs::write(stamp, wanted)?;
    Ok(venv)
}

/// The package as an installation has it: its files, and the native part that cargo has built.
fn site(folder: &Path) -> Result<PathBuf> {
    // With the features of the gate, which has built the rest before.
    let mut build = cargo();
    let features = ALL_FEATURES.split_whitespace();
    let status = build.args(["build", "--quiet", "--workspace", "--lib"]).args(features).status()?;
    ensure!(status.success(), "the native part does not build");
    let built = root().join("target/debug/lib_disco.so");
    if !built.is_file() {
        bail!("{} is missing", built.display());
    }
    let (site, sources) = (folder.join("site"), package().join("python/disco"));
    let disco = site.join("disco");
    if disco.exists() {
        fs::remove_dir_all(&disco)?;
    }
    fs::create_dir_all(&disco)?;
    for entry in fs::read_dir(sources)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_source = [".py", ".pyi", ".typed"].iter().any(|end| name.to_string_lossy().ends_with(end));
        if is_source {
            symlink(entry.path(), disco.join(name))?;
        }
    }
    symlink(built, disco.join("_disco.abi3.so"))?;
    Ok(site)
}
