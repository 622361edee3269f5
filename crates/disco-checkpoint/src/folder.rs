//! Folders of checkpoints: names, temporary folders, publication, removal.
//!
//! ```text
//! FOLDER/.step-000123.ID.partial/   while it is written, locked by the controller
//!        step-000123/               complete: renamed after everything in it is on the disk
//!        .step-000100.ID.removed/   while it is removed
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use crate::index::{self, Index};
use crate::message::Fault;
use crate::shard::Shard;

const STEP: &str = "step-";
const PARTIAL: &str = ".partial";
const REMOVED: &str = ".removed";

/// Default of [`Folder::stall_limit`].
const STALL_LIMIT: Duration = Duration::from_secs(600);

/// A folder of checkpoints, which the machines of all workers share, and the options of saving into it. A path converts
/// to it. A relative path starts at the folder of the controller.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    keep: usize,
    pub(crate) reuses_memory: bool,
    pub(crate) stall_limit: Duration,
}

impl Folder {
    /// A folder whose checkpoints are all kept. The first save makes the folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), keep: usize::MAX, reuses_memory: false, stall_limit: STALL_LIMIT }
    }

    /// Keeps the last `n` checkpoints, at least 1: after each complete save, older ones are removed.
    #[must_use]
    pub fn keep(self, n: usize) -> Self {
        Self { keep: n.max(1), ..self }
    }

    /// Whether workers keep the memory of their copies after the shards are written, and copy into it at the next save
    /// of as many bytes (a cached staging buffer; PyTorch's `cache_staged_state_dict`); default false. Copies into it take
    /// a quarter to a half of the time, since the system need not clear pages.
    ///
    /// Each worker keeps as much host memory as its shard has bytes. A save of another size or without this option
    /// releases it, and so does the end of the session. A save that starts while an earlier one is being written takes
    /// new memory.
    #[must_use]
    pub fn reuse_memory(self, reuse: bool) -> Self {
        Self { reuses_memory: reuse, ..self }
    }

    /// The time without progress of a worker's writer after which the save fails; default 10 minutes. A writer waits for
    /// the disk after each GiB and at its end, and makes no progress meanwhile.
    #[must_use]
    pub fn stall_limit(self, limit: Duration) -> Self {
        Self { stall_limit: limit, ..self }
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the checkpoint of a step.
    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.path.join(format!("{STEP}{step:06}"))
    }

    /// The steps with a checkpoint, in ascending order. Checkpoints that are being written are not among them; damaged
    /// ones are. A folder that does not exist has none.
    ///
    /// # Errors
    /// The folder can't be listed.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let step_of = |name: String| {
            let step = name.strip_prefix(STEP)?.parse().ok()?;
            (self.checkpoint(step) == self.path.join(name)).then_some(step)
        };
        let mut steps: Vec<u64> = names(&self.path)?.into_iter().filter_map(step_of).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// Reads the whole checkpoint of a step and compares all checksums.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Io`] or [`Error::Version`].
    pub fn verify(&self, step: u64) -> Result<()> {
        let checkpoint = self.checkpoint(step);
        let (index, _) = read_index(&checkpoint, step)?;
        for entry in &index.shards {
            let verify = || -> Result<(), Fault> {
                let mut shard = Shard::open(&checkpoint, entry)?;
                for (name, tensor) in &index.tensors {
                    for part in tensor.parts.iter().filter(|part| part.worker == entry.worker) {
                        shard.verify(&format!("tensor `{name}`"), part)?;
                    }
                }
                Ok(())
            };
            verify().map_err(|fault| fault.into_error(&checkpoint, None))?;
        }
        Ok(())
    }

    /// The folder with an absolute path, so that it is the same for all workers.
    pub(crate) fn absolute(self) -> Result<Self> {
        let path = std::path::absolute(&self.path)
            .map_err(|source| Error::io(&self.path, "finding the absolute path", source))?;
        Ok(Self { path, ..self })
    }

    /// Removes temporary folders of saves that ended early, and checkpoints before the last `keep`, except that of step
    /// `saved`.
    fn clean(&self, saved: u64) -> Result<()> {
        remove_stale(&self.path)?;
        let steps = self.steps()?;
        let complete: Vec<_> = steps.into_iter().filter(|step| is_complete(&self.checkpoint(*step))).collect();
        let surplus = complete.len().saturating_sub(self.keep);
        for step in complete.into_iter().filter(|step| *step != saved).take(surplus) {
            remove(&self.checkpoint(step))?;
        }
        Ok(())
    }
}

impl<P: Into<PathBuf>> From<P> for Folder {
    fn from(path: P) -> Self {
        Self::new(path)
    }
}

/// The folder of a checkpoint that is being written. It is removed if it is dropped before it is published.
pub(crate) struct Partial {
    folder: Folder,
    step: u64,
    path: PathBuf,
    /// Held until the end, so that other saves do not remove the folder as stale. None on a file system that can't lock
    /// folders, where stale folders stay.
    _lock: Option<File>,
    is_published: bool,
}

