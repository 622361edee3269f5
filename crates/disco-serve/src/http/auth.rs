//! The token that clients must have.

use std::fmt;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// A secret that clients send in the header `Authorization: Bearer SECRET`. It is compared in constant time.
#[derive(Clone)]
pub struct BearerToken {
    /// A digest, because a comparison in constant time needs equal lengths.
    digest: [u8; 32],
}

/// A token without characters, which every client could send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token for clients is empty: it needs one character or more")]
pub struct EmptyToken;

impl BearerToken {
    /// The token with this text, without the white space around it.
    ///
    /// # Errors
    /// The text consists of white space.
    pub fn new(text: &str) -> Result<Self, EmptyToken> {
        match text.trim() {
            "" => Err(EmptyToken),
            text => Ok(Self { digest: Sha256::digest(text).into() }),
        }
    }

    /// Whether a request has the token.
    pub(super) fn is_in(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
        let Some((scheme, token)) = value.split_at_checked(b"Bearer ".len()) else { return false };
        let digest: [u8; 32] = Sha256::digest(token.trim_ascii()).into();
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(digest.ct_eq(&self.digest))
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BearerToken").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_itself_is_accepted() {
        let token = BearerToken::new(" secret\n").unwrap();
        let accepts = |value: &str| token.is_in(&HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]));
        assert!(accepts("Bearer secret") && accepts("bearer secret"));
        for wrong in ["Bearer secre", "Bearer secret2", "Bearer ", "Basic secret", "secret", ""] {
            assert!(!accepts(wrong), "{wrong:?}");
        }
        assert!(!token.is_in(&HeaderMap::new()));
        assert_eq!(BearerToken::new(" \n").unwrap_err(), EmptyToken);
        assert!(!format!("{token:?}").contains("secret"));
    }
}
