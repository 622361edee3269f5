//! Models by their names on a hub: `HuggingFaceTB/SmolLM2-135M-Instruct`.
//!
//! The crate `hf-hub` downloads the files into the cache that programs in Python share (`HF_HOME`, by default
//! `~/.cache/huggingface`), from Hugging Face's hub or another with its interface (`HF_ENDPOINT`). For private and gated
//! repositories it takes the token of `HF_TOKEN`, or the one that `hf auth login` has saved.

mod choice;
mod error;
mod name;
mod watched;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use self::choice::Choice;
pub use self::error::HubError;
pub use self::name::HubName;
pub use self::watched::Downloaded;
use self::watched::watched;

/// The hub without `HF_ENDPOINT`.
const HUGGING_FACE: &str = "https://huggingface.co";

/// The branch whose newest commit is taken.
const BRANCH: &str = "main";

/// A hub, and the folder of downloaded files.
#[derive(Clone, Debug)]
pub struct Hub {
    endpoint: String,
    cache: Cache,
    token: Option<String>,
    silence_limit: Duration,
}

impl Hub {
    /// The hub, the cache and the token that the environment names: `HF_ENDPOINT`, `HF_HOME`, `HF_TOKEN`.
    pub fn from_env() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| HUGGING_FACE.to_owned());
        let cache = Cache::from_env();
        let token = variable("HF_TOKEN").or_else(|| cache.token());
        Self { token, ..Self::new(endpoint, cache.path()) }
    }

    /// The hub at `endpoint`, an URL, with `cache` as the folder of downloads, without a token.
    pub fn new(endpoint: impl Into<String>, cache: impl Into<PathBuf>) -> Self {
        let endpoint = endpoint.into().trim_end_matches('/').to_owned();
        Self { endpoint, cache: Cache::new(cache.into()), token: None, silence_limit: Duration::from_secs(60) }
    }

    /// Ends a request for which the hub has sent nothing for this time. The default is one minute.
    pub fn with_silence_limit(mut self, silence_limit: Duration) -> Self {
        self.silence_limit = silence_limit;
        self
    }

    /// Downloads the missing files of a model, and returns the path of its GGUF file or of its folder of safetensors.
    ///
    /// The newest commit of the branch `main` counts. If the hub can't be reached and the files were downloaded before,
    /// they are taken. `progress` is told what has been downloaded of a file, at most ten times a second.
    ///
    /// # Errors
    /// The hub refuses the repository or can't be reached, the download ends early, or the repository has no model, or
    /// several, of which none was chosen. A download that ended early goes on at the next call.
    pub fn fetch(&self, name: &HubName, mut progress: impl FnMut(&Downloaded)) -> Result<PathBuf, HubError> {
        let fetch = Fetch { hub: self, name, api: self.api(name)? };
        fetch.newest(&mut progress)
    }

    fn api(&self, name: &HubName) -> Result<Api, HubError> {
        let builder = ApiBuilder::from_cache(self.cache.clone()).with_endpoint(self.endpoint.clone());
        let api = builder.with_token(self.token.clone()).with_retries(3).with_progress(false).build();
        api.map_err(|error| HubError::of_request(&error, "preparing a request", name, &self.endpoint))
    }
}

/// The download of one model.
struct Fetch<'a> {
    hub: &'a Hub,
    name: &'a HubName,
    api: Api,
}

/// A commit of the repository and the names of its files.
struct Listing {
    commit: String,
    files: Vec<String>,
}

