//! Files that are no libraries, and functions that misbehave.

use std::fs;
use std::path::Path;

use disco::function::{Args, BoxError, Function};
use disco::{Object, SessionKind, WorkerContext, WorkerId, block_on};
use disco_ffi::{LibraryFile, Module};

use super::{failure, load, loaded, session};
use crate::library::{folder, library, linked};
use crate::without_numbers;

crate::sessions::tests![
    a_file_that_is_not_there_is_an_error,
    a_file_that_is_no_library_is_an_error,
    a_library_of_another_machine_is_an_error,
    an_undefined_symbol_is_an_error_that_names_it,
    a_library_that_needs_libtvm_ffi_is_an_error_without_it in Without,
    a_library_that_is_linked_to_libtvm_ffi_is_an_error_without_it in Without,
    a_compiled_library_is_an_error_without_libtvm_ffi in Without,
    a_function_that_is_not_there_is_an_error,
    a_failure_without_an_error_is_an_error,
    invalid_results_are_errors_that_name_them,
    a_list_that_contains_itself_is_an_error in With,
    an_argument_count_is_up_to_the_library,
    an_exception_that_leaves_a_function_is_an_error in With,
    an_exception_ends_a_worker_process_by_a_signal in Without of Processes,
    a_crash_ends_a_worker_process_by_a_signal of Processes,
    libtvm_ffi_of_another_version_is_refused in Without of Threads,
];

/// The text of the failure to load a file, without the start that names the worker and the function.
fn refusal(kind: SessionKind, file: impl Into<LibraryFile>) -> String {
    let session = session(kind);
    let module = load(&session, file);
    let text = block_on(session.value(module.handle(), WorkerId::new(1))).unwrap_err().to_string();
    without_numbers(&text)
}

fn a_file_that_is_not_there_is_an_error(kind: SessionKind) {
    assert_eq!(
        refusal(kind, "/nonexistent/libadd.so"),
        "worker 1: ffi.load_library: can't open the library `/nonexistent/libadd.so`: No such file or directory (os error \
         2)"
    );
}

fn a_file_that_is_no_library_is_an_error(kind: SessionKind) {
    let file = folder().join("text.so");
    fs::write(&file, "int add(int a, int b);").unwrap();
    let text = "is no shared library: it does not start as an ELF file";
    assert_eq!(refusal(kind, &*file), format!("worker 1: ffi.load_library: `{}` {text}", file.display()));
    let sent = refusal(kind, LibraryFile::new(&*file).send());
    assert_eq!(sent, format!("worker 1: ffi.load_sent_library: `text.so` {text}"));
    let empty = folder().join("empty.so");
    fs::write(&empty, "").unwrap();
    assert_eq!(refusal(kind, &*empty), format!("worker 1: ffi.load_library: `{}` {text}", empty.display()));
    // The header of a library, and nothing behind it.
    let library = library!("plain.c");
    let short = folder().join("short.so");
    fs::write(&short, &fs::read(library).unwrap()[..64]).unwrap();
    let start = format!("worker 1: ffi.load_library: the loader refused the library `{}`: ", short.display());
    let text = refusal(kind, &*short);
    assert!(text.strip_prefix(&start).is_some_and(|why| !why.is_empty()), "{text}");
}

fn a_library_of_another_machine_is_an_error(kind: SessionKind) {
    let library = library!("plain.c");
    let mut bytes = fs::read(library).unwrap();
    // `e_machine` of s390x.
    bytes[18..20].copy_from_slice(&22u16.to_le_bytes());
    let file = folder().join("other.so");
    fs::write(&file, bytes).unwrap();
    let text = refusal(kind, &*file);
    let start = format!(
        "worker 1: ffi.load_library: `{}` is a library for s390x (64 bits), and this program is for ",
        file.display()
    );
    assert!(text.starts_with(&start), "{text}");
}

fn an_undefined_symbol_is_an_error_that_names_it(kind: SessionKind) {
    let library = library!("undefined.c");
    let path = library.display();
    assert_eq!(
        refusal(kind, &*library),
        format!(
            "worker 1: ffi.load_library: the loader refused the library `{path}`: undefined symbol: nobody_defines_this"
        )
    );
}

