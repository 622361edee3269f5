//! The network addresses of this machine.

use std::net::{IpAddr, SocketAddr, TcpListener};

use if_addrs::Interface;

/// Addresses of interfaces that are up, by which other machines may reach this one. Empty if the system does not list
/// interfaces.
pub(super) fn of_this_machine() -> Vec<IpAddr> {
    let mut interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    interfaces.retain(reaches_this_machine);
    let mut addresses: Vec<_> = interfaces.iter().map(Interface::ip).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// The address to listen on at all interfaces: that of IPv6, where connections over IPv4 come, too, or that of IPv4 on a
/// machine without IPv6.
pub fn everywhere() -> &'static str {
    if TcpListener::bind("[::]:0").is_ok() { "[::]" } else { "0.0.0.0" }
}

/// The loopback address to listen on: that of IPv4, or that of IPv6 on a machine that has no other.
pub(crate) fn loopback() -> &'static str {
    if TcpListener::bind("127.0.0.1:0").is_err() && TcpListener::bind("[::1]:0").is_ok() {
        "[::1]"
    } else {
        "127.0.0.1"
    }
}

/// `HOST:PORT`, with brackets around an IPv6 address.
#[allow(clippy::disallowed_methods, reason = "only an IPv6 address has a colon")]
pub fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The address `other` of another machine on the interface of `own`, an address of this one. Only IPv6 link-local
/// addresses belong to an interface, and its index means nothing on other machines, so they are sent without it.
pub(super) fn on_interface_of(own: SocketAddr, other: &str) -> String {
    match (own, other.parse()) {
        (SocketAddr::V6(own), Ok(SocketAddr::V6(mut other))) if other.ip().is_unicast_link_local() => {
            other.set_scope_id(own.scope_id());
            other.to_string()
        }
        _ => other.to_owned(),
    }
}

/// Excludes loopback and IPv6 link-local addresses. The latter need an interface name, which means nothing on other
/// machines.
fn reaches_this_machine(interface: &Interface) -> bool {
    let needs_interface = interface.ip().is_ipv6() && interface.is_link_local();
    interface.is_oper_up() && !interface.is_loopback() && !needs_interface
}

#[cfg(test)]
mod tests {
    use if_addrs::{IfAddr, IfOperStatus, Ifv4Addr, Ifv6Addr};

    use super::*;

    fn interface(ip: &str, oper_status: IfOperStatus) -> Interface {
        let addr = match ip.parse().unwrap() {
            IpAddr::V4(ip) => IfAddr::V4(Ifv4Addr { ip, netmask: ip, prefixlen: 24, broadcast: None }),
            IpAddr::V6(ip) => IfAddr::V6(Ifv6Addr { ip, netmask: ip, prefixlen: 64, broadcast: None }),
        };
        Interface { name: "eth0".into(), addr, index: None, oper_status, is_p2p: false }
    }

    #[test]
    fn a_link_local_address_gets_the_interface_of_the_own_one_and_others_stay() {
        let link_local = "[fe80::1%3]:4000".parse().unwrap();
        assert_eq!(on_interface_of(link_local, "[fe80::2]:5000"), "[fe80::2%3]:5000");
        for other in ["[fd00::2]:5000", "192.0.2.1:5000", "host:5000"] {
            assert_eq!(on_interface_of(link_local, other), other);
        }
        assert_eq!(on_interface_of("192.0.2.2:4000".parse().unwrap(), "[fe80::2]:5000"), "[fe80::2]:5000");
    }

    #[test]
    fn only_addresses_that_other_machines_can_reach_are_announced() {
        let reaches = |ip| reaches_this_machine(&interface(ip, IfOperStatus::Up));
        assert!(["192.0.2.2", "169.254.1.1", "fd00::2"].into_iter().all(reaches));
        assert!(!["127.0.0.1", "::1", "fe80::1"].into_iter().any(reaches));
        assert!(!reaches_this_machine(&interface("192.0.2.2", IfOperStatus::Unknown)), "it is down");
    }
}
