//! The addresses that this machine has, as the kernel tells without a call that Rust has no safe name for.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses of interfaces that are up, by which other machines may reach this one.
pub(super) fn of_this_machine() -> Vec<IpAddr> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let (old, new) = (v4(&read("/proc/net/fib_trie")), v6(&read("/proc/net/if_inet6")));
    old.into_iter().map(IpAddr::V4).chain(new.into_iter().map(IpAddr::V6)).collect()
}

/// Any port of all interfaces: of IPv4, or of IPv6 where there is nothing else.
pub fn everywhere() -> &'static str {
    let addresses = of_this_machine();
    if addresses.iter().all(IpAddr::is_ipv6) && !addresses.is_empty() { "[::]:0" } else { "0.0.0.0:0" }
}

/// Those of IPv4, each of which is a route to this machine, in one table or two.
fn v4(routes: &str) -> Vec<Ipv4Addr> {
    let (mut addresses, mut last) = (Vec::new(), None::<Ipv4Addr>);
    for line in routes.lines().map(str::trim) {
        match (line.strip_prefix("|-- "), last) {
            (Some(address), _) => last = address.parse().ok(),
            (None, Some(address)) if line == "/32 host LOCAL" && !addresses.contains(&address) => {
                addresses.push(address);
            }
            _ => {}
        }
    }
    addresses.retain(|address| !address.is_loopback());
    addresses
}

/// Those of IPv6 that are of the whole network: others go with an interface, whose name here means nothing elsewhere.
fn v6(interfaces: &str) -> Vec<Ipv6Addr> {
    const GLOBAL: &str = "00";
    let address = |line: &str| {
        let mut columns = line.split_whitespace();
        let (address, scope) = (columns.next()?, columns.nth(2)?);
        (scope == GLOBAL).then(|| u128::from_str_radix(address, 16).ok()).flatten().map(Ipv6Addr::from)
    };
    interfaces.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_interfaces_are_found_once_and_without_the_loopback() {
        let table = "  +-- 0.0.0.0/0 3 0 5
     +-- 127.0.0.0/8 2 0 2
           |-- 127.0.0.1
              /32 host LOCAL
     +-- 192.0.2.0/24 2 0 2
           |-- 192.0.2.0
              /24 link UNICAST
           |-- 192.0.2.2
              /32 host LOCAL
        |-- 192.0.2.255
           /32 link BROADCAST
";
        let routes = format!("Main:\n{table}Local:\n{table}");
        assert_eq!(v4(&routes), [Ipv4Addr::new(192, 0, 2, 2)]);
        let interfaces = "fe8000000000000000fc00fffe000001 04 40 20 80     eth0
00000000000000000000000000000001 01 80 10 80       lo
fd000000000000000000000000000002 04 40 00 82     eth0
";
        assert_eq!(v6(interfaces), ["fd00::2".parse::<Ipv6Addr>().unwrap()]);
        assert!(v4("").is_empty() && v6("?").is_empty());
    }
}
