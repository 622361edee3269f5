//! The names of requests.

use std::fmt;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// The header in which a client names its request, and gets the name back.
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The header in which a client gets the span of its request.
pub(super) const TRACERESPONSE: HeaderName = HeaderName::from_static("traceresponse");
/// The most characters of a client's name.
const MAX_LENGTH: usize = 128;

/// The name of a request, in logs and in the reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestId(pub(super) Arc<str>);

impl RequestId {
    /// The client's name; one that is made of a random number if the client has none that can be written in a log.
    pub(super) fn of(headers: &HeaderMap, random: impl FnOnce() -> u64) -> Self {
        let name = headers.get(X_REQUEST_ID).and_then(|value| value.to_str().ok());
        let is_plain =
            |name: &&str| (1..=MAX_LENGTH).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
        Self(name.filter(is_plain).map_or_else(|| format!("req-{:016x}", random()).into(), Into::into))
    }

    pub(super) fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.0).ok()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_long_or_has_other_characters_is_replaced() {
        let id = |name: &str| RequestId::of(&HeaderMap::from_iter([(X_REQUEST_ID, name.parse().unwrap())]), || 7).0;
        assert_eq!(&*id("a-1"), "a-1");
        for name in ["", "a b", &"a".repeat(129)] {
            assert_eq!(&*id(name), "req-0000000000000007");
        }
    }
}