fn a_library_that_needs_libtvm_ffi_is_an_error_without_it(kind: SessionKind) {
    let library = library!("raises.c");
    let text = refusal(kind, &*library);
    let start = format!(
        "worker 1: ffi.load_library: the loader refused the library `{}`: undefined symbol: \
         TVMFFIErrorSetRaisedFromCStr; it needs libtvm_ffi, but libtvm_ffi is not available; tried \
         /nonexistent/libtvm_ffi.so: ",
        library.display()
    );
    assert!(text.starts_with(&start), "{text}");
}

fn a_library_that_is_linked_to_libtvm_ffi_is_an_error_without_it(kind: SessionKind) {
    let Some(tvm) = disco_conformance::libtvm_ffi() else { return };
    let Some(library) = linked(&tvm) else { return };
    let text = refusal(kind, &*library);
    let start = format!(
        "worker 1: ffi.load_library: the loader refused the library `{}`: libtvm_ffi.so: cannot open shared object file: \
         No such file or directory; it needs libtvm_ffi, but libtvm_ffi is not available; tried \
         /nonexistent/libtvm_ffi.so: ",
        library.display()
    );
    // The loader names the missing library before the colon or the one that needs it, by its version.
    assert!(
        text.starts_with(&start) || text.contains("it needs libtvm_ffi, but libtvm_ffi is not available"),
        "{text}"
    );
}

fn a_compiled_library_is_an_error_without_libtvm_ffi(kind: SessionKind) {
    let library = library!("compiled.c");
    let text = refusal(kind, &*library);
    let start = format!(
        "worker 1: ffi.load_library: the library `{}` needs libtvm_ffi, but libtvm_ffi is not available; tried \
         /nonexistent/libtvm_ffi.so: ",
        library.display()
    );
    assert!(text.starts_with(&start), "{text}");
}

fn a_function_that_is_not_there_is_an_error(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let text = failure(&session, &module, "add5", ());
    assert_eq!(
        without_numbers(&text),
        "worker 1: ffi.function: the library `libplain.so` has no function `add5`: it exports no symbol `__tvm_ffi_add5`"
    );
}

fn a_failure_without_an_error_is_an_error(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let text = failure(&session, &module, "fails_without_an_error", ());
    assert_eq!(
        without_numbers(&text),
        "worker 1: libplain.so:fails_without_an_error: RuntimeError: the function failed and raised no error"
    );
}

fn invalid_results_are_errors_that_name_them(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let dtype = 2 | 32 << 8 | 4 << 16;
    for (type_index, content, found) in [
        (-1, 0, "a value of type -1, which no result has"),
        (7, 0, "a value of type 7, which no result has"),
        (8, 0, "a value of type 8, which no result has"),
        (63, 5, "a value of type 63, which no result has"),
        (70, 0, "an object of type 70 at the address 0x0"),
        (65, 0x1001, "an object of type 65 at the address 0x1001"),
        (5, dtype, "a dtype (code 2, 32 bits, 4 lanes) that Disco does not know"),
        (6, 3, "a device of kind 3, which Disco does not know"),
    ] {
        let text = failure(&session, &module, "returns", (type_index, content));
        let expected = format!("worker 1: libplain.so:returns: the library's function returned {found}");
        assert_eq!(without_numbers(&text), expected);
    }
    for (name, found) in [
        ("returns_a_lie", "a value of type 70 whose object says that it has type 65"),
        ("returns_a_long_small_string", "a small string of 9 bytes"),
        ("returns_no_utf8", "a string that is not UTF-8 (invalid utf-8 sequence of 1 bytes from index 1)"),
    ] {
        let text = failure(&session, &module, name, ());
        let expected = format!("worker 1: libplain.so:{name}: the library's function returned {found}");
        assert_eq!(without_numbers(&text), expected);
    }
}

fn an_argument_count_is_up_to_the_library(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("plain.c"));
    let text = failure(&session, &module, "identity", (1, 2));
    assert!(text.ends_with("RuntimeError: the function failed and raised no error"), "{text}");
}

fn an_exception_that_leaves_a_function_is_an_error(kind: SessionKind) {
    let library = library!("throws.cpp");
    // libtvm_ffi catches exceptions. It is in use once a library needs it.
    let needs_it = library!("raises.c");
    let session = session(kind);
    load(&session, needs_it);
    let module = load(&session, library);
    let text = failure(&session, &module, "throws", ());
    assert_eq!(without_numbers(&text), "worker 1: libthrows.so:throws: InternalError: thrown through");
}

