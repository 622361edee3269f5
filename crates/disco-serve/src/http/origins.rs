//! Web pages of other origins that may use a server (CORS).

use std::str::FromStr;

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::request_id::{TRACERESPONSE, X_REQUEST_ID};

/// All origins.
const ANY: &str = "*";

/// Where a web page is from, as a browser says it in the header `Origin`: `https://chat.example`, `app://obsidian.md`,
/// `null`; `*` stands for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(HeaderValue);

/// A text that no browser sends as an origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no origin: SCHEME://HOST or SCHEME://HOST:PORT without a path, `null`, or `*` for all")]
pub struct NoOrigin(String);

impl FromStr for Origin {
    type Err = NoOrigin;

    fn from_str(text: &str) -> Result<Self, NoOrigin> {
        let is_origin = match text.split_once("://") {
            Some((scheme, host)) => !scheme.is_empty() && !host.is_empty() && !host.contains('/'),
            None => [ANY, "null"].contains(&text),
        };
        let value = HeaderValue::from_str(text).ok().filter(|_| is_origin);
        value.map(Self).ok_or_else(|| NoOrigin(text.to_owned()))
    }
}

/// Answers the questions of browsers before a request (preflight), and marks the answers to pages of these origins.
pub(super) fn layer(origins: &[Origin]) -> CorsLayer {
    let is_any = origins.iter().any(|Origin(origin)| origin == ANY);
    let origins = || AllowOrigin::list(origins.iter().map(|Origin(origin)| origin.clone()));
    CorsLayer::new()
        .allow_origin(if is_any { AllowOrigin::any() } else { origins() })
        .allow_methods([Method::GET, Method::POST])
        // Clients have headers of their own, such as `x-stainless-os`.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([RETRY_AFTER, X_REQUEST_ID, TRACERESPONSE])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_a_scheme_and_no_path() {
        for origin in ["*", "null", "http://localhost:3000", "app://obsidian.md"] {
            origin.parse::<Origin>().unwrap();
        }
        for other in ["", "localhost:3000", "http://localhost:3000/", "http://a/b", "://a", "http://", "http://a\n"] {
            other.parse::<Origin>().unwrap_err();
        }
    }
}
