//! The entry point of the fuzz target.

use disco_models::SamplingDefaults;

use crate::api::{Fields, Kind, Known, Order};

/// Parses `bytes` as the body of a chat and of a completion. Returns how many of the two are valid.
pub fn body(bytes: &[u8]) -> usize {
    let model = Known { name: "model", vocabulary: 512, ends: &[2], sampling: SamplingDefaults::default() };
    let is_valid = |kind: &Kind| Fields::parse(bytes).and_then(|fields| Order::parse(*kind, fields, model)).is_ok();
    [Kind::Chat, Kind::Completion].iter().filter(|kind| is_valid(kind)).count()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_valid_body_is_counted() {
        assert_eq!(super::body(br#"{"prompt": "x"}"#), 1);
        assert_eq!(super::body(b"{}"), 0);
    }
}
