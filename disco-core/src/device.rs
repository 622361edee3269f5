//! Devices and their kinds.

use std::fmt;
use std::str::FromStr;

/// A kind of device, with DLPack's number.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// Host memory.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
    /// AMD GPUs.
    Rocm,
}

const TABLE: [(DeviceKind, &str, i32); 3] =
    [(DeviceKind::Cpu, "cpu", 1), (DeviceKind::Cuda, "cuda", 2), (DeviceKind::Rocm, "rocm", 10)];

impl DeviceKind {
    /// DLPack's number.
    pub const fn dlpack(self) -> i32 {
        TABLE[self as usize].2
    }

    /// The kind with DLPack's number `code`.
    pub fn from_dlpack(code: i32) -> Option<Self> {
        TABLE.iter().find(|row| row.2 == code).map(|row| row.0)
    }
}

crate::format_as!(Display for DeviceKind, |it| "{}", TABLE[*it as usize].1);

/// A device. `Display` writes `cpu`, `cuda:0`, `rocm:1`; `FromStr` parses the same.
#[allow(clippy::exhaustive_structs, reason = "a device is its kind and its ordinal, as in DLPack")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    /// The kind of device.
    pub kind: DeviceKind,
    /// Index among the devices of this kind; 0 for the host.
    pub ordinal: i32,
}

impl Device {
    /// The host.
    pub const CPU: Device = Device { kind: DeviceKind::Cpu, ordinal: 0 };

    /// Device `ordinal` of kind `kind`.
    pub const fn new(kind: DeviceKind, ordinal: i32) -> Self {
        Self { kind, ordinal }
    }

    /// Whether the device's memory is host memory.
    pub const fn is_host(self) -> bool {
        matches!(self.kind, DeviceKind::Cpu)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeviceKind::Cpu => self.kind.fmt(f),
            kind => write!(f, "{kind}:{}", self.ordinal),
        }
    }
}

impl FromStr for Device {
    type Err = UnknownDevice;

    #[allow(clippy::disallowed_methods, reason = "a user's text")]
    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        let (name, ordinal) = text.split_once(':').unwrap_or((text, "0"));
        let kind = TABLE.iter().find(|row| row.1 == name).map(|row| row.0);
        match (kind, ordinal.parse()) {
            (Some(DeviceKind::Cpu), Ok(0)) => Ok(Device::CPU),
            (Some(kind), Ok(ordinal)) if ordinal >= 0 && kind != DeviceKind::Cpu => Ok(Device { kind, ordinal }),
            _ => Err(UnknownDevice(text.to_owned())),
        }
    }
}

/// A text is not the name of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no device; devices read `cpu`, `cuda:0`, `rocm:1`")]
pub struct UnknownDevice(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_print_and_parse_alike() {
        for text in ["cpu", "cuda:0", "rocm:1"] {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
        }
        assert_eq!("rocm:1".parse::<Device>().unwrap(), Device::new(DeviceKind::Rocm, 1));
        for bad in ["gpu", "cuda:x", "cuda:-1", "cpu:1", ""] {
            assert!(bad.parse::<Device>().is_err(), "{bad}");
        }
    }
}
