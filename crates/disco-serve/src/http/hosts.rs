//! The names by which a server may be addressed.

use std::net::IpAddr;

use axum::http::HeaderMap;
use axum::http::header::HOST;
use axum::http::uri::Authority;

/// The names that the header `Host` of a request may have: those of the loopback, and `more`.
///
/// A web page can let its own name stand for 127.0.0.1 (DNS rebinding). Its requests then have that name, and for the
/// browser the server's answers belong to the page. So a server without a token answers no other name.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    more: Vec<String>,
}

impl Hosts {
    /// The names of the loopback, and others without ports.
    pub fn new(more: &[String]) -> Self {
        Self { more: more.iter().map(|name| name.to_ascii_lowercase()).collect() }
    }

    /// The first name of a request that is not permitted. Browsers always send a name.
    pub(super) fn refused(&self, headers: &HeaderMap) -> Option<String> {
        let mut names = headers.get_all(HOST).iter().map(|name| String::from_utf8_lossy(name.as_bytes()));
        names.find(|name| !self.permits(name)).map(String::from)
    }

    fn permits(&self, name: &str) -> bool {
        let Ok(name) = name.parse::<Authority>() else { return false };
        let name = name.host().to_ascii_lowercase();
        let name = name.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
        let is_loopback = match name.parse::<IpAddr>() {
            Ok(address) => address.to_canonical().is_loopback(),
            Err(_) => name == "localhost" || name.ends_with(".localhost"),
        };
        is_loopback || self.more.iter().any(|more| more == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_loopback_and_those_that_are_given_are_permitted() {
        let hosts = Hosts::new(&["Disco.example".into()]);
        let refuses = |name: &str| hosts.refused(&HeaderMap::from_iter([(HOST, name.parse().unwrap())])).is_some();
        let loopback = ["localhost", "LOCALHOST:8000", "a.localhost", "localhost.", "127.0.0.1:8000", "127.9.9.9"];
        for name in loopback.into_iter().chain(["[::1]:8000", "[::ffff:127.0.0.1]", "disco.example:80"]) {
            assert!(!refuses(name), "{name}");
        }
        let others = ["evil.example", "localhost.evil.example", "evillocalhost", "127.0.0.1.evil.example", "10.0.0.1"];
        for name in others.into_iter().chain(["[::2]", "", "disco.example.evil", "0.0.0.0"]) {
            assert!(refuses(name), "{name}");
        }
        assert!(hosts.refused(&HeaderMap::new()).is_none());
    }
}
