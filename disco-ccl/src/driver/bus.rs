//! Where a device is on the PCI bus.

use std::fmt;
use std::str::FromStr;

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

/// What was written so.
impl FromStr for BusId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let parse = || {
            let (place, function) = text.rsplit_once('.')?;
            let mut numbers = place.split(':').map(|number| u32::from_str_radix(number, 16).ok());
            let mut next = || numbers.next()?;
            let found = Self { domain: next()?, bus: next()?, device: next()? };
            (function == "0" && numbers.next().is_none()).then_some(found)
        };
        parse().ok_or(())
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

    #[test]
    fn what_was_written_is_read() {
        let bus_id = BusId { domain: 0x1_0000, bus: 7, device: 0x1f };
        assert_eq!(bus_id.to_string().parse(), Ok(bus_id));
        for text in ["", "0000:c1:00", "0000:c1.0", "0000:c1:00:00.0", "0000:c1:0g.0", "0000:c1:00.1"] {
            assert_eq!(text.parse::<BusId>(), Err(()), "{text}");
        }
    }
}
