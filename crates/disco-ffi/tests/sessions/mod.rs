//! Libraries on workers, in sessions of every kind, with libtvm_ffi and without it.
//!
//! libtvm_ffi stays in a process once it is open. Therefore each test runs in a process of its own, whose environment
//! names the library of the wheel or a file that does not exist.

mod bad;
mod calls;
mod life;
mod values;

use std::env;
use std::process::Command;

use disco::block_on;
use disco::{Builder, DRef, IntoArgs, LaneSession, Result, SessionKind, Value, WorkerId};
use disco_ffi::Module;
use libtest_mimic::{Failed, Trial};

/// Set in the process of one test, to the [`Mode`].
const MODE: &str = "DISCO_FFI_TEST_MODE";
const KINDS: [SessionKind; 3] = [SessionKind::Threads, SessionKind::Processes, SessionKind::Nodes];

/// Whether libtvm_ffi is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// It is opened at the start of each process.
    With,
    Without,
    /// It is there. The first library that needs it opens it.
    WhenNeeded,
}

/// Opens libtvm_ffi in the process of a test that needs it, and in its workers, so that all libraries are opened through it.
pub(crate) fn open_libtvm_ffi() {
    if env::var(MODE).is_ok_and(|mode| mode == "with_libtvm_ffi") {
        disco_ffi::TvmFfi::get().unwrap();
    }
}

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let modes = [
        (Mode::With, "with_libtvm_ffi"),
        (Mode::Without, "without_libtvm_ffi"),
        (Mode::WhenNeeded, "with_libtvm_ffi_when_needed"),
    ];
    let tests = [bad::tests(), calls::tests(), life::tests(), values::tests()].concat();
    tests.into_iter().flat_map(move |test| {
        let modes = modes
            .into_iter()
            .filter(move |(mode, _)| test.mode.map_or(*mode != Mode::WhenNeeded, |only| only == *mode));
        modes.flat_map(move |mode| {
            KINDS.into_iter().filter(move |kind| (test.kinds)(*kind)).map(move |kind| trial(test, mode, kind))
        })
    })
}

/// A test, and where it runs: with and without libtvm_ffi if `mode` is none, in the sessions for which `kinds` is true.
#[derive(Clone, Copy)]
struct Test {
    name: &'static str,
    run: fn(SessionKind),
    mode: Option<Mode>,
    kinds: fn(SessionKind) -> bool,
}

/// Names tests after their functions: `tests![name, name in With, name in Without of Processes]`.
macro_rules! tests {
    ($($name:ident $(in $mode:ident)? $(of $kind:ident)?),* $(,)?) => {
        pub(crate) fn tests() -> Vec<crate::sessions::Test> {
            vec![$({
                #[allow(unused_mut, unused_assignments, reason = "for tests that name no mode or kind")]
                let mut test = crate::sessions::Test { name: stringify!($name), run: $name, mode: None, kinds: |_| true };
                $(test.mode = Some(crate::sessions::Mode::$mode);)?
                $(test.kinds = |kind| kind == disco::SessionKind::$kind;)?
                test
            }),*]
        }
    };
}
pub(crate) use tests;

fn trial(test: Test, (mode, mode_name): (Mode, &'static str), kind: SessionKind) -> Trial {
    let name = format!("sessions::{}::{mode_name}::{kind}", test.name);
    Trial::test(name.clone(), move || {
        if env::var(MODE).is_ok_and(|value| value == mode_name) {
            (test.run)(kind);
            return Ok(());
        }
        let file = match mode {
            Mode::With | Mode::WhenNeeded => disco_conformance::libtvm_ffi(),
            Mode::Without => Some("/nonexistent/libtvm_ffi.so".into()),
        };
        let Some(file) = file else { return Ok(()) };
        let mut child = Command::new(env::current_exe()?);
        child.args(["--exact", &name]).env(MODE, mode_name).env("DISCO_TVM_FFI_LIBRARY", file);
        let output = child.output()?;
        let [text, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        if output.status.success() && text.contains("1 passed") {
            errors.lines().filter(|line| line.starts_with("skipped")).for_each(|line| eprintln!("{name}: {line}"));
            Ok(())
        } else {
            Err(Failed::from(format!("{}\n{text}\n{errors}", output.status)))
        }
    })
}

/// A session of two workers; of nodes, one on each.
fn session(kind: SessionKind) -> LaneSession {
    Builder::new(kind, 2).node_options(|nodes| nodes.workers = SessionKind::Threads).start().unwrap()
}

fn load(session: &LaneSession, file: impl Into<disco_ffi::LibraryFile>) -> Module {
    block_on(Module::load(session, file.into())).unwrap()
}

/// A session with a library.
fn loaded(kind: SessionKind, file: impl Into<disco_ffi::LibraryFile>) -> (LaneSession, Module) {
    let session = session(kind);
    let module = load(&session, file);
    (session, module)
}

/// Calls a function of a library and returns the result of worker 1.
fn call(session: &LaneSession, module: &Module, name: &str, args: impl IntoArgs) -> Result<Value> {
    let handle = submit(session, module, name, args)?;
    block_on(session.value(&handle, WorkerId::new(1)))
}

fn submit(session: &LaneSession, module: &Module, name: &str, args: impl IntoArgs) -> Result<DRef> {
    block_on(async { session.call(&module.function(session, name).await?, args).await })
}

/// The text of the error of a call, as worker 1 reports it. The session works again afterwards.
fn failure(session: &LaneSession, module: &Module, name: &str, args: impl IntoArgs) -> String {
    let error = call(session, module, name, args).unwrap_err().to_string();
    block_on(session.recover()).unwrap();
    error
}