impl Partial {
    /// Makes the folder. A checkpoint of the same step must not exist, unless it is damaged.
    pub(crate) fn create(folder: Folder, step: u64) -> Result<Self> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::io(path, "making the folder", source)
        };
        fs::create_dir_all(&folder.path).map_err(failed(&folder.path))?;
        if folder.checkpoint(step).exists() {
            match folder.verify(step) {
                Err(Error::Damaged { .. }) => {}
                Err(other) => return Err(other),
                Ok(()) => return Err(Error::Exists { checkpoint: folder.checkpoint(step) }),
            }
        }
        loop {
            let path = folder.path.join(temporary(&folder.checkpoint(step), PARTIAL));
            fs::create_dir(&path).map_err(failed(&path))?;
            // Another save may have taken the new folder for a stale one.
            match lock(&path) {
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                lock if path.exists() => {
                    return Ok(Self { folder, step, path, _lock: lock.ok().flatten(), is_published: false });
                }
                _ => {}
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the index, makes the checkpoint visible under its name, and removes old ones. Returns its path.
    pub(crate) fn publish(mut self, index: &Index) -> Result<PathBuf> {
        let path = self.path.join(index::FILE);
        let failed = |source| Error::io(&path, "writing the index", source);
        let text = index.encode().map_err(|error| failed(error.into()))?;
        let mut file = File::create_new(&path).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        for shard in &index.shards {
            let path = self.path.join(&shard.file);
            let failed = |source| Error::io(&path, "looking at the complete shard", source);
            let found = fs::metadata(&path).map_err(failed)?.len();
            if found != shard.bytes {
                return Err(Error::damaged(path, format!("it has {found} bytes, its worker wrote {}", shard.bytes)));
            }
        }
        sync(&self.path)?;
        let checkpoint = self.folder.checkpoint(self.step);
        self.rename(&checkpoint)?;
        self.is_published = true;
        sync(&self.folder.path)?;
        if let Err(error) = self.folder.clean(self.step) {
            tracing::warn!(checkpoint = %checkpoint.display(), %error, "old checkpoints were not removed");
        }
        Ok(checkpoint)
    }

    fn rename(&self, checkpoint: &Path) -> Result<()> {
        let occupied =
            |error: &io::Error| matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists);
        let mut renamed = fs::rename(&self.path, checkpoint);
        if renamed.as_ref().is_err_and(occupied) {
            if !matches!(self.folder.verify(self.step), Err(Error::Damaged { .. })) {
                return Err(Error::Exists { checkpoint: checkpoint.into() });
            }
            tracing::warn!(checkpoint = %checkpoint.display(), "a damaged checkpoint is replaced");
            remove(checkpoint)?;
            renamed = fs::rename(&self.path, checkpoint);
        }
        renamed.map_err(|source| Error::io(checkpoint, "renaming the complete checkpoint", source))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_published
            && let Err(error) = remove(&self.path)
        {
            let folder = self.path.display();
            tracing::debug!(%folder, %error, "the next save removes the folder of this one");
        }
    }
}

/// Reads the index of the checkpoint of a step, and returns it with its text.
///
/// # Errors
/// [`Error::Damaged`], [`Error::Io`] or [`Error::Version`].
pub(crate) fn read_index(checkpoint: &Path, step: u64) -> Result<(Index, String)> {
    let path = checkpoint.join(index::FILE);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Error::damaged(checkpoint, format!("it has no `{}`", index::FILE)),
        io::ErrorKind::InvalidData => Error::damaged(&path, "it is not UTF-8"),
        _ => Error::io(&path, "reading the index", error),
    };
    let bytes = fs::metadata(&path).map_err(failed)?.len();
    if bytes > index::MAX_BYTES {
        return Err(Error::damaged(
            &path,
            format!("it has {bytes} bytes, and at most {} are allowed", index::MAX_BYTES),
        ));
    }
    let text = fs::read_to_string(&path).map_err(failed)?;
    let index = Index::decode(&path, &text)?;
    if index.step == step {
        Ok((index, text))
    } else {
        Err(Error::damaged(&path, format!("it is the index of step {}", index.step)))
    }
}

/// Whether a checkpoint has an index. Its content is not looked at.
fn is_complete(checkpoint: &Path) -> bool {
    checkpoint.join(index::FILE).exists()
}

/// Names in a folder; none if it does not exist.
fn names(folder: &Path) -> Result<Vec<String>> {
    let failed = |source| Error::io(folder, "listing the folder", source);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        // Checkpoints and temporary folders have names in UTF-8.
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

/// A new name for a temporary folder.
fn temporary(checkpoint: &Path, ending: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = checkpoint.file_name().unwrap_or_default().to_string_lossy();
    let name = name.trim_start_matches('.');
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    format!(".{name}.{process}-{count}-{now:x}{ending}")
}

/// Locks a folder; none if another program or thread holds its lock.
fn lock(folder: &Path) -> io::Result<Option<File>> {
    let file = File::open(folder)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Removes temporary folders of programs that have ended. A folder that can't be locked is left.
fn remove_stale(folder: &Path) -> Result<()> {
    let is_ours = |name: &String| {
        let is_of_step = name.strip_prefix('.').is_some_and(|name| name.starts_with(STEP));
        is_of_step && (name.ends_with(PARTIAL) || name.ends_with(REMOVED))
    };
    for name in names(folder)?.into_iter().filter(is_ours) {
        let path = folder.join(name);
        if let Ok(Some(_lock)) = lock(&path) {
            match remove(&path) {
                // Another program was faster.
                Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
    }
    Ok(())
}

/// Removes the folder of a checkpoint. It first loses its name, so that it never exists in part, and so that writers which
/// still begin do not add files to it.
fn remove(checkpoint: &Path) -> Result<()> {
    let removed = checkpoint.with_file_name(temporary(checkpoint, REMOVED));
    let failed = |source| Error::io(checkpoint, "removing the folder", source);
    fs::rename(checkpoint, &removed).map_err(failed)?;
    match fs::remove_dir_all(&removed) {
        // Another save has found the folder without a lock, and removes it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(failed),
    }
}

/// Waits until the entries of a folder are on the disk.
fn sync(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| Error::io(folder, "writing the folder to the disk", source))
}
