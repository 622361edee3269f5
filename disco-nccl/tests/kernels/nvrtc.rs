//! Compiles the kernels with an NVRTC that `cargo xtask test --long` fetches. No GPU is needed.
//!
//! Spills and registers of each kernel come from the report of ptxas (`--ptxas-options=-v`) in NVRTC's log.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use disco_conformance::Fetched;
use disco_core::Error;
use disco_dl::Candidate;
use disco_nccl::p2p::kernels::{self, Architecture, Nvrtc};

const LIBRARY_VARIABLE: &str = "DISCO_NVRTC_LIBRARY";
/// The first supported architecture, that of A100, and that of H100.
const ARCHITECTURES: [Architecture; 3] = [Architecture::new(7, 0), Architecture::new(8, 0), Architecture::new(9, 0)];

fn nvrtc() -> Option<Nvrtc> {
    let folder = Fetched::new("nvidia-cuda-nvrtc-cu12-12.8.93").required_by("nccl").find()?;
    let nvrtc = Nvrtc::find([Candidate::file(folder.join("lib/libnvrtc.so.12"))]).unwrap();
    assert_eq!(nvrtc.version(), (12, 8));
    Some(nvrtc)
}

#[test]
fn every_kernel_compiles_without_register_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    let names = kernels::KERNELS.map(|row| row.2);
    for architecture in ARCHITECTURES {
        let compiled = kernels::compile(&nvrtc, architecture, &["--ptxas-options=-v"]).unwrap();
        assert!(compiled.cubin.starts_with(b"\x7fELF"));
        for name in names.iter().chain([&kernels::BARRIER]).map(|name| name.to_str().unwrap()) {
            let section = format!(".text.{name}\0");
            assert!(compiled.cubin.windows(section.len()).any(|bytes| bytes == section.as_bytes()), "{name}");
            let report = PtxasReport::of(&compiled.log, name, architecture);
            assert_eq!((report.stack, report.stores, report.loads), (0, 0, 0), "{name} for {architecture}");
            // With 64 registers, two blocks of 512 threads fit on a multiprocessor.
            assert!(report.registers <= 64, "{name} for {architecture}: {} registers", report.registers);
            eprintln!("{architecture} {name}: {} registers", report.registers);
        }
    }
}

/// The kernels of disco-candle, whose tests have no NVRTC.
#[test]
fn attention_compiles_without_register_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/disco-candle/src/paged/attention.cu");
    let source = kernels::MACHINE.to_owned() + &fs::read_to_string(file).unwrap();
    for architecture in ARCHITECTURES {
        let options = [format!("--gpu-architecture={architecture}"), "--std=c++17".into(), "--ptxas-options=-v".into()];
        let compiled = nvrtc.compile(("attention.cu", &source), &[], &options).unwrap();
        for (dtype, width) in
            ["f32", "f16", "bf16"].into_iter().flat_map(|dtype| [64, 128, 256].map(|width| (dtype, width)))
        {
            let name = format!("disco_attention_{dtype}_{width}");
            let report = PtxasReport::of(&compiled.log, &name, architecture);
            assert_eq!((report.stack, report.stores, report.loads), (0, 0, 0), "{name} for {architecture}");
            eprintln!("{architecture} {name}: {} registers", report.registers);
        }
    }
}

#[test]
fn a_failed_compilation_returns_the_compiler_log() {
    let Some(nvrtc) = nvrtc() else { return };
    let unknown = kernels::compile(&nvrtc, Architecture::new(77, 0), &[]).unwrap_err();
    assert!(matches!(unknown, Error::Library { function: "nvrtcCompileProgram", .. }), "{unknown}");
    assert!(unknown.to_string().contains("--gpu-architecture"), "{unknown}");
    let broken = kernels::compile(&nvrtc, ARCHITECTURES[2], &["-DMAX_WORLD=8"]).unwrap_err().to_string();
    assert!(broken.contains("handshake.cuh(") && broken.contains("error:"), "{broken}");
}

#[test]
fn an_old_architecture_is_refused_before_anything_is_compiled() {
    let Some(nvrtc) = nvrtc() else { return };
    let old = kernels::compile(&nvrtc, Architecture::new(6, 1), &[]).unwrap_err();
    assert_eq!(old.to_string(), "nccl does not support all-reduce kernels for sm_61; they need sm_70 or later");
}

/// The test that child processes of [`rerun_with_library`] run.
#[test]
fn compiles_kernels_in_a_child_process() {
    let Some(file) = env::var_os(LIBRARY_VARIABLE) else { return };
    let cubin = || kernels::cubin(ARCHITECTURES[2]);
    if Path::new(&file).is_file() {
        let (first, second) = (cubin().unwrap(), cubin().unwrap());
        assert!(first.starts_with(b"\x7fELF") && Arc::ptr_eq(&first, &second));
    } else {
        let absent = cubin().unwrap_err().to_string();
        assert!(absent.starts_with("NVRTC is not available; tried /nowhere/libnvrtc.so: "), "{absent}");
    }
}

#[test]
fn a_process_compiles_once_for_an_architecture() {
    let Some(nvrtc) = nvrtc() else { return };
    rerun_with_library(nvrtc.file());
}

#[test]
fn a_missing_compiler_returns_unavailable() {
    rerun_with_library("/nowhere/libnvrtc.so");
}

/// Runs [`compiles_kernels_in_a_child_process`] in a child process whose NVRTC is `file`.
fn rerun_with_library(file: &str) {
    let mut command = Command::new(env::current_exe().unwrap());
    let output = command
        .args(["--exact", "nvrtc::compiles_kernels_in_a_child_process"])
        .env(LIBRARY_VARIABLE, file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// The report of ptxas about a kernel.
struct PtxasReport {
    stack: u32,
    stores: u32,
    loads: u32,
    registers: u32,
}

impl PtxasReport {
    fn of(log: &str, kernel: &str, architecture: Architecture) -> Self {
        let start = format!("Compiling entry function '{kernel}' for '{architecture}'");
        let (_, text) = log.split_once(&start).unwrap_or_else(|| panic!("{log}: no {kernel}"));
        let text = text.split_once("Compile time").map_or(text, |(text, _)| text);
        let before = |words: &str| -> u32 {
            let (text, _) = text.split_once(words).unwrap_or_else(|| panic!("{text}: no{words}"));
            text.split_whitespace().next_back().unwrap().parse().unwrap()
        };
        let [stack, stores, loads, registers] =
            [" bytes stack frame", " bytes spill stores", " bytes spill loads", " registers"].map(before);
        Self { stack, stores, loads, registers }
    }
}
