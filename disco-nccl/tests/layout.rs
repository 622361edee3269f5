//! What Rust and the kernels' source must agree on, as a C++ compiler sees the source.
//!
//! `DISCO_REQUIRE=tsan` makes it a failure that there is no g++.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use disco_conformance::Required;
use disco_nccl::p2p::kernels::{self, Barrier, Cause, Failure, Params};

#[test]
fn the_kernels_source_says_what_rust_does() {
    let mut source = String::from("#include <cstddef>\n#include <handshake.cuh>\n");
    let mut says = |what: &str, value: usize| writeln!(source, "static_assert({what} == {value});").unwrap();
    for (field, offset) in kernels::FIELDS {
        says(&format!("offsetof(Params, {field})"), offset);
    }
    says("sizeof(Params)", size_of::<Params>());
    says("sizeof(State)", kernels::STATE_BYTES);
    says("MAX_WORLD", kernels::MAX_WORLD);
    says("MAX_BLOCKS", kernels::MAX_BLOCKS);
    says("MAX_THREADS", kernels::MAX_THREADS);
    says("sizeof(uint4)", kernels::VECTOR);
    let failure = |cause: &str, barrier: &str| format!("{cause} << 24 | {barrier} << 16 | 5u << 8 | 9u");
    for (cause, cause_name) in [(Cause::DEADLINE, "DEADLINE"), (Cause::ABORTED, "ABORTED")] {
        for (barrier, barrier_name) in [
            (Barrier::LEADING, "LEADING"),
            (Barrier::MID, "MID"),
            (Barrier::TRAILING, "TRAILING"),
            (Barrier::ALONE, "ALONE"),
        ] {
            let is_read_so = |word: &u32| {
                let read = Failure::of(*word).unwrap();
                (read.cause, read.barrier, read.peer.index(), read.block) == (cause, barrier, 5, 9)
            };
            let word = (0..=0xffff).map(|upper| upper << 16 | 0x0509).find(is_read_so).unwrap();
            says(&format!("({})", failure(cause_name, barrier_name)), word as usize);
        }
    }
    compiles(&source);
}

fn compiles(source: &str) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("g++");
    command.args(["-std=c++20", "-fsyntax-only", "-x", "c++", "-"]);
    command.arg("-I").arg(here.join("tests/tsan")).arg("-I").arg(here.join("src/p2p/kernels"));
    let mut child = match command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            assert!(!Required::from_env().contains("tsan"), "DISCO_REQUIRE: no g++: {error}");
            eprintln!("skipped: no g++: {error}");
            return;
        }
    };
    child.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
