//! `disco topo`, on the test double of the CUDA driver and of NVML.

use std::path::Path;

use super::double::{disco, text};
use disco_gpu_double::folder::{NAMES, hide, with};
use serde_json::{Value, json};

crate::trials::tests!("gpus::topo":
    a_dgx_1_is_a_hybrid_cube_mesh_with_relays,
    a_subset_of_a_dgx_1_has_only_the_links_within_it,
    gpus_on_switches_are_fully_connected,
    a_failing_nvml_call_is_the_reason_for_unknown_links,
    without_nvml_the_devices_and_the_reason_are_printed,
    an_nvml_without_remote_device_types_finds_links_between_gpus_but_not_through_switches,
    a_missing_driver_or_device_is_reported_with_success,
);

/// The text that `disco topo` prints, without the line of the host name, which is checked here.
fn topo(folder: &Path, variables: &[(&str, &str)]) -> String {
    let shown = disco(folder, variables, &["topo"]);
    assert!(shown.status.success(), "{}", text(&shown));
    let shown = text(&shown);
    let (host, rest) = shown.split_once('\n').unwrap();
    assert_eq!(host, format!("host       {}", this_host()));
    rest.to_owned()
}

fn topo_json(folder: &Path, variables: &[(&str, &str)]) -> Value {
    let shown = disco(folder, variables, &["topo", "--json"]);
    assert!(shown.status.success(), "{}", text(&shown));
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["host"], this_host());
    shown
}

fn this_host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

/// The JSON output on a machine of kind `machine`, of whose GPUs CUDA lists `devices`.
fn on(machine: &str, devices: usize) -> Value {
    let devices = devices.to_string();
    topo_json(&disco_gpu_double::folder(), &[("GPU_DOUBLE_NVLINK", machine), ("GPU_DOUBLE_DEVICES", &devices)])
}

fn why(shown: &Value) -> Vec<&str> {
    shown["why"].as_array().unwrap().iter().map(|why| why.as_str().unwrap()).collect()
}

fn a_dgx_1_is_a_hybrid_cube_mesh_with_relays() {
    let nowhere = ("DISCO_NVRTC_LIBRARY", "/nowhere/libnvrtc.so");
    let variables = [("GPU_DOUBLE_NVLINK", "dgx1"), ("GPU_DOUBLE_DEVICES", "8"), nowhere];
    let expected = "\
cuda:0     0000:01:00.0  GPU double
cuda:1     0000:02:00.0  GPU double
cuda:2     0000:03:00.0  GPU double
cuda:3     0000:04:00.0  GPU double
cuda:4     0000:05:00.0  GPU double
cuda:5     0000:06:00.0  GPU double
cuda:6     0000:07:00.0  GPU double
cuda:7     0000:08:00.0  GPU double
links       0  1  2  3  4  5  6  7
         0  -  1  1  2  2  0  0  0
         1  1  -  2  1  0  2  0  0
         2  1  2  -  2  0  0  1  0
         3  2  1  2  -  0  0  0  1
         4  2  0  0  0  -  1  1  2
         5  0  2  0  0  1  -  2  1
         6  0  0  1  0  1  2  -  2
         7  0  0  0  1  2  1  2  -
topology   hybrid_cube_mesh
           each of 8 devices has links to 4 others, and shares no neighbour with one of them, its relay: 0-4 1-5 2-6 3-7
all_reduce kernels possible (backend cuda_p2p)
kernels    NVRTC is not available; tried /nowhere/libnvrtc.so: cannot open shared object file: No such file or directory
";
    assert_eq!(topo(&disco_gpu_double::folder(), &variables), expected);
    let shown = on("dgx1", 8);
    assert_eq!((&shown["topology"], &shown["relays"]), (&json!("hybrid_cube_mesh"), &json!([4, 5, 6, 7, 0, 1, 2, 3])));
    assert_eq!(shown["links"][3], json!([2, 1, 2, 0, 0, 0, 0, 1]));
    assert_eq!(shown["devices"][7], json!({"device": "cuda:7", "name": "GPU double", "bus_id": "0000:08:00.0"}));
    assert_eq!(
        (&shown["forced"], &shown["all_reduce"]),
        (&json!(false), &json!("kernels possible (backend cuda_p2p)"))
    );
    let lacking = with("gpu-double-no-launch", &NAMES, |object| hide(object, "cuLaunchKernel"));
    let lacking = topo_json(&lacking, &[]);
    assert_eq!(lacking["kernels"], json!({"ready": false, "detail": "the CUDA driver lacks cuLaunchKernel"}));
}

/// Links to GPUs that CUDA does not list are not counted.
fn a_subset_of_a_dgx_1_has_only_the_links_within_it() {
    let half = on("dgx1", 4);
    assert_eq!(half["topology"], "fully_connected");
    assert_eq!(half["links"], json!([[0, 1, 1, 2], [1, 0, 2, 1], [1, 2, 0, 2], [2, 1, 2, 0]]));
    assert_eq!(why(&half), ["each two devices have links both ways, 1 to 2 of them"]);
    let most = on("dgx1", 7);
    assert_eq!((&most["topology"], &most["all_reduce"]), (&json!("unknown"), &json!("NCCL alone")));
    assert_eq!(why(&most).last(), Some(&"it is no hybrid cube mesh: there are 7 devices, not 8"));
}

