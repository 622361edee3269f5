//! The system's numbers of a TCP connection (`TCP_INFO` of Linux; `struct tcp_info` in `linux/tcp.h`).
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd as _};
use std::time::Duration;

use disco_core::status::ConnectionStatus;

/// Bytes of the structure that are read here. Older systems return fewer, and the rest reads as 0.
const BYTES: usize = 216;

/// Timeouts of a packet after which it counts as stuck: by then, 1.4 s have passed at least.
const STUCK_TIMEOUTS: u8 = 3;

/// The state of a TCP connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpInfo([u8; BYTES]);

impl TcpInfo {
    /// The state of a socket; `None` if it is not TCP.
    pub(crate) fn of(socket: impl AsFd) -> Option<Self> {
        let mut bytes = [0; BYTES];
        let mut len = BYTES as libc::socklen_t;
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: the descriptor is open, and the system writes at most `len` bytes to `bytes`, which has as many.
        let result =
            unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, bytes.as_mut_ptr().cast(), &mut len) };
        (result == 0).then_some(Self(bytes))
    }

    pub(crate) fn describe(&self, status: &mut ConnectionStatus) {
        status.round_trip = Some(self.round_trip()).filter(|time| !time.is_zero());
        (status.sent_bytes, status.received_bytes) = (self.long(120), self.long(128));
        (status.sent_packets, status.received_packets) = (self.word(136).into(), self.word(140).into());
        status.repeated_packets = self.word(100).into();
        status.unacknowledged_bytes = self.unacknowledged();
    }

    /// Smoothed round-trip time.
    fn round_trip(&self) -> Duration {
        Duration::from_micros(self.word(68).into())
    }

    /// Bytes that the system sends again and again, since the other end does not acknowledge them although it has room
    /// for them. `None` if there are none.
    pub(super) fn stuck(&self) -> Option<u64> {
        // `tcpi_retransmits` counts the timeouts of the first unacknowledged packet.
        (self.0[2] >= STUCK_TIMEOUTS).then(|| self.unacknowledged()).filter(|bytes| *bytes > 0)
    }

    /// Bytes sent and not acknowledged: full packets, so an upper bound.
    fn unacknowledged(&self) -> u64 {
        u64::from(self.word(24)) * u64::from(self.word(16))
    }

    fn word(&self, at: usize) -> u32 {
        self.0.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    fn long(&self, at: usize) -> u64 {
        self.0.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }
}
