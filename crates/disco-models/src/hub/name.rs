//! The names of models on a hub.

use std::fmt;
use std::path::{Component, Path};

/// The name of a model on a hub: `OWNER/REPOSITORY`, or `OWNER/REPOSITORY:FILE` for one of several GGUF files, where `FILE`
/// is a part of its name, such as `Q4_K_M`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    repository: String,
    file: Option<String>,
}

impl HubName {
    /// `OWNER/REPOSITORY`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The part of a file's name, if the name has one.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// The name with this text; none if it has another form.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (repository, file) = match text.split_once(':') {
            Some((repository, file)) => (repository, Some(file)),
            None => (text, None),
        };
        let is_part = |part: &str| {
            part.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_')
                && part.chars().all(|each| each.is_ascii_alphanumeric() || "-_.".contains(each))
        };
        let is_name =
            matches!(repository.split('/').collect::<Vec<_>>()[..], [owner, name] if is_part(owner) && is_part(name));
        let is_whole = is_name && file != Some("");
        is_whole.then(|| Self { repository: repository.to_owned(), file: file.map(str::to_owned) })
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository)?;
        self.file.iter().try_for_each(|file| write!(f, ":{file}"))
    }
}

/// Whether a file that the hub names lies in its repository, and is not hidden.
pub(super) fn is_inside(file: &str) -> bool {
    let is_normal = |part: Component| match part {
        Component::Normal(name) => !name.as_encoded_bytes().starts_with(b"."),
        _ => false,
    };
    !file.is_empty() && Path::new(file).components().all(is_normal)
}
