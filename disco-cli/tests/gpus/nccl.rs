//! The `disco` command with backend `nccl`, on the test double of NCCL and the CUDA driver, and on files that are no
//! libraries.

use std::collections::BTreeSet;

use super::double::{conforms, conforms_in, disco, text, unavailable_reason};
use disco::OpKind;
use disco::activity::RecordKind;
use disco_gpu_double::folder::{NAMES, hide, with};

crate::trials::tests!("gpus::nccl":
    nccl_passes_the_conformance_suite,
    nccl_passes_the_conformance_suite_between_processes,
    an_old_library_passes_its_parts_of_the_conformance_suite_between_processes,
    cuda_p2p_passes_the_conformance_suite,
    a_timeline_names_nccl_and_kernels_as_the_way_of_the_data,
    nccl_passes_the_conformance_suite_with_delayed_completion,
    nccl_passes_the_conformance_suite_with_non_blocking_communicators,
    an_old_library_passes_its_parts_of_the_conformance_suite,
    backends_lists_the_library_the_driver_and_the_devices,
    a_missing_library_is_the_reason_for_an_unavailable_backend,
    an_unsuitable_library_is_the_reason_for_an_unavailable_backend,
    devices_selects_the_device_of_each_worker_and_rejects_duplicates_and_wrong_counts,
);

/// The functions that only RCCL has are hidden, as in NVIDIA's library.
fn nccl_passes_the_conformance_suite() {
    let of_rccl = ["ncclAllToAll", "ncclAllToAllv"];
    let folder = with("gpu-double-nvidia", &NAMES, |object| of_rccl.into_iter().for_each(|name| hide(object, name)));
    // Three ranks make splits of two sizes, and averages that are not exact.
    conforms("nccl", &folder, &[], &[("2", ""), ("3", "f32"), ("3", "abort::"), ("1", "f32")]);
}

/// Worker 0 is a thread of the controller and makes the unique ids; the other workers are processes. Element types do not
/// depend on where the workers run.
fn nccl_passes_the_conformance_suite_between_processes() {
    let parts = [("2", "f32"), ("2", "mixed"), ("3", "abort::"), ("4", "split")];
    conforms_in("processes", "nccl", &disco_gpu_double::folder(), &[], &parts);
}

/// Without `ncclCommSplit`, any rank may make the unique id of a child communicator.
fn an_old_library_passes_its_parts_of_the_conformance_suite_between_processes() {
    let folder = with("gpu-double-2.8-processes", &NAMES, |object| hide_all_since_2_8(object));
    let variables = [("GPU_DOUBLE_NCCL_VERSION", "2804")];
    conforms_in("processes", "nccl", &folder, &variables, &[("3", "f32"), ("4", "split")]);
}

/// Kernels run the sums of three dtypes, NCCL the other operations.
fn cuda_p2p_passes_the_conformance_suite() {
    let Some(nvrtc) = disco_conformance::nvrtc() else { return };
    let nvrtc = nvrtc.to_str().unwrap();
    let variables = [("DISCO_P2P_TOPOLOGY", "fully_connected"), ("DISCO_NVRTC_LIBRARY", nvrtc)];
    let runs = [("2", "f32"), ("4", "all_reduce::f"), ("3", "all_reduce::bf16"), ("3", "abort::")];
    conforms("cuda_p2p", &disco_gpu_double::folder(), &variables, &runs);
    conforms_in("processes", "cuda_p2p", &disco_gpu_double::folder(), &variables, &[("2", "f32")]);
}

fn a_timeline_names_nccl_and_kernels_as_the_way_of_the_data() {
    let file = std::env::temp_dir().join(format!("disco-nccl-trace-{}.json", std::process::id()));
    let (trace, folder) = (file.to_str().unwrap(), disco_gpu_double::folder());
    let paths = |backend: &str, variables: &[(&str, &str)]| {
        let run = ["run", "--workers", "2", "--trace", trace, "--", env!("CARGO_BIN_EXE_disco")];
        let bench = ["bench", "all_reduce", "--backend", backend, "--workers", "2", "--max-bytes", "64"];
        let ended = disco(&folder, variables, &[&run[..], &bench].concat());
        assert!(ended.status.success(), "{}", text(&ended));
        let trace = disco::trace::Trace::read(&file).unwrap();
        check_launches(&std::fs::read_to_string(&file).unwrap());
        std::fs::remove_file(&file).unwrap();
        let known = trace.workers.iter().filter_map(|worker| worker.recording.as_ref().ok());
        let sums = known.flat_map(|it| &it.records).filter(|it| it.kind == RecordKind::Op(OpKind::AllReduce));
        Vec::from_iter(sums.filter_map(|sum| Some(sum.op.as_ref()?.path.name())).collect::<BTreeSet<_>>())
    };
    assert_eq!(paths("nccl", &[]), ["NCCL"]);
    let Some(nvrtc) = disco_conformance::nvrtc() else { return };
    let variables = [("DISCO_P2P_TOPOLOGY", "fully_connected"), ("DISCO_NVRTC_LIBRARY", nvrtc.to_str().unwrap())];
    let of_kernels = paths("cuda_p2p", &variables);
    assert!(of_kernels.contains(&"p2p kernel"), "{of_kernels:?}");
}

