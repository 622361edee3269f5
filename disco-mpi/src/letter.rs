//! What rank 0 tells the others, in letters of one size.
//!
//! ```text
//! kind   1 byte    1 an invitation, 2 and 3 rank 0 ends, 4 where to join
//! length 2 bytes   little endian
//! text             joining: milliseconds, token, and addresses parted by commas, with a blank in between
//! ```

use std::fmt;
use std::time::Duration;

use disco_core::{Error, Result};

/// Bytes of a letter, and of the longest text in it.
pub(crate) const LETTER: usize = TEXT + HEAD;
const TEXT: usize = 509;
const HEAD: usize = 3;

/// What a rank is asked to do for a session.
#[allow(clippy::exhaustive_enums, reason = "whoever gets one has to do what it says, whichever it is")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Letter {
    /// To serve as a worker of rank 0's machine, with an invitation that has this text.
    Invitation(String),
    /// To join as a node, from wherever it is.
    Joining(Joining),
}

/// How a rank finds rank 0. It is the node that has its number.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq)]
pub struct Joining {
    /// The session's token, which has no blanks.
    pub token: String,
    /// How long joining may take.
    pub start: Duration,
    /// Where rank 0 may be reached, each as `HOST:PORT`; the first ones, as many as a letter has room for.
    pub addresses: Vec<String>,
}

/// Anything that a rank is told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Post {
    Letter(Letter),
    /// Rank 0 ends; whether MPI can be finalised.
    End(bool),
}

impl Joining {
    /// A session with this token, at these addresses.
    pub fn new(token: String, start: Duration, addresses: Vec<String>) -> Self {
        Self { token, start, addresses }
    }

    fn write(&self) -> String {
        let millis = u64::try_from(self.start.as_millis()).unwrap_or(u64::MAX);
        let mut text = format!("{millis} {}", self.token);
        for (index, address) in self.addresses.iter().enumerate() {
            if text.len() + 1 + address.len() > TEXT {
                tracing::debug!(left = self.addresses.len() - index, "addresses that no letter has room for");
                break;
            }
            text.push(if index == 0 { ' ' } else { ',' });
            text.push_str(address);
        }
        text
    }

    fn read(text: &str) -> Result<Self> {
        let parse = || {
            let mut parts = text.splitn(3, ' ');
            let start = Duration::from_millis(parts.next()?.parse().ok()?);
            let (token, addresses) = (parts.next()?.to_owned(), parts.next()?);
            Some(Self { token, start, addresses: addresses.split(',').map(str::to_owned).collect() })
        };
        // Its text has a token, and is not shown.
        parse().ok_or_else(|| Error::protocol("mpi: a letter that says where to join can't be read"))
    }
}

impl Post {
    /// As it is sent.
    ///
    /// # Errors
    /// A text that is too long.
    pub(crate) fn write(&self) -> Result<[u8; LETTER]> {
        let (kind, text) = match self {
            Self::Letter(Letter::Invitation(text)) => (1, text.clone()),
            Self::End(is_finished) => (if *is_finished { 2 } else { 3 }, String::new()),
            Self::Letter(Letter::Joining(joining)) => (4, joining.write()),
        };
        if text.len() > TEXT {
            return Err(Error::invalid(format!("mpi: {} bytes are too many for a letter to a rank", text.len())));
        }
        let mut letter = [0; LETTER];
        letter[0] = kind;
        letter[1..HEAD].copy_from_slice(&(text.len() as u16).to_le_bytes());
        letter[HEAD..HEAD + text.len()].copy_from_slice(text.as_bytes());
        Ok(letter)
    }

    /// What came.
    ///
    /// # Errors
    /// It is none of this version.
    pub(crate) fn read(letter: &[u8; LETTER]) -> Result<Self> {
        let length = usize::from(u16::from_le_bytes([letter[1], letter[2]])).min(TEXT);
        let text = String::from_utf8_lossy(&letter[HEAD..HEAD + length]);
        match letter[0] {
            1 => Ok(Self::Letter(Letter::Invitation(text.into_owned()))),
            kind @ (2 | 3) => Ok(Self::End(kind == 2)),
            4 => Joining::read(&text).map(|joining| Self::Letter(Letter::Joining(joining))),
            kind => Err(Error::protocol(format!("mpi: rank 0 sends a letter of kind {kind}: do all run one program?"))),
        }
    }
}

impl fmt::Debug for Joining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joining").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joining(addresses: usize) -> Joining {
        let addresses = (0..addresses).map(|index| format!("192.168.100.{}:40000", 100 + index)).collect();
        Joining::new("0123456789abcdef".repeat(4), Duration::from_secs(30), addresses)
    }

    #[test]
    fn letters_are_read_as_they_were_written() {
        let invitation = Letter::Invitation("3:disco-1f:00ff".into());
        for post in [Post::Letter(invitation), Post::Letter(Letter::Joining(joining(3))), Post::End(true)] {
            assert_eq!(Post::read(&post.write().unwrap()).unwrap(), post);
        }
        assert_eq!(Post::read(&Post::End(false).write().unwrap()).unwrap(), Post::End(false));
    }

    #[test]
    fn joining_may_take_for_ever() {
        let post = Post::Letter(Letter::Joining(Joining { start: Duration::MAX, ..joining(1) }));
        let Post::Letter(Letter::Joining(read)) = Post::read(&post.write().unwrap()).unwrap() else { panic!() };
        assert_eq!(read.start, Duration::from_millis(u64::MAX));
    }

    #[test]
    fn a_letter_takes_as_many_addresses_as_it_has_room_for() {
        let Post::Letter(Letter::Joining(read)) =
            Post::read(&Post::Letter(Letter::Joining(joining(100))).write().unwrap()).unwrap()
        else {
            panic!()
        };
        assert_eq!(read.addresses, joining(19).addresses);
        assert_eq!(read.token, joining(1).token);
        let long = Post::Letter(Letter::Invitation("a".repeat(510))).write().unwrap_err().to_string();
        assert_eq!(long, "mpi: 510 bytes are too many for a letter to a rank");
    }

    #[test]
    fn what_is_no_letter_is_refused_without_its_text() {
        let mut letter = Post::Letter(Letter::Joining(joining(1))).write().unwrap();
        letter[3] = b'?';
        let error = Post::read(&letter).unwrap_err().to_string();
        assert_eq!(error, "mpi: a letter that says where to join can't be read");
        letter[0] = 9;
        let error = Post::read(&letter).unwrap_err().to_string();
        assert_eq!(error, "mpi: rank 0 sends a letter of kind 9: do all run one program?");
        assert!(!format!("{:?}", joining(1)).contains("0123456789abcdef"));
    }
}
