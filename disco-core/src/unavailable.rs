//! Libraries, backends and devices that this machine does not have.

use std::error::Error as StdError;
use std::fmt;

/// Why a library, backend or device can't be used on this machine, with the reason of each failed try.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The library, device or feature that was looked for.
    pub what: String,
    /// Each try (a path, a device, a name) and why it failed.
    pub tried: Vec<(String, String)>,
    /// What the user can do; empty if nothing is known.
    pub remedy: String,
}

impl Unavailable {
    /// An error without tries.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), tried: Vec::new(), remedy: String::new() }
    }

    /// Adds a failed try of `candidate` (a path, a device, a name).
    #[must_use]
    pub fn with_tried(mut self, candidate: impl Into<String>, why: impl Into<String>) -> Self {
        self.tried.push((candidate.into(), why.into()));
        self
    }

    /// Sets what the user can do.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not available", self.what)?;
        // Candidates that failed for the same reason stand together.
        for tries in self.tried.chunk_by(|(_, one), (_, other)| one == other) {
            let candidates: Vec<_> = tries.iter().map(|(candidate, _)| candidate.as_str()).collect();
            write!(f, "; tried {}: {}", candidates.join(", "), tries[0].1)?;
        }
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}

impl StdError for Unavailable {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unavailable_library_lists_every_try() {
        let mut absent = Unavailable::new("libnccl");
        absent.tried.push(("libnccl.so.2".into(), "no such file".into()));
        absent.tried.push(("/opt/libnccl.so".into(), "wrong ELF class".into()));
        assert_eq!(
            absent.to_string(),
            "libnccl is not available; tried libnccl.so.2: no such file; tried /opt/libnccl.so: wrong ELF class"
        );
    }
}