/// Asserts that each time on a device is joined with one launch.
fn check_launches(trace: &str) {
    let count = |parts: [&str; 2]| trace.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count();
    let times = count(["\"ph\":\"X\"", "\"cat\":\"device\""]);
    let ends = ["s", "f"].map(|phase| count([&format!("\"ph\":\"{phase}\""), "\"cat\":\"launch\""]));
    assert!(times > 0);
    assert_eq!(ends, [times; 2]);
}

/// The delay separates the launch of an operation from its completion.
fn nccl_passes_the_conformance_suite_with_delayed_completion() {
    let folder = disco_gpu_double::folder();
    conforms("nccl", &folder, &[("GPU_DOUBLE_DELAY_US", "300")], &[("2", "i32"), ("3", "abort::")]);
}

/// Communicators are non-blocking before NCCL 2.22.3. Here all launches on them complete in the background.
fn nccl_passes_the_conformance_suite_with_non_blocking_communicators() {
    let variables = [("GPU_DOUBLE_NCCL_VERSION", "22105"), ("GPU_DOUBLE_CONNECT", "2")];
    conforms("nccl", &disco_gpu_double::folder(), &variables, &[("2", "f32"), ("3", "abort::"), ("2", "split")]);
}

fn hide_all_since_2_8(object: &mut [u8]) {
    let later = [
        "ncclGetLastError",
        "ncclCommInitRankConfig",
        "ncclCommFinalize",
        "ncclCommSplit",
        "ncclAlltoAll",
        "ncclAllToAll",
        "ncclAllToAllv",
        "ncclGather",
        "ncclScatter",
    ];
    later.into_iter().for_each(|function| hide(object, function));
}

/// 2.8 has no non-blocking communicators and no split; most operations are built from sends and receives.
fn an_old_library_passes_its_parts_of_the_conformance_suite() {
    let folder = with("gpu-double-2.8", &NAMES, |object| hide_all_since_2_8(object));
    let variables = [("GPU_DOUBLE_NCCL_VERSION", "2804")];
    // Aborts of operations built from sends are left out: the first send to a peer blocks inside the library until the
    // peer connects, and can't be aborted.
    let parts = [
        ("2", "f32"),
        ("2", "u8"),
        ("2", "split"),
        ("2", "group"),
        ("2", "mixed"),
        ("3", "f32"),
        ("3", "abort::all_reduce"),
        ("3", "abort::all_gather::"),
        ("3", "abort::broadcast"),
    ];
    conforms("nccl", &folder, &variables, &parts);
    let checked = disco(&folder, &variables, &["check", "--backend", "nccl", "--workers", "2", "--filter", "avg"]);
    assert!(text(&checked).contains("skipped: nccl does not support all_reduce avg of f32"), "{}", text(&checked));
}

fn backends_lists_the_library_the_driver_and_the_devices() {
    let folder = disco_gpu_double::folder();
    let variables = [("GPU_DOUBLE_DEVICES", "2"), ("GPU_DOUBLE_DRIVER", "12040")];
    let listed = text(&disco(&folder, &variables, &["backends"]));
    let (_, nccl) = listed.split_once("nccl     available    NCCL 2.28.9 (").unwrap();
    let lines: Vec<&str> = nccl.lines().take(4).collect();
    assert!(lines[0].ends_with("/libnccl.so.2)"), "{listed}");
    assert_eq!(
        lines[1..],
        ["         driver: CUDA 12.4", "         cuda:0: GPU double", "         cuda:1: GPU double"]
    );
}

