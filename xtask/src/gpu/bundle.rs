//! Builds and packs the folder.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{SCRIPTS, SCRIPTS_FOLDER, fatbin, programs};
use crate::built::root;
use crate::libraries::{self, run};

/// The architecture whose machine code libraries keep: that of H100 and H200.
const ARCHITECTURE: u64 = 90;
/// Maximum size of the kit, so that it and a checkout are at most 64 MiB.
const MAX_KIT_BYTES: u64 = 55 << 20;
/// The newest glibc version that programs may need.
const MAX_GLIBC: (u32, u32) = (2, 34);

/// Creates the kit in `folder`, replacing an existing one.
///
/// # Errors
/// A build or a tool fails, a program needs a newer C library, or the kit is too large.
pub(crate) fn bundle(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("{} can't be removed", folder.display()))?;
    }
    let (bin, lib) = (folder.join("bin"), folder.join("lib"));
    fs::create_dir_all(&bin)?;
    fs::create_dir_all(&lib)?;
    programs::copy_python(&bin)?;
    for program in programs::build(true)? {
        let file = bin.join(program.name);
        run(Command::new("strip").arg("-s").arg(&program.file).arg("-o").arg(&file))?;
        let glibc = glibc_of(&file)?;
        println!("{}: {} bytes, glibc {}.{}", program.name, fs::metadata(&file)?.len(), glibc.0, glibc.1);
        let (most, found) = (MAX_GLIBC, format!("{}.{}", glibc.0, glibc.1));
        ensure!(
            glibc <= most,
            "{} needs glibc {found}, and {}.{} is the newest it may need",
            program.name,
            most.0,
            most.1
        );
    }
    // Programs share code, which a dictionary finds that is larger than a program.
    run(Command::new("tar")
        .env("XZ_OPT", "-9")
        .arg("cJf")
        .arg(folder.join("bin.tar.xz"))
        .arg("-C")
        .arg(folder)
        .arg("bin"))?;
    fs::remove_dir_all(&bin)?;
    let (version, library) = libraries::sharing_nccl()?;
    let file = lib.join(format!("nccl-{version}.so"));
    run(Command::new("strip").arg("-s").arg(library).arg("-o").arg(&file))?;
    let mut object = fs::read(&file)?;
    let bytes = fatbin::keep(&mut object, ARCHITECTURE).with_context(|| format!("NCCL {version}"))?;
    fs::write(&file, object)?;
    println!("nccl {version}: {bytes} bytes of machine code for sm_{ARCHITECTURE}");
    run(Command::new("xz").arg("-6").arg(&file))?;
    for script in SCRIPTS {
        fs::copy(root().join(SCRIPTS_FOLDER).join(script), folder.join(script))?;
    }
    check_size(folder)
}

/// Prints the sizes of the files. A kit that is too large is an error with the sizes.
fn check_size(folder: &Path) -> Result<()> {
    let mut sizes = Vec::new();
    for folder in [folder, &folder.join("lib")] {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                sizes.push((entry.file_name().display().to_string(), entry.metadata()?.len()));
            }
        }
    }
    sizes.sort_unstable();
    let all = sizes.iter().map(|(_, bytes)| bytes).sum::<u64>();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let sizes: Vec<_> = sizes.into_iter().map(|(name, bytes)| format!("{name} {:.1} MiB", mib(bytes))).collect();
    let sizes = format!("{:.1} MiB in all: {}", mib(all), sizes.join(", "));
    ensure!(all <= MAX_KIT_BYTES, "the kit is too large: {sizes}; the limit is {:.0} MiB", mib(MAX_KIT_BYTES));
    println!("== {}: {sizes}", folder.display());
    Ok(())
}

/// The newest glibc version that a program needs.
fn glibc_of(program: &Path) -> Result<(u32, u32)> {
    let output = Command::new("objdump").arg("-T").arg(program).output().context("objdump can't be started")?;
    ensure!(output.status.success(), "objdump: {}", output.status);
    newest_glibc(&String::from_utf8_lossy(&output.stdout)).context("the program names no version of the C library")
}

fn newest_glibc(symbols: &str) -> Option<(u32, u32)> {
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let version = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let (major, minor) = version.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_of_the_kit_exists() {
        let missing: Vec<_> =
            SCRIPTS.into_iter().filter(|script| !root().join(SCRIPTS_FOLDER).join(script).is_file()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn the_newest_c_library_is_found_by_number() {
        let symbols = "DF *UND* (GLIBC_2.2.5) read\nDF *UND* (GLIBC_2.34) x\nDF *UND* (GLIBC_2.4) y\n(GCC_3.0) z\n";
        assert_eq!(newest_glibc(symbols), Some((2, 34)));
        assert_eq!(newest_glibc("nothing"), None);
    }
}
