//! The address of a device on the PCI bus.

use std::str::FromStr;

/// A device's address on the PCI bus. It is equal in all processes of a machine, while each process numbers the devices
/// in its own way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_structs, reason = "each vendor's crate writes one")]
pub struct BusId {
    /// The PCI domain.
    pub domain: u32,
    /// The bus in the domain.
    pub bus: u32,
    /// The slot on the bus.
    pub device: u32,
}

// In the format of Linux and of the vendors' libraries. A GPU is function 0 of its slot.
disco_core::format_as!(Display for BusId, |it| "{:04x}:{:02x}:{:02x}.0", it.domain, it.bus, it.device);

/// Parses the format of `Display`.
impl FromStr for BusId {
    type Err = ();

    #[allow(clippy::disallowed_methods, reason = "an address of the PCI bus, as drivers write it")]
    fn from_str(text: &str) -> Result<Self, ()> {
        let parse = || {
            let (address, function) = text.rsplit_once('.')?;
            let mut numbers = address.split(':').map(|number| u32::from_str_radix(number, 16).ok());
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
    fn bus_ids_are_formatted_as_linux_formats_them() {
        let text = |domain, bus, device| BusId { domain, bus, device }.to_string();
        assert_eq!(text(0, 0xc1, 0), "0000:c1:00.0");
        assert_eq!(text(0x1_0000, 7, 0x1f), "10000:07:1f.0");
    }

    #[test]
    fn a_formatted_bus_id_is_parsed_and_other_texts_are_refused() {
        let bus_id = BusId { domain: 0x1_0000, bus: 7, device: 0x1f };
        assert_eq!(bus_id.to_string().parse(), Ok(bus_id));
        for text in ["", "0000:c1:00", "0000:c1.0", "0000:c1:00:00.0", "0000:c1:0g.0", "0000:c1:00.1"] {
            assert_eq!(text.parse::<BusId>(), Err(()), "{text}");
        }
    }
}
