//! Compares layouts and constants of Rust with those of the CUDA source, by static assertions that g++ compiles.
//!
//! Without g++ the test is skipped, or fails with `DISCO_REQUIRE=tsan`.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(target_os = "linux")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use disco_conformance::Required;
use disco_nccl::p2p::kernels::{self, Cause, Failure, Params, Phase};

#[test]
fn layouts_and_constants_match_the_cuda_source() {
    let mut source = String::from("#include <cstddef>\n#include <handshake.cuh>\n");
    let mut expect = |what: &str, value: usize| writeln!(source, "static_assert({what} == {value});").unwrap();
    for (field, offset) in kernels::FIELDS {
        expect(&format!("offsetof(Params, {field})"), offset);
    }
    expect("sizeof(Params)", size_of::<Params>());
    expect("sizeof(State)", kernels::STATE_BYTES);
    expect("MAX_WORLD", kernels::MAX_WORLD);
    expect("MAX_BLOCKS", kernels::MAX_BLOCKS);
    expect("MAX_THREADS", kernels::MAX_THREADS);
    expect("sizeof(uint4)", kernels::VECTOR);
    let failure = |cause: &str, phase: &str| format!("{cause} << 24 | {phase} << 16 | 5u << 8 | 9u");
    for (cause, cause_name) in [(Cause::DEADLINE, "DEADLINE"), (Cause::ABORTED, "ABORTED")] {
        for (phase, phase_name) in
            [(Phase::LEADING, "LEADING"), (Phase::MID, "MID"), (Phase::TRAILING, "TRAILING"), (Phase::ALONE, "ALONE")]
        {
            let decodes_to_it = |word: &u32| {
                let read = Failure::of(*word).unwrap();
                (read.cause, read.phase, read.peer.index(), read.block) == (cause, phase, 5, 9)
            };
            let word = (0..=0xffff).map(|upper| upper << 16 | 0x0509).find(decodes_to_it).unwrap();
            expect(&format!("({})", failure(cause_name, phase_name)), word as usize);
        }
    }
    assert_compiles(&source);
}

fn assert_compiles(source: &str) {
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
