//! Tests with the real NCCL, which `cargo xtask check` fetches. They need no GPU.

#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::process::Command;
use std::ptr;
use std::{env, fs};

use disco_ccl::abi::{Code, Comm};
use disco_ccl::{Config, Library, Vendor, Version};
use disco_conformance::Fetched;
use disco_core::{DType, OpKind, Reduction};

/// A Python wheel that contains NCCL.
const NEW: Fetched = Fetched::new("nvidia-nccl-cu12-2.28.9").required_by("nccl");
/// The first version with non-blocking communicators. It lacks all later functions.
const OLD: Fetched = Fetched::long("nvidia-nccl-cu11-2.14.3");

fn library(wheel: Fetched) -> Option<Library> {
    let file = wheel.find()?.join("lib/libnccl.so.2").display().to_string();
    let candidates = vec![&*file.leak()].leak();
    let vendor =
        Vendor { backend: "nccl", library: "NCCL", variable: "DISCO_NO_VARIABLE", candidates, wheels: &[], remedy: "" };
    Some(Library::find(vendor).unwrap())
}

#[test]
fn nccl_2_28_is_accepted_and_has_the_functions_of_its_version() {
    let Some(library) = library(NEW) else { return };
    assert_eq!(library.version(), Version { major: 2, minor: 28, patch: 9 });
    assert!(library.file().ends_with("lib/libnccl.so.2"), "{}", library.file());
    let table = &library.table;
    assert!(table.get_last_error.is_some() && table.comm_init_rank_config.is_some() && table.comm_finalize.is_some());
    assert!(table.comm_split.is_some() && table.gather.is_some() && table.scatter.is_some());
    assert!(table.all_to_all.is_some() && table.all_to_all_rccl.is_none());
}

#[test]
fn nccl_2_14_lacks_the_functions_of_later_versions() {
    let Some(library) = library(OLD) else { return };
    assert_eq!(library.version(), Version { major: 2, minor: 14, patch: 3 });
    let table = &library.table;
    assert!(table.get_last_error.is_some() && table.comm_init_rank_config.is_some() && table.comm_finalize.is_some());
    assert!(table.comm_split.is_none() && table.gather.is_none() && table.scatter.is_none());
    assert!(table.all_to_all.is_none() && table.all_to_all_rccl.is_none());
    let can = library.capabilities(true);
    assert!(can.supports(OpKind::AllReduce, DType::BF16, Some(Reduction::Avg)));
    assert!(!can.supports(OpKind::AllReduce, DType::F8E4M3, Some(Reduction::Sum)));
    assert!(can.supports(OpKind::Broadcast, DType::F8E4M3, None), "operations without a reduction move bytes");
}

#[test]
fn unique_ids_differ() {
    for library in [NEW, OLD].into_iter().filter_map(library) {
        assert_ne!(library.unique_id().unwrap(), library.unique_id().unwrap());
    }
}

#[test]
fn an_empty_group_succeeds() {
    let Some(library) = library(NEW) else { return };
    // SAFETY: the calling thread ends this group below; a group may be empty.
    assert_eq!(unsafe { (library.table.group_start)() }, Code::SUCCESS);
    // SAFETY: the calling thread has started a group.
    assert_eq!(unsafe { (library.table.group_end)() }, Code::SUCCESS);
}

#[test]
fn errors_contain_the_text_of_the_library() {
    let Some(library) = library(NEW) else { return };
    let text = |code| library.check("ncclAllReduce", Code(code)).unwrap_err().to_string();
    assert!(text(4).starts_with("nccl: ncclAllReduce returned 4: invalid argument"), "{}", text(4));
    // A code that the library does not know is an error as well.
    assert!(text(99).starts_with("nccl: ncclAllReduce returned 99: unknown result code"), "{}", text(99));
}

#[test]
fn a_communicator_without_a_gpu_is_an_error_at_once() {
    let has_driver = disco_dl::Library::open(&disco_dl::Candidate::file("libcuda.so.1")).is_ok();
    if has_driver {
        eprintln!("skipped: this machine has a CUDA driver, so it may have a GPU");
        return;
    }
    for library in [NEW, OLD].into_iter().filter_map(library) {
        let (id, mut comm, mut config) =
            (library.unique_id().unwrap(), ptr::null_mut::<std::ffi::c_void>() as Comm, Config::non_blocking());
        // SAFETY: `comm` is a valid output, and `config` has the layout of its version.
        let code = unsafe { library.table.comm_init_rank_config.unwrap()(&mut comm, 1, id, 0, &mut config) };
        let error = library.check("ncclCommInitRankConfig", code).unwrap_err().to_string();
        assert!(error.starts_with("nccl: ncclCommInitRankConfig returned 1: unhandled cuda error"), "{error}");
    }
}

/// Compiles a C program against NCCL's header that prints the offsets of the fields of `Config`, and of the next field.
#[test]
fn config_has_the_layout_of_the_c_header() {
    let Some(folder) = NEW.find() else { return };
    let header = fs::read_to_string(folder.join("include/nccl.h")).unwrap();
    let start = header.find("typedef struct ncclConfig_v").unwrap();
    let end = start + header[start..].find("ncclConfig_t;").unwrap() + "ncclConfig_t;".len();
    let fields =
        ["size", "magic", "version", "blocking", "cgaClusterSize", "minCTAs", "maxCTAs", "netName", "splitShare"];
    let print = fields.map(|field| format!("printf(\"%zu \", offsetof(ncclConfig_t, {field}));")).concat();
    let source =
        format!("#include <stddef.h>\n#include <stdio.h>\n{}\nint main(void) {{ {print} }}", &header[start..end]);
    let program = env::temp_dir().join(format!("disco-nccl-config-{}", std::process::id()));
    let file = program.with_extension("c");
    fs::write(&file, source).unwrap();
    assert!(Command::new("cc").arg(&file).arg("-o").arg(&program).status().unwrap().success());
    let output = Command::new(&program).output().unwrap();
    fs::remove_file(file).unwrap();
    fs::remove_file(program).unwrap();
    // Equal to the offsets in the unit test of `Config`.
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "0 8 12 16 20 24 28 32 40 ");
}
