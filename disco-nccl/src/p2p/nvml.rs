//! Functions of NVML, and the NVLink connections that it reports.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use disco_ccl::p2p::Ends;
use disco_core::{Error, Result, Unavailable};
use disco_dl::{Candidate, Library};

use super::{BusId, Mesh};

/// Counts the active links between the GPUs with these bus ids. Links to NVSwitches are counted too, and all NVSwitches
/// count as one network. Links to other GPUs are ignored.
///
/// The links of a GPU are queried from number 0 on, up to the first number that the GPU does not have. An NVML without
/// `nvmlDeviceGetNvLinkRemoteDeviceType` does not tell switches from GPUs; then a remote end that is not in the group
/// is ignored, because it may be a GPU.
///
/// # Errors
/// [`Error::Unavailable`] without NVML; errors of NVML, except that a link does not exist.
pub fn mesh(bus_ids: &[BusId]) -> Result<Mesh> {
    let nvml = Nvml::start(functions()?)?;
    let ends = bus_ids.iter().map(|own| nvml.ends(*own, bus_ids)).collect::<Result<Vec<_>>>()?;
    Ok(Mesh::new(&ends))
}

/// The largest number of links of a GPU that are queried.
const MAX_LINKS: c_uint = 20;

/// NVML, initialised. The drop shuts it down.
struct Nvml(Table);

impl Nvml {
    fn start(functions: Table) -> Result<Self> {
        // SAFETY: NVML counts its initialisations, so other users of NVML in this process are unaffected.
        let code = unsafe { (functions.init)() };
        check(&functions, "nvmlInit_v2", code).map(|()| Self(functions))
    }

    fn check(&self, function: &'static str, code: Code) -> Result<()> {
        check(&self.0, function, code)
    }

    /// The remote ends of a GPU's links: peers of `group`, and switches.
    fn ends(&self, own: BusId, group: &[BusId]) -> Result<Ends> {
        let (device, mut ends) = (self.device(own)?, Ends::default());
        for link in 0..MAX_LINKS {
            match self.is_active(device, link)? {
                None => break,
                Some(false) => {}
                Some(true) => self.count_remote_end(device, link, (own, group), &mut ends)?,
            }
        }
        Ok(ends)
    }

    fn device(&self, at: BusId) -> Result<Device> {
        let text = CString::new(at.to_string()).map_err(|_| Error::invalid("a PCI bus id contains a NUL byte"))?;
        let mut device = ptr::null_mut();
        // SAFETY: the text ends with a NUL byte, and `device` is writable.
        let code = unsafe { (self.0.device_by_bus_id)(text.as_ptr(), &mut device) };
        self.check("nvmlDeviceGetHandleByPciBusId_v2", code).map(|()| device)
    }

    /// Whether a link is active. `None` if the GPU has no such link.
    fn is_active(&self, device: Device, link: c_uint) -> Result<Option<bool>> {
        let mut state = EnableState(0);
        // SAFETY: NVML has returned the device handle, and `state` is writable.
        match unsafe { (self.0.link_state)(device, link, &mut state) } {
            Code::INVALID_ARGUMENT | Code::NOT_SUPPORTED => Ok(None),
            code => self.check("nvmlDeviceGetNvLinkState", code).map(|()| Some(state != EnableState::DISABLED)),
        }
    }

    /// Adds the remote end of a link to `ends`.
    fn count_remote_end(
        &self,
        device: Device,
        link: c_uint,
        (own, group): (BusId, &[BusId]),
        ends: &mut Ends,
    ) -> Result<()> {
        match self.remote_type(device, link)? {
            None | Some(DeviceType::GPU) => {
                let remote = self.remote_bus_id(device, link)?;
                ends.peers.extend(group.iter().position(|peer| *peer == remote && remote != own));
            }
            Some(DeviceType::SWITCH) => ends.switches += 1,
            Some(_) => {}
        }
        Ok(())
    }

    /// The type of the device at a link's remote end. `None` if NVML is too old to report it.
    fn remote_type(&self, device: Device, link: c_uint) -> Result<Option<DeviceType>> {
        let Some(remote_type) = self.0.remote_type else { return Ok(None) };
        let mut remote = DeviceType::UNKNOWN;
        // SAFETY: NVML has returned the device handle, and `remote` is writable.
        let code = unsafe { remote_type(device, link, &mut remote) };
        self.check("nvmlDeviceGetNvLinkRemoteDeviceType", code).map(|()| Some(remote))
    }

