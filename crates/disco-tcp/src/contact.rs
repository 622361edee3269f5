//! How ranks reach each other: what each of them writes into the session's store.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use disco_core::wire::{Reader, Writer};
use disco_core::{Error, Result, Uplink};
use if_addrs::Interface;

use crate::listeners::Listeners;

/// The most addresses of a machine.
const MAX_ADDRESSES: usize = 64;

/// The variable with the names of the interfaces at which a rank may be reached.
pub(crate) const INTERFACES: &str = "DISCO_TCP_INTERFACES";

/// The machine of a rank and the addresses at which the rank listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contact {
    /// The name of the machine, for texts.
    pub(crate) host: String,
    /// Addresses at which the rank may be reached, best first and the loopback addresses last.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Whether the rank asks for encrypted connections.
    pub(crate) encrypts: bool,
    /// The memory that the rank shares with those of its machine.
    pub(crate) memory: Option<Offer>,
}

/// What a rank needs to map the [memory](crate::neighbours) of another one on its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The name of its descriptor.
    pub(crate) name: u64,
    /// A random number at its beginning: the descriptor of this name is another one for a process that sees other numbers of
    /// processes.
    pub(crate) mark: u64,
}

/// The part of the network that a rank uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Network {
    /// The names of the interfaces at which the rank may be reached; all if there are none.
    pub(crate) interfaces: Vec<String>,
    /// The connection of the rank's node to the controller.
    pub(crate) uplink: Option<Uplink>,
}

impl Contact {
    /// How to reach the rank of this process that has these listeners: first at the address of the uplink.
    ///
    /// # Errors
    /// The machine has no interface of a given name with an address.
    pub(crate) fn of(listeners: &Listeners, network: &Network, encrypts: bool) -> Result<Self> {
        let mut interfaces = if_addrs::get_if_addrs().unwrap_or_default();
        let uplink = network.uplink.map(|uplink| uplink.own);
        // Only the uplink tells others on which interface they reach a link-local address of IPv6; the controller's machine has none.
        let is_known = |ip| !needs_scope(ip) || uplink.is_none_or(|own| own == ip);
        // The system may report an interface as down for a second after it has come up.
        interfaces.retain(|it| (it.is_oper_up() || Some(it.ip()) == uplink) && is_known(it.ip()));
        select(&mut interfaces, &network.interfaces)?;
        interfaces.sort_by_key(|it| (it.is_loopback(), Some(it.ip()) != uplink, needs_scope(it.ip())));
        let mut ips: Vec<_> = interfaces.iter().map(Interface::ip).collect();
        if ips.is_empty() {
            ips.extend([IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]);
        }
        ips.truncate(MAX_ADDRESSES);
        let addresses = ips.into_iter().filter_map(|ip| Some(SocketAddr::new(ip, listeners.port(ip)?))).collect();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        Ok(Self { host, addresses, encrypts, memory: None })
    }

    /// The addresses in the order in which a rank tries them: first that at which its node has reached the controller, or the
    /// node that relays for it. Link-local addresses of IPv6 are those on the interface of that connection, if it has one, too.
    pub(crate) fn in_order(&self, network: &Network) -> Vec<SocketAddr> {
        let upper = network.uplink.map(|uplink| uplink.upper).filter(|ip| !ip.is_loopback());
        let mut addresses = self.addresses.clone();
        if addresses.iter().any(|address| needs_scope(address.ip())) {
            let scope = network.uplink.filter(|uplink| needs_scope(uplink.own)).and_then(|uplink| index(uplink.own));
            addresses.retain_mut(|address| match (address, scope) {
                (SocketAddr::V6(address), Some(scope)) if address.ip().is_unicast_link_local() => {
                    address.set_scope_id(scope);
                    true
                }
                (address, _) => !needs_scope(address.ip()),
            });
        }
        addresses.sort_by_key(|address| Some(address.ip()) != upper);
        addresses
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(self.encrypts.into());
        writer.u32(self.memory.is_some().into());
        if let Some(Offer { name, mark }) = self.memory {
            writer.u64(name);
            writer.u64(mark);
        }
        writer.bytes(self.host.as_bytes());
        self.addresses.iter().for_each(|address| writer.bytes(address.to_string().as_bytes()));
        writer.into_bytes()
    }

    /// # Errors
    /// The bytes are none of [`Contact::write`].
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let encrypts = reader.u32()? != 0;
        let memory = match reader.u32()? {
            0 => None,
            _ => Some(Offer { name: reader.u64()?, mark: reader.u64()? }),
        };
        let host = String::from_utf8_lossy(reader.bytes()?).into_owned();
        let mut addresses = Vec::new();
        while reader.left() > 0 && addresses.len() < MAX_ADDRESSES {
            let text = str::from_utf8(reader.bytes()?).ok();
            let address = text.and_then(|text| text.parse().ok());
            addresses.push(address.ok_or_else(|| Error::protocol("a rank's contact has no address"))?);
        }
        Ok(Self { host, addresses, encrypts, memory })
    }
}

/// Whether an address belongs to an interface, so that machines need the number of theirs to use it.
fn needs_scope(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The number of the interface with this address.
fn index(own: IpAddr) -> Option<u32> {
    if_addrs::get_if_addrs().ok()?.into_iter().find(|it| it.ip() == own)?.index
}

/// Keeps the interfaces with these names, or all without names.
fn select(interfaces: &mut Vec<Interface>, names: &[String]) -> Result<()> {
    let has = |name: &String| interfaces.iter().any(|it| it.name == *name);
    if let Some(name) = names.iter().find(|name| !has(name)) {
        let there: BTreeSet<_> = interfaces.iter().map(|it| &*it.name).collect();
        let there = there.into_iter().collect::<Vec<_>>().join(", ");
        return Err(Error::invalid(format!(
            "{INTERFACES}: this machine has no interface `{name}` that is up and has an address; it has {there}"
        )));
    }
    interfaces.retain(|it| names.is_empty() || names.contains(&it.name));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_is_read_as_it_was_written() {
        let addresses = ["192.0.2.1:4000", "[fd00::2]:4000", "127.0.0.1:4000"].map(|text| text.parse().unwrap());
        let mut contact = Contact { host: "a".into(), addresses: addresses.into(), encrypts: true, memory: None };
        assert_eq!(Contact::read(&contact.write()).unwrap(), contact);
        contact.memory = Some(Offer { name: 7 << 32, mark: u64::MAX });
        assert_eq!(Contact::read(&contact.write()).unwrap(), contact);
        assert!(Contact::read(&contact.write()[..20]).is_err());
    }

    #[test]
    fn addresses_of_the_uplink_are_tried_first_unless_it_is_a_tunnel() {
        let addresses = ["192.0.2.1:1", "198.51.100.1:1", "127.0.0.1:1"].map(|text| text.parse().unwrap());
        let contact = Contact { host: "a".into(), addresses: addresses.into(), encrypts: true, memory: None };
        let over = |upper: &str| {
            let uplink =
                Some(Uplink { own: upper.parse().unwrap(), upper: upper.parse().unwrap(), is_encrypted: true });
            contact.in_order(&Network { uplink, ..Network::default() })[0].to_string()
        };
        assert_eq!(
            ["198.51.100.1", "127.0.0.1", "203.0.113.1"].map(over),
            ["198.51.100.1:1", "192.0.2.1:1", "192.0.2.1:1"]
        );
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        let network = Network { interfaces: vec!["nothing0".into()], ..Network::default() };
        let error = Contact::of(&Listeners::bind().unwrap(), &network, true).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
}
