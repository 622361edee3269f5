//! How ranks reach each other: what each of them writes into the session's store.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use disco_core::wire::{Reader, Writer};
use disco_core::{Error, Result};
use if_addrs::Interface;

/// The most addresses of a machine.
const MAX_ADDRESSES: usize = 64;

/// The machine of a rank and the addresses at which the rank listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contact {
    /// The name of the machine, for texts.
    pub(crate) host: String,
    /// Addresses at which the rank may be reached, the loopback address last.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Whether the rank asks for encrypted connections.
    pub(crate) encrypts: bool,
}

impl Contact {
    /// How to reach the rank of this process that has this listener.
    ///
    /// # Errors
    /// The system does not tell the listener's port.
    pub(crate) fn of(listener: &TcpListener, encrypts: bool) -> Result<Self> {
        let own = listener.local_addr().map_err(|error| Error::system("the port of a listener is unknown", error))?;
        let mut interfaces = if_addrs::get_if_addrs().unwrap_or_default();
        interfaces.retain(|interface| interface.is_oper_up() && (own.is_ipv6() || interface.ip().is_ipv4()));
        let (loopback, mut others): (Vec<_>, Vec<_>) = interfaces.iter().partition(|one| one.is_loopback());
        // A link-local address of IPv6 needs the name of an interface, which means nothing on other machines.
        others.retain(|interface| !(interface.ip().is_ipv6() && interface.is_link_local()));
        let mut ips: Vec<_> = others.into_iter().chain(loopback).map(Interface::ip).collect();
        if ips.is_empty() {
            ips.push(if own.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) });
        }
        ips.truncate(MAX_ADDRESSES);
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let addresses = ips.into_iter().map(|ip| SocketAddr::new(ip, own.port())).collect();
        Ok(Self { host, addresses, encrypts })
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(self.encrypts.into());
        writer.bytes(self.host.as_bytes());
        self.addresses.iter().for_each(|address| writer.bytes(address.to_string().as_bytes()));
        writer.into_bytes()
    }

    /// # Errors
    /// The bytes are none of [`Contact::write`].
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let encrypts = reader.u32()? != 0;
        let host = String::from_utf8_lossy(reader.bytes()?).into_owned();
        let mut addresses = Vec::new();
        while reader.left() > 0 && addresses.len() < MAX_ADDRESSES {
            let text = str::from_utf8(reader.bytes()?).ok();
            let address = text.and_then(|text| text.parse().ok());
            addresses.push(address.ok_or_else(|| Error::protocol("a rank's contact has no address"))?);
        }
        Ok(Self { host, addresses, encrypts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_is_read_as_it_was_written() {
        let addresses = ["192.0.2.1:4000", "[fd00::2]:4000", "127.0.0.1:4000"].map(|text| text.parse().unwrap());
        let contact = Contact { host: "a".into(), addresses: addresses.into(), encrypts: true };
        assert_eq!(Contact::read(&contact.write()).unwrap(), contact);
        assert!(Contact::read(&contact.write()[..20]).is_err());
    }
}
