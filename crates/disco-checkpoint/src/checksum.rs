//! CRC-32 as zlib and gzip compute it, written as 8 hexadecimal digits.

use serde::{Deserialize, Serialize};

/// The checksum of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checksum(u32);

impl Checksum {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(crc32fast::hash(bytes))
    }
}

impl From<crc32fast::Hasher> for Checksum {
    fn from(hasher: crc32fast::Hasher) -> Self {
        Self(hasher.finalize())
    }
}

disco_core::format_as!(Display for Checksum, |it| "{:08x}", it.0);

impl Serialize for Checksum {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parsed = u32::from_str_radix(&text, 16).ok().map(Self);
        // Only the form that is written, so that each change of a digit is noticed.
        let parsed = parsed.filter(|checksum| checksum.to_string() == text);
        parsed.ok_or_else(|| serde::de::Error::custom(format!("`{text}` is no checksum of 8 hexadecimal digits")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_zlib() {
        // zlib.crc32(b"123456789") of Python.
        assert_eq!(Checksum::of(b"123456789").to_string(), "cbf43926");
        assert_eq!(serde_json::from_str::<Checksum>("\"0000000f\"").unwrap().to_string(), "0000000f");
        for other in ["\"0000000F\"", "\"f\"", "\"+000000f\"", "\"\"", "\"100000000\""] {
            assert!(serde_json::from_str::<Checksum>(other).is_err(), "{other}");
        }
    }
}
