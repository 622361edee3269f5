//! Where the collector is, and what it gets beside the spans.

use std::net::IpAddr;

use axum::http::{HeaderName, HeaderValue, Uri};

/// The path of spans under a collector's address.
const PATH: &str = "/v1/traces";

/// A collector.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub(super) url: String,
    /// Whether it is on this machine, which no proxy of the environment stands before.
    pub(super) is_local: bool,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// Attributes of this program.
    pub(super) resource: Vec<(String, String)>,
}

/// Why there is no such collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongEndpoint {
    /// The address is none.
    #[error("{0:?} is no address of a collector, such as http://localhost:4318")]
    Url(String),
    /// A variable is malformed.
    #[error("{name} has {pair:?}, which is no pair KEY=VALUE that can be sent; pairs are separated by commas")]
    Variable {
        /// Its name.
        name: &'static str,
        /// The part that is malformed.
        pair: String,
    },
}

impl Endpoint {
    /// The collector with this address, under which `/v1/traces` is, unless it ends so. `variable` returns variables of the environment:
    /// `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` are used.
    ///
    /// # Errors
    /// The address or a variable is malformed.
    pub fn new(url: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, WrongEndpoint> {
        const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
        let wrong = || WrongEndpoint::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        if !is_http || host.is_empty() || uri.query().is_some() {
            return Err(wrong());
        }
        let is_local = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        let base = url.trim_end_matches('/');
        let url = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
        let headers = pairs(HEADERS, variable(HEADERS))?.into_iter().map(|(name, value)| {
            let wrong = || WrongEndpoint::Variable { name: HEADERS, pair: name.clone() };
            let header = name.parse().map_err(|_| wrong())?;
            let mut value: HeaderValue = value.parse().map_err(|_| wrong())?;
            value.set_sensitive(true);
            Ok((header, value))
        });
        let headers = headers.collect::<Result<_, _>>()?;
        let mut resource = pairs("OTEL_RESOURCE_ATTRIBUTES", variable("OTEL_RESOURCE_ATTRIBUTES"))?;
        let has_name = resource.iter().any(|(name, _)| name == "service.name");
        let name = variable("OTEL_SERVICE_NAME").filter(|name| !name.is_empty());
        if let Some(name) = name.or_else(|| (!has_name).then(|| "disco-serve".to_owned())) {
            resource.retain(|(name, _)| name != "service.name");
            resource.push(("service.name".to_owned(), name));
        }
        Ok(Self { url, is_local, headers, resource })
    }
}

/// The pairs of a variable, whose values are percent-encoded.
fn pairs(name: &'static str, text: Option<String>) -> Result<Vec<(String, String)>, WrongEndpoint> {
    let text = text.unwrap_or_default();
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty()).map(|pair| {
        let read = || {
            let (key, value) = pair.split_once('=')?;
            Some((key.trim(), decoded(value.trim())?)).filter(|(key, _)| !key.is_empty())
        };
        // The value may be a secret.
        let shown = || pair.split_once('=').map_or(pair, |(key, _)| key).to_owned();
        let (key, value) = read().ok_or_else(|| WrongEndpoint::Variable { name, pair: shown() })?;
        Ok((key.to_owned(), value))
    });
    pairs.collect()
}

fn decoded(text: &str) -> Option<String> {
    let (first, parts) = text.split_once('%').map_or((text, None), |(first, rest)| (first, Some(rest)));
    let mut bytes = first.as_bytes().to_vec();
    for part in parts.into_iter().flat_map(|rest| rest.split('%')) {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_go_under_the_address() {
        let url = |url: &str| Endpoint::new(url, |_| None).map(|endpoint| endpoint.url);
        for same in ["http://h:4318", "http://h:4318/", "http://h:4318/v1/traces"] {
            assert_eq!(url(same).unwrap(), "http://h:4318/v1/traces");
        }
        assert_eq!(url("https://h/base").unwrap(), "https://h/base/v1/traces");
        for (url, is_local) in
            [("http://[::1]:1", true), ("http://localhost", true), ("http://127.0.0.2", true), ("http://h", false)]
        {
            assert_eq!(Endpoint::new(url, |_| None).unwrap().is_local, is_local, "{url}");
        }
        for wrong in ["", "h:4318", "grpc://h", "http://", "http://h/?a=b", "/v1/traces"] {
            assert_eq!(url(wrong).unwrap_err(), WrongEndpoint::Url(wrong.to_owned()));
        }
    }

    #[test]
    fn variables_add_headers_and_attributes() {
        let with = |headers: &'static str, attributes: &'static str, name: &'static str| {
            Endpoint::new("http://h", move |variable| match variable {
                "OTEL_EXPORTER_OTLP_HEADERS" => Some(headers.to_owned()),
                "OTEL_RESOURCE_ATTRIBUTES" => Some(attributes.to_owned()),
                _ => Some(name.to_owned()),
            })
        };
        let endpoint = with("authorization=Basic%20eA==, x-a = b", "service.name=other,a=%C3%A9", "").unwrap();
        assert_eq!(
            endpoint.headers.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["authorization", "x-a"]
        );
        assert_eq!([&endpoint.headers[0].1, &endpoint.headers[1].1], ["Basic eA==", "b"]);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(endpoint.resource, [pair("service.name", "other"), pair("a", "é")]);
        assert_eq!(with("", "service.name=other", "mine").unwrap().resource, [pair("service.name", "mine")]);
        assert_eq!(with("", "", "").unwrap().resource, [pair("service.name", "disco-serve")]);
        for (headers, shown) in [("secret", "secret"), ("a=%zz", "a"), ("ä=b", "ä"), ("a=b%0Ac", "a"), ("=b", "")] {
            let name = "OTEL_EXPORTER_OTLP_HEADERS";
            assert_eq!(with(headers, "", "").unwrap_err(), WrongEndpoint::Variable { name, pair: shown.to_owned() });
        }
    }
}
