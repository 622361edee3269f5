//! What all nodes of a session know, and nobody else.

use std::env;
use std::ffi::OsStr;
use std::fmt;
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

/// The secret of a session. It is never shown; each end proves to the other that it has the same.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<[u8]>);

impl Token {
    /// The fewest bytes of a token, and the most.
    pub const SIZES: std::ops::RangeInclusive<usize> = 16..=4096;

    /// The token that is this text, without white space around it.
    ///
    /// # Errors
    /// It is shorter or longer than [`Token::SIZES`].
    pub fn new(text: &str) -> Result<Self> {
        let text = text.trim();
        match Self::SIZES.contains(&text.len()) {
            true => Ok(Self(text.as_bytes().into())),
            false => Err(Error::invalid(format!(
                "a token has {} to {} bytes, and this one {}",
                Self::SIZES.start(),
                Self::SIZES.end(),
                text.len()
            ))),
        }
    }

    /// The token that `DISCO_TOKEN` is, or the one in the file that `DISCO_TOKEN_FILE` names; none without these.
    ///
    /// # Errors
    /// As [`Token::new`] and [`Token::read`].
    pub fn from_env() -> Result<Option<Self>> {
        if let Some(text) = env::var_os(VARIABLE).filter(|text| !text.is_empty()) {
            let token = text.to_str().ok_or_else(|| Error::invalid("no text")).and_then(Self::new);
            return token.map(Some).map_err(|error| Error::invalid(format!("{VARIABLE}: {error}")));
        }
        let file = env::var_os("DISCO_TOKEN_FILE").filter(|path| !path.is_empty());
        file.map(|path| Self::read(Path::new(&path))).transpose()
    }

    /// [The environment's](Self::from_env) token, where there has to be one: nodes that are started elsewhere can't be handed a
    /// random one.
    ///
    /// # Errors
    /// There is none, and how to make one; as [`Token::from_env`].
    pub fn required() -> Result<Self> {
        Self::from_env()?.ok_or_else(|| {
            Error::invalid(
                "a session whose nodes are started elsewhere needs a token, which each node proves to have, and none was given: \
                 make one by `disco token FILE`, copy the file to the other machines, and set DISCO_TOKEN_FILE=FILE, or pass \
                 `--token-file FILE` to `disco run` and `disco worker`",
            )
        })
    }

    /// A random token.
    ///
    /// # Errors
    /// No random numbers.
    pub fn random() -> Result<Self> {
        let random = random::bytes::<32>().map_err(|error| Error::system("no random numbers", error))?;
        Self::new(&random::hex(&random))
    }

    /// Its text, to be passed on where nobody else reads it.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }

    /// Passes it on to a program that is to be started, in `DISCO_TOKEN`.
    pub fn pass_on(&self, program: &mut Command) {
        program.env(VARIABLE, OsStr::from_bytes(&self.0));
    }

    /// The token in a file. That others can read it is logged as a warning.
    ///
    /// # Errors
    /// It can't be read, or has no token.
    pub fn read(path: &Path) -> Result<Self> {
        let name = format!("token file {}", path.display());
        let refused = |error: std::io::Error| Error::system(name.as_str(), error);
        let mut text = String::new();
        let file = File::open(path).map_err(refused)?;
        if file.metadata().is_ok_and(|data| data.mode() & 0o077 != 0) {
            tracing::warn!(path = %path.display(), "others can read the token");
        }
        // Whatever it is, not all of it is wanted.
        let most = *Self::SIZES.end() as u64 * 2;
        file.take(most).read_to_string(&mut text).map_err(refused)?;
        Self::new(&text).map_err(|error| Error::invalid(format!("{name}: {error}")))
    }

    /// Makes a random token, and a new file with it that only this user can read.
    ///
    /// # Errors
    /// The file is there already, or can't be written; no random numbers.
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

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_file_is_its_owners_alone_and_never_replaced() {
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
        assert!(short.ends_with("/token: a token has 16 to 4096 bytes, and this one 5"), "{short}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
