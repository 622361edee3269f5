//! The token that clients must have.

use std::fmt;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The header of a key without a scheme.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// A secret that clients send in the header `Authorization: Bearer SECRET`, or `x-api-key: SECRET` as Anthropic's do. It is
/// compared in constant time.
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
        let bearer = headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, token) = value.as_bytes().split_at_checked(b"Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
        });
        let key = headers.get(X_API_KEY).map(HeaderValue::as_bytes);
        bearer.into_iter().chain(key).any(|token| self.is(token))
    }

    fn is(&self, token: &[u8]) -> bool {
        let digest: [u8; 32] = Sha256::digest(token.trim_ascii()).into();
        digest.ct_eq(&self.digest).into()
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
        for (key, is_right) in [("secret", true), ("secrets", false), ("Bearer secret", false), ("", false)] {
            let mut headers = HeaderMap::from_iter([(X_API_KEY, key.parse().unwrap())]);
            assert_eq!(token.is_in(&headers), is_right, "{key:?}");
            // Some clients send a placeholder in the other one.
            headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer none"));
            assert_eq!(token.is_in(&headers), is_right, "{key:?}");
        }
        assert!(!token.is_in(&HeaderMap::new()));
        assert_eq!(BearerToken::new(" \n").unwrap_err(), EmptyToken);
        assert!(!format!("{token:?}").contains("secret"));
    }
}
