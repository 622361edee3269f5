//! What is wrong with bytes.

/// Bytes that are not a packet of ours, or a value that can't become one.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end too early.
    #[error("{wanted} more bytes wanted at byte {at}, {left} are left")]
    Truncated {
        /// Position in the packet.
        at: usize,
        /// Bytes wanted.
        wanted: u64,
        /// Bytes there.
        left: usize,
    },
    /// Bytes are left after the last argument.
    #[error("{0} bytes after the last argument")]
    Trailing(usize),
    /// A packet that is too large, for [`PACKET_LIMIT`](super::PACKET_LIMIT) or for who sends it.
    #[error("a packet of {bytes} bytes; the limit is {limit}")]
    TooLarge {
        /// How large it would be.
        bytes: u64,
        /// How large it may be.
        limit: u64,
    },
    /// A number that means nothing.
    #[error("unknown {what} {number}")]
    Unknown {
        /// What was to be numbered.
        what: &'static str,
        /// The number.
        number: i64,
    },
    /// Something else than what the packet must have there.
    #[error("expected {0}")]
    Expected(&'static str),
    /// The other end of a connection is of another version.
    #[error("the other end speaks version {theirs}, this one {ours}: both must run the same program")]
    Version {
        /// The other's.
        theirs: i64,
        /// This one's, [`VERSION`](crate::wire::VERSION).
        ours: i64,
    },
    /// A tensor in shared memory that this end can't map.
    #[error("a tensor in shared memory: {0}")]
    SharedTensor(String),
    /// A tensor as an argument that is not a contiguous host tensor.
    #[error("{0} can't be an argument across processes")]
    TensorKind(String),
    /// A debug object of TVM whose content no [`Value`](crate::Value) can hold: this type of its graph's root.
    #[error("a debug object of type `{0}`; only strings, bytes, shapes, tensors, numbers, bools and none are read")]
    DebugType(String),
}
