//! The shared secret of a session's nodes.

use std::env;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use disco_core::{Error, Result};

use crate::random;

const VARIABLE: &str = "DISCO_TOKEN";

/// The secret of a session, which each node shares with the controller. It is never sent: each end proves to the other
/// that it has it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<[u8]>);

impl Token {
    /// Permitted length of a token, in bytes.
    pub const SIZES: std::ops::RangeInclusive<usize> = 16..=4096;

    /// Makes a token of a text, without surrounding white space.
    ///
    /// # Errors
    /// The length of the text is outside [`Token::SIZES`].
    pub fn new(text: &str) -> Result<Self> {
        let text = text.trim();
        if Self::SIZES.contains(&text.len()) {
            Ok(Self(text.as_bytes().into()))
        } else {
            Err(Error::invalid(format!(
                "a token must have {} to {} bytes, and this one has {}",
                Self::SIZES.start(),
                Self::SIZES.end(),
                text.len()
            )))
        }
    }

    /// Returns the token in `DISCO_TOKEN`, or in the file that `DISCO_TOKEN_FILE` names; `None` if neither variable is
    /// set.
    ///
    /// # Errors
    /// As [`Token::new`] and [`Token::read`].
    pub fn from_env() -> Result<Option<Self>> {
        if let Some(text) = env::var_os(VARIABLE).filter(|text| !text.is_empty()) {
            let token = text.to_str().ok_or_else(|| Error::invalid("the value is not UTF-8")).and_then(Self::new);
            return token.map(Some).map_err(|error| Error::invalid(format!("{VARIABLE}: {error}")));
        }
        let file = env::var_os("DISCO_TOKEN_FILE").filter(|path| !path.is_empty());
        file.map(|path| Self::read(Path::new(&path))).transpose()
    }

    /// Returns the token of [the environment](Self::from_env), which a session needs if its nodes are started
    /// elsewhere: they can't be handed a random one.
    ///
    /// # Errors
    /// The environment has no token (the error says how to make one); as [`Token::from_env`].
    pub fn required() -> Result<Self> {
        Self::from_env()?.ok_or_else(|| {
            Error::invalid(
                "a session whose nodes are started elsewhere needs a token, which each node proves to have, and none was given: \
                 make one by `disco token FILE`, copy the file to the other machines, and set DISCO_TOKEN_FILE=FILE, or pass \
                 `--token-file FILE` to `disco run` and `disco worker`",
            )
        })
    }

    /// Makes a random token.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn random() -> Result<Self> {
        let random = random::bytes::<32>()
            .map_err(|error| Error::system("the system gives no random numbers for a token", error))?;
        Self::new(&random::hex(&random))
    }

    /// The token's text. It is a secret: pass it on only where other users can't read it.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }

    /// Passes the token to a program that is to be started, in `DISCO_TOKEN`.
    pub fn pass_on(&self, program: &mut Command) {
        program.env(VARIABLE, OsStr::from_bytes(&self.0));
    }

    /// Reads the token in a file. Logs a warning if other users can read the file.
    ///
    /// # Errors
    /// The file can't be read, or does not hold a token.
    pub fn read(path: &Path) -> Result<Self> {
        let name = format!("token file {}", path.display());
        let refused = |error: std::io::Error| Error::system(name.as_str(), error);
        let mut text = String::new();
        let file = File::open(path).map_err(refused)?;
        if file.metadata().is_ok_and(|data| data.mode() & 0o077 != 0) {
            tracing::warn!(path = %path.display(), "other users can read the token file; make it readable to its owner only (chmod 600)");
        }
        // Bounds the read: the path may name a huge file.
        let most = *Self::SIZES.end() as u64 * 2;
        file.take(most).read_to_string(&mut text).map_err(refused)?;
        Self::new(&text).map_err(|error| Error::invalid(format!("{name}: {error}")))
    }

    /// Makes a random token and stores it in a new file that only this user can read.
    ///
    /// # Errors
    /// The file exists already or can't be written, or the system gives no random numbers.
    pub fn create(path: &Path) -> Result<Self> {
        let refused = |error: std::io::Error| Error::system(format!("token file {}", path.display()), error);
        let token = Self::random()?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(refused)?;
        file.write_all(&[&token.0, &b"\n"[..]].concat()).map_err(refused)?;
        Ok(token)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

disco_core::format_as!(Debug for Token, |_| "Token");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_token_file_has_mode_600_and_an_existing_one_is_not_replaced() {
        let folder = std::env::temp_dir().join(format!("disco-token-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("token");
        let token = Token::create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(Token::read(&path).unwrap() == token);
        let again = Token::create(&path).unwrap_err().to_string();
        assert!(again.ends_with("/token: File exists (os error 17)"), "{again}");
        assert_eq!(format!("{token:?}"), "Token");
        std::fs::write(&path, "short\n").unwrap();
        let short = Token::read(&path).unwrap_err().to_string();
        assert!(short.ends_with("/token: a token must have 16 to 4096 bytes, and this one has 5"), "{short}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
