//! Random bytes from the system.

use std::io;

use rustix::rand::{self, GetRandomFlags};

/// Returns `N` random bytes.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let (mut random, mut filled) = ([0; N], 0);
    while filled < N {
        filled += rand::getrandom(&mut random[filled..], GetRandomFlags::empty())?;
    }
    Ok(random)
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
