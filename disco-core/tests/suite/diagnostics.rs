//! Compiler messages for types that a program uses in the wrong place.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::env::current_exe;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// The library that this test is linked with, or one with other features.
fn library(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_core = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("libdisco_core-") && name.ends_with(".rlib")
    };
    let age = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    files.filter(is_core).max_by_key(age).expect("the library was built for this test")
}

/// The compiler's message for `code`, which does not compile.
fn complaint(name: &str, code: &str) -> String {
    let folder = current_exe().unwrap().parent().unwrap().to_owned();
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("diagnostics_{name}.rs"));
    let head = "#![allow(dead_code)]\nuse disco_core::*;\npub struct Mine;\n";
    fs::write(&source, format!("{head}{code}\n")).unwrap();
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "--diagnostic-width", "300"]);
    rustc.arg("-L").arg(format!("dependency={}", folder.display()));
    rustc.arg("--extern").arg(format!("disco_core={}", library(&folder).display()));
    rustc.arg("-o").arg(source.with_extension("rmeta"));
    let output = rustc.arg(&source).output().unwrap();
    assert!(!output.status.success(), "{name} compiles");
    String::from_utf8(output.stderr).unwrap()
}

/// Checks that the compiler's message contains each of `texts`.
fn check(name: &str, code: &str, texts: &[&str]) {
    let said = complaint(name, code);
    for text in texts {
        assert!(said.contains(text), "{name}: `{text}` is missing in:\n{said}");
    }
}

#[test]
fn the_message_for_an_invalid_argument_of_a_worker_function_lists_the_valid_types() {
    check(
        "argument",
        "fn f(_: &mut WorkerContext, _: i64, _: Mine) -> Result<()> { Ok(()) }\nregister_function!(\"f\", f);",
        &["error[E0277]: `Mine` is no type of values", "note: a value is an integer", "`Json(value): Json<T>`"],
    );
    check(
        "borrowed",
        "fn f(_: &mut WorkerContext, _: &Tensor) -> Result<()> { Ok(()) }\nregister_function!(\"f\", f);",
        &["no argument of a worker function", "a worker function takes owned arguments"],
    );
}

#[test]
fn the_message_for_an_invalid_result_of_a_worker_function_lists_the_valid_types() {
    check(
        "result",
        "fn f(_: &mut WorkerContext) -> Result<Mine> { Ok(Mine) }\nregister_function!(\"f\", f);",
        &[
            "error[E0277]: `Mine` can't be the result of a worker function",
            "stays on its worker if the function returns `Opaque::new(value)`",
        ],
    );
}

#[test]
fn the_message_for_a_function_without_context_or_result_says_that_it_is_no_worker_function() {
    for (name, code) in
        [("context", "fn f(_: i64) -> Result<()> { Ok(()) }"), ("plain", "fn f(_: &mut WorkerContext) {}")]
    {
        let texts = ["is no worker function", "a worker function is `fn(&mut WorkerContext, ..) -> Result<T, E>`"];
        check(name, &format!("{code}\nregister_function!(\"f\", f);"), &texts);
    }
}

#[test]
fn the_message_for_an_invalid_argument_of_a_call_names_its_type() {
    check(
        "call",
        "pub async fn f(session: &dyn Session, g: &DRef) -> Result<DRef> { session.call(g, (1, Mine)).await }",
        &["error[E0277]: `Mine` can't be an argument of a call", "note: an argument is an integer"],
    );
    check(
        "tuple",
        "pub async fn f(session: &dyn Session, g: &DRef) -> Result<DRef> { session.call(g, 1).await }",
        &["is no list of arguments", "the arguments of a call are a tuple of up to eight: `()`, `(x,)`"],
    );
}

#[test]
fn the_message_for_an_invalid_element_type_names_it() {
    check(
        "element",
        "pub fn f() -> Result<Tensor> { Tensor::from_vec(vec![1usize], 1) }",
        &["error[E0277]: `usize` is no element type of a tensor", "`usize` is `u64` or `u32` as an element"],
    );
}
