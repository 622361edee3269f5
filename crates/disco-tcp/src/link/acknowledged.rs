//! Whether the other machine acknowledges what a connection sends (`TCP_INFO` of Linux; `struct tcp_info` in `linux/tcp.h`).

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Bytes of the structure that are read.
const BYTES: usize = 48;

/// Timeouts of a packet after which its connection counts as cut: by then, 1.4 s have passed at least.
const CUT_TIMEOUTS: u8 = 3;

/// Milliseconds that the acknowledgement of the last packet has: the other system may delay it by 40 ms.
const ACKNOWLEDGE_MILLISECONDS: u32 = 50;

/// What the other machine has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledged {
    /// Everything, and the system has nothing to send, so that it takes a small message whole.
    All,
    /// Not all yet, or the system does not tell.
    Some,
    /// Not yet a packet that the system has sent again.
    Late,
    /// Nothing since the system has sent a packet several times, although the other end has room for it.
    Cut,
}

/// The state of a connection.
pub(crate) fn acknowledged(socket: BorrowedFd<'_>) -> Acknowledged {
    let mut info = [0u8; BYTES];
    let mut len = BYTES as libc::socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: the descriptor is open, and the system writes at most `len` bytes to `info`, which has as many.
    let result = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut len) };
    let mut queued: libc::c_int = 0;
    // SAFETY: the descriptor is open, and the system writes an integer to `queued`: the number of bytes that are unsent or not
    // acknowledged (`SIOCOUTQ`).
    let asked = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &mut queued) };
    // `tcpi_retransmits` counts the timeouts of the first packet that is not acknowledged; probes of a full receiver do not count.
    let timeouts = info[2];
    // `tcpi_last_data_sent`: milliseconds since the system has sent a packet, also again.
    let since_sent = u32::from_ne_bytes([info[44], info[45], info[46], info[47]]);
    match (result, asked) {
        (0, _) if timeouts >= CUT_TIMEOUTS && since_sent >= ACKNOWLEDGE_MILLISECONDS => Acknowledged::Cut,
        (0, _) if timeouts > 0 => Acknowledged::Late,
        (_, 0) if queued == 0 => Acknowledged::All,
        _ => Acknowledged::Some,
    }
}
