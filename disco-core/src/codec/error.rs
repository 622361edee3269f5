//! Errors of encoding and decoding.

/// Bytes are not a valid packet, or a value can't be encoded.
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
        /// Bytes left.
        left: usize,
    },
    /// Bytes are left after the last argument.
    #[error("{0} bytes after the last argument")]
    Trailing(usize),
    /// A packet is larger than [`PACKET_LIMIT`](super::PACKET_LIMIT) or than the limit of the connection.
    #[error("a packet of {bytes} bytes; the limit is {limit}")]
    TooLarge {
        /// Size of the packet.
        bytes: u64,
        /// Largest permitted size.
        limit: u64,
    },
    /// A number without a meaning.
    #[error("unknown {what} {number}")]
    Unknown {
        /// The role of the number.
        what: &'static str,
        /// The number.
        number: i64,
    },
    /// The packet has a different item where this one is required.
    #[error("expected {0}")]
    Expected(&'static str),
    /// The two ends of a connection have different protocol versions.
    #[error("the other end speaks version {theirs}, this one {ours}: both must run the same program")]
    Version {
        /// Version of the other end.
        theirs: i64,
        /// Version of this end, [`VERSION`](crate::wire::VERSION).
        ours: i64,
    },
    /// This end can't map a tensor in shared memory.
    #[error("a tensor in shared memory: {0}")]
    SharedTensor(String),
    /// This end has no memory for a tensor; the bytes may be valid. [`Error`](crate::Error) has it as `OutOfMemory`.
    #[error("no room for a tensor of {bytes} bytes")]
    NoMemory {
        /// Size of the request.
        bytes: usize,
        /// Whether shared memory is exhausted, or memory of this process.
        is_shared: bool,
        /// Details, if known.
        why: Option<String>,
    },
    /// A tensor that is not a contiguous host tensor is an argument.
    #[error("{0} can't be an argument across processes")]
    TensorKind(String),
    /// No [`Value`](crate::Value) can hold the content of a debug object of TVM. The field is the type of the graph's
    /// root.
    #[error("a debug object of type `{0}`; only strings, bytes, shapes, tensors, numbers, bools and none are read")]
    DebugType(String),
}
