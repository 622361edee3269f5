//! NVML's functions, and a walk over the links that it knows.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use disco_ccl::p2p::Ends;
use disco_core::{Error, Result, Unavailable};
use disco_dl::{Candidate, Library};

use super::{BusId, Mesh};

/// The links between GPUs at these places: those that end at one of them, and those through NVSwitches, all of which
/// are taken for one network. Inactive links are none, and so are those to GPUs that are not of the group.
///
/// Each GPU is asked for its links from 0 on until it has no more. Where NVML is too old to say what is at a link's
/// other end (without `nvmlDeviceGetNvLinkRemoteDeviceType`), what is none of the group's GPUs is not taken for a
/// switch: it may be a GPU as well.
///
/// # Errors
/// [`Error::Unavailable`] where there is no NVML; NVML's own, of anything but a link that is not there.
pub fn mesh(bus_ids: &[BusId]) -> Result<Mesh> {
    let nvml = Nvml::start(functions()?)?;
    let ends = bus_ids.iter().map(|own| nvml.ends(*own, bus_ids)).collect::<Result<Vec<_>>>()?;
    Ok(Mesh::new(&ends))
}

/// The most links that a GPU may have.
const MAX_LINKS: c_uint = 20;

/// NVML between its start and its end.
struct Nvml(Table);

impl Nvml {
    fn start(functions: Table) -> Result<Self> {
        // SAFETY: it may be started any number of times.
        let code = unsafe { (functions.init)() };
        check(&functions, "nvmlInit_v2", code).map(|()| Self(functions))
    }

    fn check(&self, function: &'static str, code: Code) -> Result<()> {
        check(&self.0, function, code)
    }

    /// Where a GPU's links end, among these.
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
        let text = CString::new(at.to_string()).map_err(|_| Error::invalid("a bus id has no zeros in it"))?;
        let mut device = ptr::null_mut();
        // SAFETY: the text ends with a zero, and there is room for the handle.
        let code = unsafe { (self.0.device_by_bus_id)(text.as_ptr(), &mut device) };
        self.check("nvmlDeviceGetHandleByPciBusId_v2", code).map(|()| device)
    }

    /// Whether a link is up; none where the GPU has no such link.
    fn is_active(&self, device: Device, link: c_uint) -> Result<Option<bool>> {
        let mut state = EnableState(0);
        // SAFETY: NVML has given the handle, and there is room for the state.
        match unsafe { (self.0.link_state)(device, link, &mut state) } {
            Code::INVALID_ARGUMENT | Code::NOT_SUPPORTED => Ok(None),
            code => self.check("nvmlDeviceGetNvLinkState", code).map(|()| Some(state != EnableState::DISABLED)),
        }
    }

    /// Counts what is at a link's other end.
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

    /// What is at a link's other end; none where NVML is too old to say.
    fn remote_type(&self, device: Device, link: c_uint) -> Result<Option<DeviceType>> {
        let Some(remote_type) = self.0.remote_type else { return Ok(None) };
        let mut remote = DeviceType::UNKNOWN;
        // SAFETY: as for the state.
        let code = unsafe { remote_type(device, link, &mut remote) };
        self.check("nvmlDeviceGetNvLinkRemoteDeviceType", code).map(|()| Some(remote))
    }

    fn remote_bus_id(&self, device: Device, link: c_uint) -> Result<BusId> {
        let mut info = PciInfo::default();
        // SAFETY: as for the state.
        let code = unsafe { (self.0.remote_pci_info)(device, link, &mut info) };
        self.check("nvmlDeviceGetNvLinkRemotePciInfo_v2", code)?;
        Ok(BusId { domain: info.domain, bus: info.bus, device: info.device })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: it was started.
        let code = unsafe { (self.0.shutdown)() };
        if let Err(error) = self.check("nvmlShutdown", code) {
            tracing::warn!(%error, "NVML stays");
        }
    }
}

fn check(functions: &Table, function: &'static str, code: Code) -> Result<()> {
    if code == Code::SUCCESS {
        return Ok(());
    }
    // SAFETY: any number may be asked for.
    let text = unsafe { (functions.error_string)(code) };
    let message = match text.is_null() {
        true => "NVML has no words for it".to_owned(),
        // SAFETY: NVML's texts end with a zero, and stay.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    };
    Err(Error::Library { backend: "nvml", function, code: code.0.into(), message })
}

/// NVML, looked for once.
fn functions() -> Result<Table, Unavailable> {
    static TABLE: OnceLock<Result<Table, Unavailable>> = OnceLock::new();
    let resolve = |library: Library| {
        // SAFETY: these are NVML's functions, as its header declares them.
        unsafe { Table::resolve(&library) }
    };
    // Not without its number: that is a toolkit's stub, which knows no device.
    let find = || disco_dl::find("NVML", [Candidate::file("libnvidia-ml.so.1")], resolve);
    TABLE.get_or_init(find).clone()
}

disco_dl::functions! {
    /// Of `libnvidia-ml`.
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
        /// `nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t, unsigned int link, nvmlIntNvLinkDeviceType_t *)`
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
    /// `NVML_ERROR_INVALID_ARGUMENT`: among others, there is no link of this number.
    const INVALID_ARGUMENT: Self = Self(2);
    /// `NVML_ERROR_NOT_SUPPORTED`: among others, the GPU has no links.
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
    /// As a text, with a domain of four digits.
    _bus_id_legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    _pci_device_id: c_uint,
    _pci_subsystem_id: c_uint,
    /// As a text, with a domain of eight digits.
    _bus_id: [u8; 32],
}

const _: () = assert!(size_of::<PciInfo>() == 68 && std::mem::offset_of!(PciInfo, domain) == 16);
const _: () = assert!(size_of::<Code>() == 4 && size_of::<EnableState>() == 4 && size_of::<DeviceType>() == 4);
