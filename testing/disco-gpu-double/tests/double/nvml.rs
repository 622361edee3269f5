//! NVML: machines and their links.

use crate::common::child::alone;
use std::ffi::CStr;
use std::ptr;

use crate::common::set;
use disco_gpu_double::nvml::abi::{Code, Device, DeviceType, PciInfo};
use disco_gpu_double::nvml::exports::library::{
    nvmlDeviceGetHandleByPciBusId_v2, nvmlErrorString, nvmlInit_v2, nvmlShutdown,
};
use disco_gpu_double::nvml::exports::link::{
    nvmlDeviceGetNvLinkRemoteDeviceType, nvmlDeviceGetNvLinkRemotePciInfo_v2, nvmlDeviceGetNvLinkState,
};

const OK: Code = Code::SUCCESS;

fn device(bus_id: &CStr) -> Result<Device, Code> {
    let mut device = ptr::null_mut();
    // SAFETY: the text ends with a NUL byte.
    let code = unsafe { nvmlDeviceGetHandleByPciBusId_v2(bus_id.as_ptr(), Some(&mut device)) };
    if code == OK { Ok(device) } else { Err(code) }
}

fn is_active(device: Device, link: u32) -> Result<bool, Code> {
    let mut state = -1;
    let code = nvmlDeviceGetNvLinkState(device, link, Some(&mut state));
    if code == OK { Ok(state == 1) } else { Err(code) }
}

fn remote(device: Device, link: u32) -> (DeviceType, u32) {
    let mut kind = DeviceType(-1);
    assert_eq!(nvmlDeviceGetNvLinkRemoteDeviceType(device, link, Some(&mut kind)), OK);
    // SAFETY: all fields are integers, for which zeros are valid.
    let mut info: PciInfo = unsafe { std::mem::zeroed() };
    assert_eq!(nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, Some(&mut info)), OK);
    let text: String = info.bus_id.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8 as char).collect();
    assert_eq!(text, format!("00000000:{:02X}:00.0", info.bus));
    (kind, info.bus)
}

#[test]
fn machines_report_their_published_links() {
    alone(|| {
        assert_eq!(device(c"0000:01:00.0"), Err(Code::UNINITIALIZED));
        assert_eq!(nvmlShutdown(), Code::UNINITIALIZED);
        assert_eq!(nvmlInit_v2(), OK);

        let first = device(c"0000:01:00.0").unwrap();
        assert_eq!(device(c"00000000:01:00.0"), Ok(first));
        assert_eq!(device(c"0000:05:00.0"), Err(Code::NOT_FOUND), "the machine has four GPUs");
        assert_eq!(device(c"cuda:0"), Err(Code::INVALID_ARGUMENT));
        assert_eq!(is_active(first, 0), Err(Code::NOT_SUPPORTED));
        assert_eq!(is_active(ptr::null_mut(), 0), Err(Code::INVALID_ARGUMENT));

        set(c"GPU_DOUBLE_NVLINK", c"dgx1");
        let last = device(c"0000:08:00.0").unwrap();
        assert_eq!([0, 5, 6].map(|link| is_active(last, link)), [Ok(true), Ok(true), Err(Code::INVALID_ARGUMENT)]);
        assert_eq!([0, 1, 5].map(|link| remote(last, link)), [4, 5, 7].map(|bus| (DeviceType::GPU, bus)));
        set(c"GPU_DOUBLE_NVLINK", c"broken");
        assert_eq!(is_active(last, 0), Ok(false));
        assert_eq!(nvmlDeviceGetNvLinkRemoteDeviceType(last, 0, None), Code::NOT_SUPPORTED);
        for (name, gpu, links) in [(c"dgx2", c"0000:10:00.0", 6), (c"h100", c"0000:08:00.0", 18)] {
            set(c"GPU_DOUBLE_NVLINK", name);
            let last = device(gpu).unwrap();
            assert!(
                (0..links).all(|link| is_active(last, link) == Ok(true) && remote(last, link).0 == DeviceType::SWITCH)
            );
            assert_eq!(is_active(last, links), Err(Code::INVALID_ARGUMENT));
        }

        set(c"GPU_DOUBLE_FAULTS", c"nvmlDeviceGetNvLinkState:0:2=999,nvmlInit_v2:0:1=9");
        assert_eq!([0, 0, 0].map(|link| is_active(first, link)), [Ok(true), Err(Code(999)), Ok(true)]);
        assert_eq!(nvmlInit_v2(), Code(9));
        // SAFETY: the text is static and ends with a NUL byte.
        assert_eq!(unsafe { CStr::from_ptr(nvmlErrorString(Code(9))) }, c"Driver Not Loaded");
        assert_eq!([nvmlShutdown(), nvmlShutdown()], [OK, Code::UNINITIALIZED]);
    });
}
