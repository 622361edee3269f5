//! Errors of a hub.

use std::str::FromStr;
use std::time::Duration;

use hf_hub::api::sync::ApiError;

use super::HubName;
use super::watched::End;

/// Reasons why a model can't be had from a hub.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// A name of another form.
    #[error("{0:?} is no name of a model on a hub, which is OWNER/REPOSITORY or OWNER/REPOSITORY:FILE")]
    Name(String),
    /// The hub does not show the repository.
    #[error(
        "{name}: {endpoint} refuses {doing} (HTTP {status}): there is no such repository, or it is private or gated; check the name; for a private or gated one ask for access on its page and set HF_TOKEN"
    )]
    Refused {
        /// The model.
        name: HubName,
        /// The URL of the hub.
        endpoint: String,
        /// The request: `listing the files`, `downloading FILE`.
        doing: String,
        /// The status of HTTP: 401, 403 or 404.
        status: u16,
    },
    /// A request has failed.
    #[error(
        "{name}: {doing} from {endpoint} has failed: {why}; a download goes on where it ended if it is started again"
    )]
    Request {
        /// The model.
        name: HubName,
        /// The URL of the hub.
        endpoint: String,
        /// The request: `listing the files`, `downloading FILE`.
        doing: String,
        /// The reason.
        why: String,
    },
    /// The hub fell silent.
    #[error(
        "{name}: {endpoint} has sent nothing for {} s while {doing}; check the network (HTTPS_PROXY, HF_ENDPOINT), or pass a file or folder", .silence.as_secs_f64()
    )]
    Silent {
        /// The model.
        name: HubName,
        /// The URL of the hub.
        endpoint: String,
        /// The request: `listing the files`, `downloading FILE`.
        doing: String,
        /// For how long.
        silence: Duration,
    },
    /// The repository has no such model.
    #[error("{name}: there is no such model in the repository, neither safetensors nor GGUF; its files are {}", listed(.found))]
    NoModel {
        /// The model.
        name: HubName,
        /// The files of the repository.
        found: Vec<String>,
    },
    /// The repository has several models.
    #[error("{name}: the repository has several models: {}; name one, such as `{}`", .found.join(", "), example(.name, .found))]
    Several {
        /// The model.
        name: HubName,
        /// The GGUF models that fit the name.
        found: Vec<String>,
    },
}

impl HubError {
    pub(super) fn of_request(error: &ApiError, doing: &str, name: &HubName, endpoint: &str) -> Self {
        let (name, endpoint, doing) = (name.clone(), endpoint.to_owned(), doing.to_owned());
        match status(error) {
            Some(status @ (401 | 403 | 404)) => Self::Refused { name, endpoint, doing, status },
            _ => Self::Request { name, endpoint, doing, why: error.to_string() },
        }
    }

    pub(super) fn of_silence(end: End, doing: &str, name: &HubName, endpoint: &str) -> Self {
        let (name, endpoint, doing) = (name.clone(), endpoint.to_owned(), doing.to_owned());
        match end {
            End::Silence(silence) => Self::Silent { name, endpoint, doing, silence },
            End::Panic => Self::Request { name, endpoint, doing, why: "the answer is not what a hub sends".to_owned() },
        }
    }

    /// Whether the hub itself has answered nothing.
    pub(super) fn is_without_answer(&self) -> bool {
        matches!(self, Self::Silent { .. } | Self::Request { .. })
    }
}

/// The status of HTTP that has failed a request.
fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match **error {
            ureq::Error::StatusCode(status) => Some(status),
            _ => None,
        },
        ApiError::TooManyRetries(error) => status(error),
        _ => None,
    }
}

impl FromStr for HubName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        Self::parse(text).ok_or_else(|| HubError::Name(text.to_owned()))
    }
}

/// The first names.
fn listed(files: &[String]) -> String {
    const MOST: usize = 12;
    let more = if files.len() > MOST { format!(" and {} more", files.len() - MOST) } else { String::new() };
    files[..files.len().min(MOST)].join(", ") + &more
}

/// A name that chooses one of several models.
fn example(name: &HubName, found: &[String]) -> String {
    let last = found.iter().find(|file| !file.contains('/')).or(found.first());
    let stem = last.map_or("", |file| file.strip_suffix(".gguf").unwrap_or(file));
    let part = stem.rsplit(['-', '.', '/']).next().unwrap_or(stem);
    format!("{}:{part}", name.repository())
}
