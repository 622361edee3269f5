//! What the compiler says to a program that uses a type where it can't stand.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::env::current_exe;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// The library that this test is linked with, or one of other features.
fn library(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_core = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("libdisco_core-") && name.ends_with(".rlib")
    };
    let age = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    files.filter(is_core).max_by_key(age).expect("the library was built for this test")
}

/// What the compiler says to `code`, which it refuses.
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

/// Checks that the compiler says each of `texts`.
fn check(name: &str, code: &str, texts: &[&str]) {
    let said = complaint(name, code);
    for text in texts {
        assert!(said.contains(text), "{name}: `{text}` is missing in:\n{said}");
    }
}

#[test]
fn an_argument_that_no_worker_function_takes_is_named_with_what_may_stand_there() {
    check(
        "argument",
        "fn f(_: &mut WorkerContext, _: i64, _: Mine) -> Result<()> { Ok(()) }\nregister_function!(\"f\", f);",
        &["error[E0277]: `Mine` can't be an argument of a worker function", "note: an argument is an integer"],
    );
    check(
        "borrowed",
        "fn f(_: &mut WorkerContext, _: &Tensor) -> Result<()> { Ok(()) }\nregister_function!(\"f\", f);",
        &["can't be an argument of a worker function", "a worker function takes owned arguments"],
    );
}

#[test]
fn a_result_that_no_worker_function_returns_is_named_with_what_may_stand_there() {
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
fn a_function_without_a_context_or_a_result_is_no_worker_function() {
    for (name, code) in
        [("context", "fn f(_: i64) -> Result<()> { Ok(()) }"), ("plain", "fn f(_: &mut WorkerContext) {}")]
    {
        let texts = ["is no worker function", "a worker function is `fn(&mut WorkerContext, ..) -> Result<T, E>`"];
        check(name, &format!("{code}\nregister_function!(\"f\", f);"), &texts);
    }
}

#[test]
fn an_argument_that_no_call_takes_is_named() {
    check(
        "call",
        "pub async fn f(session: &impl Session, g: &DRef) -> Result<DRef> { session.call(g, (1, Mine)).await }",
        &["error[E0277]: `Mine` can't be an argument of a call", "note: an argument is an integer"],
    );
    check(
        "tuple",
        "pub async fn f(session: &impl Session, g: &DRef) -> Result<DRef> { session.call(g, 1).await }",
        &["is no list of arguments", "the arguments of a call are a tuple of up to eight: `()`, `(x,)`"],
    );
}

#[test]
fn an_element_type_that_no_tensor_has_is_named() {
    check(
        "element",
        "pub fn f() -> Result<Tensor> { Tensor::from_vec(vec![1usize], 1) }",
        &["error[E0277]: `usize` is no element type of a tensor", "`usize` is `u64` or `u32` as an element"],
    );
}
