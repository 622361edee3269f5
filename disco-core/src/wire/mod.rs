//! The wire format of commands, replies and messages.
//!
//! Integers are little endian, and fields are not aligned. The first nine commands have the layout of TVM's Disco (its
//! RPC reference protocol), byte for byte; `tests/suite/golden.rs` compares them with bytes captured from TVM.
//!
//! ```text
//! packet   u64 length of the rest
//!          i32 4 ("return")
//!          i32 number of arguments
//!          arguments: i32 type, then content
//!
//! 0 none   nothing            6 device i32 kind, i32 ordinal
//! 1 int    i64                8 raw string, 9 byte array  u64 length, bytes
//! 2 bool   i64                11 short string, 12 short bytes (below 8) ┐ the object's own
//! 3 float  f64                any other number: an object               ┘ encoding follows
//! 5 dtype  u8 code, u8 bits, u16 lanes, i32 0
//!
//! object   u32 type, then     65 string, 66 bytes  u64 length, bytes
//!                             69 shape             u64 axes, i64 extents
//!                             71 array             u64 items, then arguments
//!                             72 map               u64 pairs, then an argument for each key and each value
//!                             114 register         i64 id
//!                             4096 tensor          dtype, i32 axes, i64 extents, u64 length, bytes
//!                             4097 tensor beside   dtype, i32 axes, i64 extents, u64 offset in the memory beside
//!                             4098 tagged          i32 tag, then as an array
//!                             from 8192            registered by the program, see `register_object!`
//!                             0                    TVM's debug object (its argument type is 64 or more, except
//!                                                  68 and 73; Disco writes 187): u64 length, text, see `debug.rs`
//! ```
//!
//! Shapes, tensors, and strings or bytes of at least 8 bytes are written as debug objects in `DebugSetRegister` (8) and
//! in the reply to `DebugGetFromRemote` (7), as in TVM, and as plain objects everywhere else. Readers accept both
//! everywhere.
//!
//! Arrays, maps and tagged values are nested at most 16 deep. They contain no registers (114). Tensors above 64 KiB lie beside the packet
//! (4097) wherever they are in it.
//!
//! A command is a packet whose first argument is the command's number: 0 to 8 as in TVM, 64 or more for Disco's own. A
//! **frame** is a command's packet, after a packet `64, id, id…` if registers were freed. A reply is a packet that
//! repeats the command's number or reports a failure. `message.rs` describes the other messages of a connection.
//!
//! Received bytes are not trusted: lengths are checked against the remaining bytes before any allocation, unknown
//! numbers are errors, and a packet must have exactly its stated length.

mod answer;
mod beside;
mod command;
mod debug;
mod failure;
mod field;
mod frame;
mod introduction;
mod message;
mod object;
mod packet;
mod parts;
mod pieces;
mod progress;
mod transfer;
pub mod tvm;
mod value;

pub use answer::{decode_notice, decode_reply, decode_value, encode_notice, encode_reply, encode_value};
pub(crate) use beside::snapshot_in;
pub(crate) use command::Freed;
pub(crate) use frame::snapshot;
pub use frame::{Frame, decode_frame, decode_frame_after, decode_frame_beside};
pub use introduction::{Assignment, Hello, Join, RingPlace, Welcome};
pub use message::{Beside, Message, Times, write_frame};
pub use object::ObjectEntry;
pub use packet::Packet;
pub use pieces::Pieces;
pub use transfer::{Received, SessionTransfers, Transfer, TransferBudget};

pub use crate::codec::{INLINE_LIMIT, PACKET_LIMIT, Reader, WireError, Writer};
pub use crate::shared_memory::MappedSnapshot;
pub use crate::store::StoreCall;

/// The version of the protocol of connections: packets, messages and the ring.
pub const VERSION: i64 = 18;

/// First arguments of packets. The first nine are TVM's.
mod action {
    pub(super) const SHUTDOWN: i64 = 0;
    pub(super) const KILL_REG: i64 = 1;
    pub(super) const GET_GLOBAL_FUNC: i64 = 2;
    pub(super) const CALL_PACKED: i64 = 3;
    pub(super) const SYNC_WORKER: i64 = 4;
    pub(super) const COPY_FROM_WORKER_0: i64 = 5;
    pub(super) const COPY_TO_WORKER_0: i64 = 6;
    pub(super) const DEBUG_GET: i64 = 7;
    pub(super) const DEBUG_SET: i64 = 8;
    // Disco's own.
    pub(super) const FREE: i64 = 64;
    pub(super) const SYNC_ALL: i64 = 65;
    pub(super) const RECOVER: i64 = 66;
    pub(super) const FAILED: i64 = 67;
    pub(super) const NOTICE_FAILED: i64 = 68;
    pub(super) const NOTICE_CANCELLED: i64 = 108;
    pub(super) const NOTICE_RESULT: i64 = 110;
    pub(super) const NOTICE_RESULTS_END: i64 = 111;
    pub(super) const GET_ALL: i64 = 94;
    pub(super) const RESIZE: i64 = 105;
    pub(super) const CALL_WITH: i64 = 109;
    // Of connections.
    pub(super) const HELLO: i64 = 69;
    pub(super) const WELCOME: i64 = 70;
    pub(super) const BYE: i64 = 71;
    pub(super) const REPLY: i64 = 72;
    pub(super) const NOTICE: i64 = 73;
    pub(super) const PROGRESS: i64 = 74;
    pub(super) const FRAME: i64 = 75;
    pub(super) const ABORT: i64 = 76;
    pub(super) const STORE_REQUEST: i64 = 77;
    pub(super) const ANSWER: i64 = 78;
    pub(super) const SHARE: i64 = 79;
    pub(super) const UNSHARE: i64 = 80;
    pub(super) const RECEIVE: i64 = 81;
    pub(super) const CREDIT: i64 = 82;
    pub(super) const DESCRIPTOR: i64 = 83;
    pub(super) const KEEPER_REQUEST: i64 = 113;
    pub(super) const PART: i64 = 84;
    pub(super) const BESIDE: i64 = 93;
    pub(super) const AHEAD: i64 = 95;
    pub(super) const WITHDRAW: i64 = 96;
    // Of connections to nodes.
    pub(super) const JOIN: i64 = 85;
    pub(super) const ASSIGN: i64 = 86;
    pub(super) const READY: i64 = 87;
    pub(super) const ALIVE: i64 = 88;
    pub(super) const FROM: i64 = 89;
    pub(super) const OUTPUT: i64 = 90;
    pub(super) const LOST: i64 = 91;
    pub(super) const LEFT: i64 = 92;
    pub(super) const RELAY: i64 = 97;
    pub(super) const LISTENS: i64 = 98;
    pub(super) const REDIRECT: i64 = 99;
    pub(super) const ASK_STATUS: i64 = 100;
    pub(super) const STATUS: i64 = 101;
    pub(super) const LATE: i64 = 102;
    pub(super) const REPLACE: i64 = 114;
    // Of both.
    pub(super) const COLLECT: i64 = 103;
    pub(super) const RECORDING: i64 = 104;
    pub(super) const CANCEL: i64 = 106;
    pub(super) const SETTLE: i64 = 107;
    pub(super) const TAKEN: i64 = 112;
}
