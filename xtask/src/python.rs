//! The Python package: its types, its stubs, and its tests, with an interpreter and packages of its own in `target/python`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::built::{cargo, root};
use crate::libraries::{self, run};
use disco_testing::features::ALL_FEATURES;

/// The version whose wheels the requirements name.
const VERSION: &str = "3.11";

/// What runs.
#[derive(Debug, Args)]
pub(crate) struct Python {
    /// Build the wheel for manylinux, check its size and what it needs, and run the examples with it, and with what pip builds,
    /// in new environments
    #[arg(long, conflicts_with = "pytest")]
    wheel: bool,
    /// Run the tests that need a Jupyter kernel, jax and Debian's torch, and longer random mixes
    #[arg(long, conflicts_with = "wheel")]
    long: bool,
    /// Run the tests of the back end of torch.distributed with torch of the index, which takes 5.4 GB on the disk
    #[arg(long, conflicts_with_all = ["wheel", "long"])]
    torch: bool,
    /// Arguments for pytest, such as the name of a file; without any, everything runs
    #[arg(last = true)]
    pytest: Vec<String>,
}

impl Python {
    /// Builds the native part and runs the checks of the form, of types, of stubs, and the tests. Without Python 3.11 nothing runs, unless
    /// `DISCO_REQUIRE` names `ffi`.
    ///
    /// # Errors
    /// The packages can't be fetched, the native part does not build, or a check fails.
    pub(crate) fn run(&self) -> Result<()> {
        let Some(python) = interpreter("the tests of the Python package")? else { return Ok(()) };
        libraries::fetch(false);
        let folder = root().join("target/python");
        if self.wheel {
            return wheel(&python, &folder);
        }
        let packages = match (self.long, self.torch) {
            (true, _) => ("venv-long", "long.txt"),
            (_, true) => ("venv-torch", "torch.txt"),
            _ => ("venv", "requirements.txt"),
        };
        let venv = environment(&python, &folder.join(packages.0), &requirements(packages.1))?;
        let site = site(&folder)?;
        let torch = if self.long { torch(&folder)? } else { None };
        let path = env::join_paths([Some(site.clone()), torch.clone()].into_iter().flatten())?;
        let tool = |arguments: &[&str]| {
            let mut command = Command::new(venv.join("bin/python"));
            command.args(arguments).current_dir(package());
            command.env("PYTHONPATH", &path).env("MYPYPATH", &site).env("PYTHONDONTWRITEBYTECODE", "1");
            command.env("MYPY_CACHE_DIR", folder.join("mypy"));
            if torch.is_some() {
                command.env("LD_LIBRARY_PATH", libraries_of_torch()).env("OMP_NUM_THREADS", "1");
            }
            command
        };
        if self.pytest.is_empty() && !self.long && !self.torch {
            show(&mut tool(&["-m", "ruff", "format", "--quiet", "--check", "."]))?;
            show(&mut tool(&["-m", "ruff", "check", "--quiet", "."]))?;
            show(&mut tool(&["-m", "mypy", "-p", "disco"]))?;
            let stubtest = ["-m", "mypy.stubtest", "disco", "--mypy-config-file", "pyproject.toml"];
            show(tool(&stubtest).args(["--allowlist", "tests/stubtest.txt"]))?;
        }
        let mut pytest = tool(&["-m", "pytest", "-p", "no:cacheprovider"]);
        if self.long && self.pytest.is_empty() {
            pytest.args(["tests/long", "tests/test_mix.py"]).env("DISCO_LONG_TESTS", "1");
        }
        if self.torch && self.pytest.is_empty() {
            pytest.arg("tests/long/test_torch.py");
        }
        pytest.args(&self.pytest);
        show(&mut pytest)
    }
}

/// Debian 12's torch, which is for Python 3.11, as `cargo xtask test --long` fetches it.
fn debian_torch() -> PathBuf {
    libraries::cache().join("debian-torch")
}