fn gpus_on_switches_are_fully_connected() {
    let h100 = on("h100", 8);
    assert_eq!(
        (&h100["topology"], &h100["all_reduce"]),
        (&json!("fully_connected"), &json!("kernels possible (backend cuda_p2p)"))
    );
    assert_eq!(h100["links"][1], json!([18, 0, 18, 18, 18, 18, 18, 18]));
    assert_eq!(why(&h100), ["each two devices have links both ways, 18 of them"]);
    assert_eq!(h100.get("relays"), None);
    let dgx2 = on("dgx2", 16);
    assert_eq!(dgx2["topology"], "fully_connected");
    assert_eq!(dgx2["all_reduce"], "kernels possible (backend cuda_p2p) among 2 to 8 devices");
    assert_eq!((dgx2["links"].as_array().unwrap().len(), &dgx2["links"][15][0]), (16, &json!(6)));
    let variables = [("GPU_DOUBLE_NVLINK", "h100"), ("GPU_DOUBLE_DEVICES", "2")];
    let shown = topo(&disco_gpu_double::folder(), &variables);
    assert!(
        shown.contains("\nlinks       0  1\n         0  - 18\n         1 18  -\ntopology   fully_connected\n"),
        "{shown}"
    );
}

fn a_failing_nvml_call_is_the_reason_for_unknown_links() {
    let folder = disco_gpu_double::folder();
    for (fault, expected) in [
        ("nvmlInit_v2:0:1=18", "nvmlInit_v2 returned 18: Driver/library version mismatch"),
        (
            "nvmlDeviceGetHandleByPciBusId_v2:3:1=4",
            "nvmlDeviceGetHandleByPciBusId_v2 returned 4: Insufficient Permissions",
        ),
        ("nvmlDeviceGetNvLinkState:2:5=15", "nvmlDeviceGetNvLinkState returned 15: GPU is lost"),
        (
            "nvmlDeviceGetNvLinkRemoteDeviceType:1:1=999",
            "nvmlDeviceGetNvLinkRemoteDeviceType returned 999: Unknown Error",
        ),
        ("nvmlDeviceGetNvLinkRemotePciInfo_v2:0:6=1", "nvmlDeviceGetNvLinkRemotePciInfo_v2 returned 1: Uninitialized"),
    ] {
        let shown = topo_json(&folder, &[("GPU_DOUBLE_NVLINK", "dgx1"), ("GPU_DOUBLE_FAULTS", fault)]);
        assert_eq!(why(&shown), [format!("the links are not known: nvml: {expected}")]);
        assert_eq!(
            (&shown["topology"], &shown["links"], &shown["all_reduce"]),
            (&json!("unknown"), &json!(null), &json!("NCCL alone"))
        );
    }
    // NVML finds fewer devices than CUDA.
    let shown = on("dgx1", 9);
    assert_eq!(why(&shown), ["the links are not known: nvml: nvmlDeviceGetHandleByPciBusId_v2 returned 6: Not Found"]);
}

fn without_nvml_the_devices_and_the_reason_are_printed() {
    let folder = with("gpu-double-no-nvml", &["libcuda.so.1", "libcuda.so", "libnccl.so.2"], |_| {});
    let shown = topo(&folder, &[("GPU_DOUBLE_DEVICES", "2")]);
    let expected = "\
cuda:0     0000:01:00.0  GPU double
cuda:1     0000:02:00.0  GPU double
topology   unknown
           the links are not known: NVML is not available; tried libnvidia-ml.so.1: cannot open shared object file";
    assert!(shown.starts_with(expected) && shown.contains("\nall_reduce NCCL alone\nkernels    "), "{shown}");
    let lacks = |object: &mut Vec<u8>| hide(object, "nvmlDeviceGetNvLinkState");
    let shown = topo_json(&with("gpu-double-old-nvml", &NAMES, lacks), &[]);
    assert!(why(&shown)[0].ends_with("tried libnvidia-ml.so.1: it lacks nvmlDeviceGetNvLinkState"), "{shown}");
}

/// An old NVML knows the remote end's address of a link, but not its type.
fn an_nvml_without_remote_device_types_finds_links_between_gpus_but_not_through_switches() {
    let old = |object: &mut Vec<u8>| hide(object, "nvmlDeviceGetNvLinkRemoteDeviceType");
    let folder = with("gpu-double-old-links", &NAMES, old);
    let shown = |machine| topo_json(&folder, &[("GPU_DOUBLE_NVLINK", machine), ("GPU_DOUBLE_DEVICES", "8")]);
    assert_eq!(shown("dgx1")["topology"], "hybrid_cube_mesh");
    assert_eq!((&shown("h100")["topology"], &shown("h100")["links"][0][1]), (&json!("unknown"), &json!(0)));
}

fn a_missing_driver_or_device_is_reported_with_success() {
    let nothing = with("gpu-double-none", &[], |_| {});
    let shown = topo(&nothing, &[]);
    let expected = "devices    none\n           the CUDA driver is not available; tried libcuda.so, libcuda.so.1";
    assert!(shown.starts_with(expected), "{shown}");
    let shown = topo_json(&disco_gpu_double::folder(), &[("GPU_DOUBLE_INIT", "100")]);
    assert!(why(&shown)[0].contains("cuInit returned 100: no CUDA-capable device is detected"), "{shown}");
    assert_eq!((&shown["devices"], &shown["links"], &shown["all_reduce"]), (&json!([]), &json!(null), &json!(null)));
    let none = on("pcie", 0);
    assert_eq!(why(&none), ["a CUDA device is not available; tried the CUDA driver: it shows no device"]);
}