fn a_missing_library_is_the_reason_for_an_unavailable_backend() {
    let nothing = with("gpu-double-none", &[], |_| {});
    let why = unavailable_reason("nccl", &nothing, &[]);
    assert!(why.starts_with("NCCL is not available; tried libnccl.so.2, libnccl.so, "), "{why}");
    let remedy = "; install it (`pip install nvidia-nccl-cu13`), or set DISCO_NCCL_LIBRARY to its path";
    assert!(why.contains(": cannot open shared object file: No such file or directory"), "{why}");
    assert!(why.ends_with(remedy), "{why}");
    let why = unavailable_reason("nccl", &nothing, &[("DISCO_NCCL_LIBRARY", "/nowhere/libnccl.so.2")]);
    let expected =
        "NCCL is not available; tried /nowhere/libnccl.so.2: cannot open shared object file: No such file or directory";
    assert_eq!(why, format!("{expected}{remedy}"));

    let no_driver = with("gpu-double-nccl", &["libnccl.so.2"], |_| {});
    let why = unavailable_reason("nccl", &no_driver, &[]);
    let tried = "the CUDA driver is not available; tried libcuda.so, libcuda.so.1";
    assert!(why.starts_with(tried) && why.contains(": cannot open shared object file"), "{why}");
}

fn an_unsuitable_library_is_the_reason_for_an_unavailable_backend() {
    let folder = disco_gpu_double::folder();
    let why = unavailable_reason("nccl", &folder, &[("GPU_DOUBLE_NCCL_VERSION", "2604")]);
    assert!(why.contains("tried libnccl.so.2: it is NCCL 2.6.4; 2.7.0 or later is needed"), "{why}");
    let why = unavailable_reason("nccl", &folder, &[("GPU_DOUBLE_DRIVER", "10020")]);
    assert!(why.contains("libcuda.so.1: its CUDA is 10.2; 11.4 or later is needed"), "{why}");
    let why = unavailable_reason("nccl", &folder, &[("GPU_DOUBLE_INIT", "100")]);
    assert!(why.contains("libcuda.so.1: cuInit returned 100: "), "{why}");

    let lacks = |object: &mut Vec<u8>| ["ncclSend", "ncclRecv"].into_iter().for_each(|function| hide(object, function));
    let why = unavailable_reason("nccl", &with("gpu-double-lacks", &NAMES, lacks), &[]);
    assert!(why.contains("tried libnccl.so.2: it lacks ncclSend, ncclRecv"), "{why}");
    let lacks = |object: &mut Vec<u8>| hide(object, "cuMemcpyDtoDAsync_v2");
    let why = unavailable_reason("nccl", &with("gpu-double-lacks-copies", &NAMES, lacks), &[]);
    assert!(why.contains("libcuda.so.1: it lacks cuMemcpyDtoDAsync_v2"), "{why}");

    // The stub library of a CUDA toolkit, which cudarc would load.
    let stub = with("gpu-double-stub", &["libcuda.so.1", "libnccl.so.2"], |_| {});
    std::fs::copy(stub.join("double.so"), stub.join("libcuda.so")).unwrap();
    let why = unavailable_reason("nccl", &stub, &[("GPU_DOUBLE_INIT", "34")]);
    assert!(why.contains("tried libcuda.so.1: cudarc would load libcuda.so, which is a different library"), "{why}");

    // An ELF machine type other than this machine's: x86-64 on ARM, else 64-bit ARM.
    let other = if cfg!(target_arch = "aarch64") { 62 } else { 183 };
    let foreign = with("gpu-double-foreign", &NAMES, |object| object[18] = other);
    let why = unavailable_reason("nccl", &foreign, &[]);
    assert!(why.starts_with("NCCL is not available; tried libnccl.so.2"), "{why}");
    let no_library = with("gpu-double-text", &NAMES, |object| *object = b"not a library".to_vec());
    assert!(
        unavailable_reason("nccl", &no_library, &[]).contains("file too short"),
        "{}",
        unavailable_reason("nccl", &no_library, &[])
    );
}

fn devices_selects_the_device_of_each_worker_and_rejects_duplicates_and_wrong_counts() {
    let folder = disco_gpu_double::folder();
    let bench = ["bench", "all_reduce", "--backend", "nccl", "--max-bytes", "4096", "--devices"];
    let run = disco(&folder, &[], &[&bench[..], &["3,1"]].concat());
    assert!(run.status.success() && text(&run).contains("wrong elements: 0"), "{}", text(&run));
    let run = disco(&folder, &[], &[&bench[..], &["1,1"]].concat());
    assert!(!run.status.success() && text(&run).contains("rank 0 and rank 1 are both on device "), "{}", text(&run));
    let run = disco(&folder, &[], &[&bench[..], &["0"]].concat());
    assert!(!run.status.success() && text(&run).contains("1 devices for 2 workers"), "{}", text(&run));
}