/// A folder with Debian's torch and none of the other packages of Debian; none if torch was not fetched.
fn torch(folder: &Path) -> Result<Option<PathBuf>> {
    let torch = debian_torch().join("usr/lib/python3/dist-packages/torch");
    let folder = folder.join("torch");
    if !torch.is_dir() {
        eprintln!("== torch is missing: `cargo xtask test --long` fetches it");
        return Ok(None);
    }
    fs::create_dir_all(&folder)?;
    if !folder.join("torch").exists() {
        symlink(torch.canonicalize()?, folder.join("torch"))?;
    }
    Ok(Some(folder))
}

/// The folders of the libraries of Debian's torch.
fn libraries_of_torch() -> OsString {
    let folders = [
        "lib/x86_64-linux-gnu",
        "usr/lib",
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/x86_64-linux-gnu/blas",
        "usr/lib/x86_64-linux-gnu/lapack",
    ];
    env::join_paths(folders.map(|folder| debian_torch().join(folder))).unwrap_or_default()
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

/// A file of the package's tests.
fn requirements(name: &str) -> PathBuf {
    package().join("tests").join(name)
}

/// The interpreter, if it has the version of the requirements; `what` needs it.
///
/// # Errors
/// `DISCO_REQUIRE` asks for it, and it is not there.
pub(crate) fn interpreter(what: &str) -> Result<Option<PathBuf>> {
    let said = ["python3.11", "python3"].into_iter().map(|name| (name, version(name)));
    let found: Vec<_> = said.collect();
    if let Some((name, _)) = found.iter().find(|(_, version)| version.as_deref() == Some(VERSION)) {
        return Ok(Some(name.into()));
    }
    let is_required = env::var("DISCO_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name == "ffi"));
    let text = format!("{what} need Python {VERSION}, and found {found:?}");
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
///
/// # Errors
/// The packages can't be fetched, or have other hashes than the file says.
pub(crate) fn environment(python: &Path, venv: &Path, requirements: &Path) -> Result<PathBuf> {
    let stamp = venv.join("requirements.txt");
    let wanted = fs::read(requirements)?;
    if fs::read(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(venv.to_owned());
    }
    eprintln!("== fetching the packages of {}", requirements.display());
    let venv = new_environment(python, venv)?;
    let mut install = Command::new(venv.join("bin/python"));
    install.args("-m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r".split(' '));
    let fetched = run(install.arg(requirements));
    fetched.with_context(|| format!("the packages of {} can't be fetched", requirements.display()))?;
    fs::write(stamp, wanted)?;
    Ok(venv)
}

/// An empty virtual environment.
fn new_environment(python: &Path, venv: &Path) -> Result<PathBuf> {
    if venv.exists() {
        fs::remove_dir_all(venv)?;
    }
    run(Command::new(python).args(["-m", "venv"]).arg(venv))?;
    Ok(venv.to_owned())
}

/// The most bytes of a wheel.
const MAX_WHEEL: u64 = 30_000_000;
/// The oldest systems that the wheel is for.
const PLATFORM: &str = "manylinux_2_28";

/// Builds the wheel as it would be published, and tries it and the source in new environments.
fn wheel(python: &Path, folder: &Path) -> Result<()> {
    let tools = environment(python, &folder.join("wheel-tools"), &requirements("wheel.txt"))?;
    let wheels = folder.join("wheels");
    if wheels.exists() {
        fs::remove_dir_all(&wheels)?;
    }
    let path = env::join_paths(
        [tools.join("bin")].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())),
    )?;
    // Zig's C library has the symbols of old systems, whatever this one has.
    let mut build = Command::new(tools.join("bin/maturin"));
    build.args(["build", "--release", "--zig", "--compatibility", PLATFORM, "--target-dir"]);
    build.arg(root().join("target/wheel")).arg("--out").arg(&wheels).current_dir(package()).env("PATH", &path);
    PROFILE.iter().for_each(|entry| _ = build.args(["--config", entry]));
    let data = package().join("disco._disco.data");
    let built = commands(&tools, &path, &data.join("scripts")).and_then(|()| show(&mut build));
    // Else later builds from the source would have them, too.
    fs::remove_dir_all(&data)?;
    built?;
    let wheel = fs::read_dir(&wheels)?.next().context("maturin has left no wheel")??.path();
    let bytes = wheel.metadata()?.len();
    println!("== {} has {:.1} MB", wheel.display(), bytes as f64 / 1e6);
    ensure!(bytes <= MAX_WHEEL, "the wheel has {bytes} bytes, more than {MAX_WHEEL}");
    let said = Command::new(tools.join("bin/auditwheel")).arg("show").arg(&wheel).output()?;
    let said = String::from_utf8_lossy(&said.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    let is_old = said.split('"').any(|tag| tag == format!("{PLATFORM}_x86_64") || tag == "manylinux_2_17_x86_64");
    ensure!(is_old, "auditwheel: {said}");
    let of_wheel = folder.join("of-wheel");
    try_in_new_environment(python, &of_wheel, &wheel)?;
    for arguments in [&["disco", "backends"][..], &["disco", "ping", "--workers", "2"], &["disco-serve", "--version"]] {
        show(Command::new(of_wheel.join("bin").join(arguments[0])).args(&arguments[1..]))?;
    }
    try_in_new_environment(python, &folder.join("of-source"), &package())
}

/// How all of the wheel is built, for its size.
const PROFILE: [&str; 4] = [
    r#"profile.release.strip = "symbols""#,
    r#"profile.release.lto = "thin""#,
    "profile.release.codegen-units = 1",
    // Otherwise without optimisation, for the time of builds.
    r#"profile.release.package.clap_builder.opt-level = "s""#,
];

/// The commands that the wheel installs beside the package.
const COMMANDS: [&str; 2] = ["disco", "disco-serve"];

/// Builds the commands for old systems into a folder, from which maturin takes them.
fn commands(tools: &Path, path: &OsStr, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let target_dir = root().join("target/wheel");
    let mut build = Command::new(tools.join("bin/cargo-zigbuild"));
    build.args(["zigbuild", "--quiet", "--release", "--target", "x86_64-unknown-linux-gnu.2.28", "--target-dir"]);
    build.arg(&target_dir).args(["--package", "disco-runtime-cli", "--package", "disco-serve"]);
    COMMANDS.iter().for_each(|name| _ = build.args(["--bin", name]));
    PROFILE.iter().for_each(|entry| _ = build.args(["--config", entry]));
    show(build.current_dir(root()).env("PATH", path))?;
    for name in COMMANDS {
        fs::copy(target_dir.join("x86_64-unknown-linux-gnu/release").join(name), folder.join(name))?;
    }
    Ok(())
}

/// Installs the package from `source`, and runs its check and its examples, which compare themselves with numpy and with the
/// Rust program.
fn try_in_new_environment(python: &Path, venv: &Path, source: &Path) -> Result<()> {
    let venv = new_environment(python, venv)?;
    let tool = || {
        let mut command = Command::new(venv.join("bin/python"));
        command.current_dir(&venv);
        command
    };
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    show(tool().args(pip).arg(source).env("CARGO_TARGET_DIR", root().join("target")))?;
    show(tool().args(["-m", "disco"]))?;
    show(tool().args(pip).arg("numpy"))?;
    show(tool().arg(package().join("examples/tensor_parallel.py")))?;
    let accuracy = |output: &[u8]| -> Result<f64> {
        let report: serde_json::Value = serde_json::from_slice(output)?;
        report["test_accuracy"].as_f64().context("the report has no accuracy")
    };
    let ours = tool().arg(package().join("examples/digits.py")).arg("--json").output()?;
    let rust = cargo().args(["run", "--quiet", "--release", "--example", "digits", "--", "--json"]).output()?;
    let (ours, rust) = (accuracy(&ours.stdout)?, accuracy(&rust.stdout)?);
    println!("== digits: accuracy {ours:.4} in Python, {rust:.4} in Rust");
    ensure!((ours - rust).abs() < 0.005, "the accuracies differ");
    Ok(())
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
