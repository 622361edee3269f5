//! Whether the other machine acknowledges what a connection sends (`TCP_INFO` of Linux; `struct tcp_info` in `linux/tcp.h`).

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Bytes of the structure that are read.
const BYTES: usize = 72;

/// Microseconds over which the system sends a packet again without an answer before its connection counts as cut. With the
/// timeouts of a fast network, 0.2 s each, these are six, or three of a connection with many packets, whose timeouts double.
const CUT_MICROSECONDS: u64 = 1_200_000;

/// Milliseconds that the acknowledgement of the last packet has beside the round trip: the other system may delay it by 40 ms.
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
    /// Nothing although the system has sent a packet again and again, and the other end has room for it.
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
    let word = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    // `tcpi_retransmits` counts the timeouts of the first packet that is not acknowledged; probes of a full receiver do not count.
    // `tcpi_backoff` counts those after which the timeout has doubled, and `tcpi_rto` is the next one, in microseconds.
    let (timeouts, doubled, next) = (info[2], info[4], word(8));
    // `tcpi_last_data_sent`: milliseconds since the system has sent a packet, also again. `tcpi_rtt`: microseconds.
    let has_had_time = word(44) >= ACKNOWLEDGE_MILLISECONDS + word(68) / 1000;
    match (result, asked) {
        (0, _) if has_had_time && unanswered(timeouts, doubled, next) >= CUT_MICROSECONDS => Acknowledged::Cut,
        (0, _) if timeouts > 0 => Acknowledged::Late,
        (_, 0) if queued == 0 => Acknowledged::All,
        _ => Acknowledged::Some,
    }
}

/// Microseconds from the first to the last timeout's end of a packet: of its timeouts, the last ones have doubled, and the next one
/// would take `next` microseconds.
fn unanswered(timeouts: u8, doubled: u8, next: u32) -> u64 {
    let doubled = doubled.min(timeouts);
    let factor = 1_u64 << doubled.min(16);
    u64::from(next) / factor * (factor - 1 + u64::from(timeouts - doubled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_that_double_and_those_that_do_not_are_added() {
        assert_eq!(unanswered(0, 0, 200), 0);
        assert_eq!(unanswered(6, 0, 200), 6 * 200);
        assert_eq!(unanswered(3, 3, 8 * 200), (1 + 2 + 4) * 200);
        assert_eq!(unanswered(3, 2, 4 * 200), (1 + 1 + 2) * 200);
    }
}
