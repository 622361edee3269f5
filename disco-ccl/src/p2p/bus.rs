//! Where a device is on the PCI bus.

use std::fmt;

/// A device's place on the PCI bus: alike in all processes of a machine, whatever number each of them gives to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_structs, reason = "each vendor's crate writes one")]
pub struct BusId {
    /// Which of the machine's PCI trees.
    pub domain: u32,
    /// The bus in it.
    pub bus: u32,
    /// The slot on the bus.
    pub device: u32,
}

/// As Linux and the vendors' libraries write it. A GPU is function 0 of its slot.
impl fmt::Display for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::BusId;

    #[test]
    fn it_is_written_as_linux_does() {
        let text = |domain, bus, device| BusId { domain, bus, device }.to_string();
        assert_eq!(text(0, 0xc1, 0), "0000:c1:00.0");
        assert_eq!(text(0x1_0000, 7, 0x1f), "10000:07:1f.0");
    }
}