fn an_exception_ends_a_worker_process_by_a_signal(kind: SessionKind) {
    let library = library!("throws.cpp");
    let text = lost(kind, &library, "throws", |_| Vec::new());
    assert_eq!(text, "worker 1 lost: its process ended: signal: 6 (SIGABRT)");
}

fn a_crash_ends_a_worker_process_by_a_signal(kind: SessionKind) {
    let library = library!("plain.c");
    let text = lost(kind, &library, "crashes", |_| Vec::new());
    assert_eq!(text, "worker 1 lost: its process ended: signal: 11 (SIGSEGV)");
}

/// Calls a function on worker 1, which is a process that ends in it, and returns the text of the loss.
pub(crate) fn lost(
    kind: SessionKind,
    library: &Path,
    name: &str,
    args: impl Fn(&disco::LaneSession) -> Vec<disco::DRef>,
) -> String {
    let session = session(kind);
    let module = load(&session, library);
    // Worker 0 is a thread of this process: it must not call the function.
    let function = block_on(module.function(&session, name)).unwrap();
    let mut all = disco::Arguments::default();
    all.push(1);
    all.push(&function);
    let args = args(&session);
    args.iter().for_each(|arg| all.push(arg));
    let caller = if args.is_empty() { "ffi_tests.only_on" } else { "ffi_tests.only_on_with" };
    let only = block_on(session.call(caller, all)).unwrap();
    let text = block_on(session.value(&only, WorkerId::new(1))).unwrap_err().to_string();
    without_core_dump(&text)
}

/// The text without the note of a core dump, which the settings of the machine decide.
fn without_core_dump(text: &str) -> String {
    text.replace(" (core dumped)", "")
}

disco_core::register_function!("ffi_tests.only_on", only_on);
disco_core::register_function!("ffi_tests.only_on_with", only_on_with);

/// Calls a function on one worker.
fn only_on(ctx: &mut WorkerContext, worker: u32, function: Function) -> Result<Object, BoxError> {
    if ctx.worker() == WorkerId::new(worker) {
        function.call(ctx, &Args::of_objects(&[]))
    } else {
        Ok(disco::Value::None.into())
    }
}

/// As [`only_on`], with an argument.
fn only_on_with(ctx: &mut WorkerContext, worker: u32, function: Function, arg: Object) -> Result<Object, BoxError> {
    if ctx.worker() == WorkerId::new(worker) {
        function.call(ctx, &Args::of_objects(&[arg]))
    } else {
        Ok(disco::Value::None.into())
    }
}

fn libtvm_ffi_of_another_version_is_refused(_: SessionKind) {
    let library = library!("version.c");
    let test = std::env::current_exe().unwrap();
    let name = "sessions::a_library_that_needs_libtvm_ffi_is_an_error_without_it::without_libtvm_ffi::threads";
    let output = std::process::Command::new(test)
        .args(["--exact", name])
        .env(super::MODE, "without_libtvm_ffi")
        .env("DISCO_TVM_FFI_LIBRARY", &library)
        .output()
        .unwrap();
    // The other test expects another reason, and prints the one that it finds.
    let text = String::from_utf8_lossy(&output.stdout);
    let why = format!(
        "libtvm_ffi is not available; tried {}: it has version 0.9.3 of the ABI, and Disco knows 0.1",
        library.display()
    );
    assert!(text.contains(&why), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

fn a_list_that_contains_itself_is_an_error(kind: SessionKind) {
    let session = session(kind);
    let text = block_on(async {
        let global = async |name: &str| Module::global_function(&session, name).await;
        // Disco has no value for a list with a function, so the list stays an object of the library.
        let object = session.call(&global("ffi.List").await?, (&global("ffi.List").await?,)).await?;
        session.call(&global("ffi.ListAppend").await?, (&object, &object)).await?;
        session.call(&global("ffi.ListErase").await?, (&object, 0)).await?;
        session.call(&global("ffi.ListGetItem").await?, (&object, 0)).await?;
        session.sync_all().await
    });
    let text = text.unwrap_err().to_string();
    assert!(
        text.ends_with("the library's function returned arrays and maps that are nested more than 16 deep"),
        "{text}"
    );
}
