//! Addresses that connections without a token may use.

use std::net::{SocketAddr, ToSocketAddrs as _};

use disco_core::{Error, Result};

/// Whether connections of TVM's sessions, which have no token, may leave this machine.
#[allow(clippy::exhaustive_enums, reason = "a switch")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authentication {
    /// Only addresses of the loopback are permitted.
    #[default]
    Required,
    /// Any address is permitted: any process that reaches it can run any function here.
    Without,
}

/// Resolves `HOST:PORT`, and checks that each address is permitted.
///
/// # Errors
/// The name is unknown, or an address is not of the loopback.
pub(super) fn resolve(what: &str, address: &str, authentication: Authentication) -> Result<Vec<SocketAddr>> {
    let found = address.to_socket_addrs();
    let found = found.map_err(|error| Error::system(format!("{what}: the address `{address}` is not found"), error))?;
    let found: Vec<_> = found.collect();
    match found.iter().find(|address| !address.ip().is_loopback()) {
        Some(outside) if authentication == Authentication::Required => Err(Error::refused(format!(
            "{what}: {outside} is not an address of the loopback, and TVM's sessions over sockets have no authentication; \
             if only trusted processes can reach it, say so with `--without-authentication` of `disco tvm-node`, or in a program \
             that calls `disco::tvm::join` with `Authentication::Without`"
        ))),
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_outside_of_the_loopback_is_refused_without_the_flag() {
        let refused = resolve("the node", "192.0.2.1:9000", Authentication::Required).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the node: 192.0.2.1:9000 is not an address of the loopback, and TVM's sessions over sockets have no \
             authentication; if only trusted processes can reach it, say so with `--without-authentication` of `disco tvm-node`, or in a program \
             that calls `disco::tvm::join` with `Authentication::Without`"
        );
        for (address, authentication) in
            [("192.0.2.1:9000", Authentication::Without), ("127.0.0.1:9000", Authentication::Required)]
        {
            assert_eq!(resolve("the node", address, authentication).unwrap(), [address.parse().unwrap()]);
        }
        assert!(resolve("the node", "0.0.0.0:9000", Authentication::Required).is_err());
    }
}