    fn remote_bus_id(&self, device: Device, link: c_uint) -> Result<BusId> {
        let mut info = PciInfo::default();
        // SAFETY: NVML has returned the device handle, and `info` is writable and has NVML's layout.
        let code = unsafe { (self.0.remote_pci_info)(device, link, &mut info) };
        self.check("nvmlDeviceGetNvLinkRemotePciInfo_v2", code)?;
        Ok(BusId { domain: info.domain, bus: info.bus, device: info.device })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: `start` initialised NVML once for this value.
        let code = unsafe { (self.0.shutdown)() };
        if let Err(error) = self.check("nvmlShutdown", code) {
            tracing::warn!(%error, "NVML stays initialised: its shutdown failed");
        }
    }
}

fn check(functions: &Table, function: &'static str, code: Code) -> Result<()> {
    if code == Code::SUCCESS {
        return Ok(());
    }
    // SAFETY: NVML accepts any code.
    let text = unsafe { (functions.error_string)(code) };
    let message = if text.is_null() {
        "NVML does not describe this code".to_owned()
    } else {
        // SAFETY: NVML's texts are static and end with a NUL byte.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    Err(Error::Library { backend: "nvml", function, code: code.0.into(), message })
}

/// The functions of NVML, which is searched for once in a process.
fn functions() -> Result<Table, Unavailable> {
    static TABLE: OnceLock<Result<Table, Unavailable>> = OnceLock::new();
    let resolve = |library: Library| {
        // SAFETY: the signatures of `Table` are those of NVML's header.
        unsafe { Table::resolve(&library) }
    };
    // `libnvidia-ml.so` without the version suffix is the stub of a CUDA toolkit, which reports no device.
    let find = || disco_dl::find("NVML", [Candidate::file("libnvidia-ml.so.1")], resolve);
    TABLE.get_or_init(find).clone()
}

disco_dl::functions! {
    /// Functions of `libnvidia-ml`.
    struct Table {
        /// `nvmlReturn_t nvmlInit_v2(void)`
        init: c"nvmlInit_v2"() -> Code;
        /// `nvmlReturn_t nvmlShutdown(void)`
        shutdown: c"nvmlShutdown"() -> Code;
        /// `const char *nvmlErrorString(nvmlReturn_t)`
        error_string: c"nvmlErrorString"(Code) -> *const c_char;
        /// `nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *)`
        device_by_bus_id: c"nvmlDeviceGetHandleByPciBusId_v2"(*const c_char, *mut Device) -> Code;
        /// `nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t, unsigned int link, nvmlEnableState_t *isActive)`
        link_state: c"nvmlDeviceGetNvLinkState"(Device, c_uint, *mut EnableState) -> Code;
        /// `nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t, unsigned int link, nvmlPciInfo_t *)`
        remote_pci_info: c"nvmlDeviceGetNvLinkRemotePciInfo_v2"(Device, c_uint, *mut PciInfo) -> Code;
    }
    optional {
        /// `nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t, unsigned int link, nvmlIntNvLinkDeviceType_t
        /// *)`
        remote_type: c"nvmlDeviceGetNvLinkRemoteDeviceType"(Device, c_uint, *mut DeviceType) -> Code;
    }
}

/// `nvmlDevice_t`
type Device = *mut c_void;

/// `nvmlReturn_t`
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Code(c_int);

impl Code {
    /// `NVML_SUCCESS`
    const SUCCESS: Self = Self(0);
    /// `NVML_ERROR_INVALID_ARGUMENT`: among other causes, the GPU has no link of this number.
    const INVALID_ARGUMENT: Self = Self(2);
    /// `NVML_ERROR_NOT_SUPPORTED`: among other causes, the GPU has no links.
    const NOT_SUPPORTED: Self = Self(3);
}

/// `nvmlEnableState_t`
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EnableState(c_int);

impl EnableState {
    /// `NVML_FEATURE_DISABLED`
    const DISABLED: Self = Self(0);
}

/// `nvmlIntNvLinkDeviceType_t`
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DeviceType(c_int);

impl DeviceType {
    /// `NVML_NVLINK_DEVICE_TYPE_GPU`
    const GPU: Self = Self(0);
    /// `NVML_NVLINK_DEVICE_TYPE_SWITCH`
    const SWITCH: Self = Self(2);
    /// `NVML_NVLINK_DEVICE_TYPE_UNKNOWN`
    const UNKNOWN: Self = Self(255);
}

/// `nvmlPciInfo_t`
#[repr(C)]
#[derive(Default)]
struct PciInfo {
    /// The bus id as text, with a domain of four digits.
    _bus_id_legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    _pci_device_id: c_uint,
    _pci_subsystem_id: c_uint,
    /// The bus id as text, with a domain of eight digits.
    _bus_id: [u8; 32],
}

const _: () = assert!(size_of::<PciInfo>() == 68 && std::mem::offset_of!(PciInfo, domain) == 16);
const _: () = assert!(size_of::<Code>() == 4 && size_of::<EnableState>() == 4 && size_of::<DeviceType>() == 4);
