//! A g++ with ThreadSanitizer, for tests that run CUDA kernels on threads of the host.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::require::Required;

/// The compiler. It holds a lock, so that only one test of a process runs programs at a time: their threads would slow each
/// other down.
#[derive(Debug)]
pub struct Compiler {
    _alone: MutexGuard<'static, ()>,
}

/// The path of a compiled program; the drop deletes the file.
#[derive(Debug)]
pub struct Program(PathBuf);

impl Compiler {
    /// Finds the compiler. Without one, prints the reason and returns `None`.
    ///
    /// # Panics
    /// `DISCO_REQUIRE` has `tsan`, and there is no compiler.
    pub fn find() -> Option<Self> {
        static FOUND: OnceLock<Result<(), String>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let program = Program::new("probe");
            let source = Program::new("probe.cpp");
            fs::write(&source.0, "int main() {}").map_err(|error| format!("{}: {error}", source.0.display()))?;
            succeed(sanitized().args(["-x", "c++"]).arg(&source.0).arg("-o").arg(&program.0))?;
            succeed(&mut Command::new(&program.0))
        });
        let Err(why) = found else {
            static ALONE: Mutex<()> = Mutex::new(());
            return Some(Self { _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner) });
        };
        assert!(!Required::from_env().contains("tsan"), "DISCO_REQUIRE: {why}");
        eprintln!("skipped: no g++ with ThreadSanitizer: {why}");
        None
    }

    /// Compiles `source`, which finds its headers in the first of the folders `includes` that has them.
    ///
    /// # Panics
    /// The compilation fails or prints a warning.
    pub fn build(&self, name: &str, source: &Path, includes: &[&Path], options: &[&str]) -> Program {
        let program = Program::new(name);
        let mut command = sanitized();
        command.args(["-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]).args(options);
        for include in includes {
            command.arg("-I").arg(include);
        }
        let compiled = succeed(command.arg(source).arg("-o").arg(&program.0));
        assert!(compiled.is_ok(), "{compiled:?}");
        program
    }
}

impl Program {
    /// The exit code after a race.
    pub const RACE: i32 = 66;

    fn new(name: &str) -> Self {
        Self(env::temp_dir().join(format!("disco-tsan-{name}-{}", std::process::id())))
    }

    /// Runs the program, which ends at the first race.
    ///
    /// # Panics
    /// The program can't be started.
    pub fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Output {
        let options = format!("halt_on_error=1 exitcode={}", Self::RACE);
        let output = Command::new(&self.0).args(args).env("TSAN_OPTIONS", options).output();
        output.unwrap_or_else(|error| panic!("{}: {error}", self.0.display()))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.0);
    }
}

fn sanitized() -> Command {
    let mut command = Command::new("g++");
    command.args(["-fsanitize=thread", "-pthread"]);
    command
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}: {}", output.status, text(&output))) }
}

/// All that a program has printed.
pub fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}