impl Fetch<'_> {
    fn newest(&self, progress: &mut dyn FnMut(&Downloaded)) -> Result<PathBuf, HubError> {
        match self.listing() {
            Ok(listing) => {
                let path = self.files(&listing, progress)?;
                // Another program, or this one without a network, finds the commit by the name of the branch.
                let cache = self.hub.cache.repo(self.repo(BRANCH));
                cache.create_ref(&listing.commit).map_err(|error| self.failed("writing into the cache", &error))?;
                Ok(path)
            }
            Err(error) if error.is_without_answer() => self.downloaded_before().ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// What the hub has.
    fn listing(&self) -> Result<Listing, HubError> {
        let repo = self.api.repo(self.repo(BRANCH));
        let info = self.ask("listing the files", &mut |_| (), move |_| repo.info())?;
        let is_commit = !info.sha.is_empty() && info.sha.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_commit {
            return Err(self.failed("listing the files", &format!("{:?} is no commit", info.sha)));
        }
        Ok(Listing { commit: info.sha, files: info.siblings.into_iter().map(|file| file.rfilename).collect() })
    }

    /// The model of the commit that was the newest when the hub was last reached, if all of it was downloaded.
    fn downloaded_before(&self) -> Option<PathBuf> {
        let folder = self.hub.cache.path().join(self.repo(BRANCH).folder_name());
        let commit = fs::read_to_string(folder.join("refs").join(BRANCH)).ok()?;
        let snapshot = self.snapshot(&commit);
        let files = fs::read_dir(&snapshot).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let choice = Choice::of(&files.collect::<Vec<_>>(), self.name).ok()?;
        let further = choice.index().map(|index| shards(&snapshot.join(index))).transpose().ok()?;
        let is_here = |file: &String| snapshot.join(file).is_file();
        let is_whole = choice.files().iter().chain(further.iter().flatten()).all(is_here);
        is_whole.then(|| {
            tracing::warn!(name = %self.name, commit, "the hub gives no answer: the files that were downloaded before are used");
            snapshot.join(choice.path())
        })
    }

    /// Downloads the files of the model that are missing.
    fn files(&self, listing: &Listing, progress: &mut dyn FnMut(&Downloaded)) -> Result<PathBuf, HubError> {
        let choice = Choice::of(&listing.files, self.name)?;
        let snapshot = self.snapshot(&listing.commit);
        choice.files().iter().try_for_each(|file| self.file(file, listing, progress))?;
        if let Some(index) = choice.index() {
            let path = snapshot.join(index);
            let shards = shards(&path).map_err(|error| self.failed(&format!("reading {index}"), &error))?;
            shards.iter().try_for_each(|file| self.file(file, listing, progress))?;
        }
        Ok(snapshot.join(choice.path()))
    }

    fn file(&self, file: &str, listing: &Listing, progress: &mut dyn FnMut(&Downloaded)) -> Result<(), HubError> {
        if self.snapshot(&listing.commit).join(file).is_file() {
            return Ok(());
        }
        // All files are of one commit, though the branch may move on between two of them.
        let repo: ApiRepo = self.api.repo(self.repo(&listing.commit));
        let owned = file.to_owned();
        let download = move |reports| repo.download_with_progress(&owned, reports);
        self.ask(&format!("downloading {file}"), progress, download).map(|_| ())
    }

    fn ask<T: Send + 'static>(
        &self,
        doing: &str,
        progress: &mut dyn FnMut(&Downloaded),
        request: impl FnOnce(watched::Reports) -> Result<T, hf_hub::api::sync::ApiError> + Send + 'static,
    ) -> Result<T, HubError> {
        match watched(self.hub.silence_limit, progress, request) {
            Ok(outcome) => outcome.map_err(|error| HubError::of_request(&error, doing, self.name, &self.hub.endpoint)),
            Err(end) => Err(HubError::of_silence(end, doing, self.name, &self.hub.endpoint)),
        }
    }

    fn failed(&self, doing: &str, why: &dyn std::fmt::Display) -> HubError {
        HubError::Request {
            name: self.name.clone(),
            endpoint: self.hub.endpoint.clone(),
            doing: doing.to_owned(),
            why: why.to_string(),
        }
    }

    fn repo(&self, revision: &str) -> Repo {
        Repo::with_revision(self.name.repository().to_owned(), RepoType::Model, revision.to_owned())
    }

    fn snapshot(&self, commit: &str) -> PathBuf {
        self.hub.cache.repo(self.repo(BRANCH)).pointer_path(commit)
    }
}

/// The files that an index of safetensors names.
fn shards(index: &Path) -> Result<BTreeSet<String>, String> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let text = fs::read_to_string(index).map_err(|error| error.to_string())?;
    let index: Index = serde_json::from_str(&text).map_err(|error| format!("it is no index of tensors: {error}"))?;
    let files: BTreeSet<_> = index.weight_map.into_values().collect();
    match files.iter().find(|file| !name::is_inside(file)) {
        Some(file) => Err(format!("it names {file:?}, which is outside of the repository")),
        None => Ok(files),
    }
}
