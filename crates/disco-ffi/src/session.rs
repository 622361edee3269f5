//! The controller's side: libraries on all workers of a session.

use std::fs;
use std::path::{Path, PathBuf, absolute};

use disco_core::{DRef, Error, Result, Session};

use crate::worker::name;

/// The file of a library, and how the workers get it. A path converts to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryFile {
    path: PathBuf,
    is_sent: bool,
}

impl LibraryFile {
    /// A file that each worker's machine has. A relative path starts at the folder of the controller.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), is_sent: false }
    }

    /// Sends the controller's file to the workers, which open it from memory. The libraries that it needs must be in
    /// the system's folders of each machine. The limit of its size is that of values (`Builder::value_limit`).
    #[must_use]
    pub fn send(self) -> Self {
        Self { is_sent: true, ..self }
    }
}

impl<P: Into<PathBuf>> From<P> for LibraryFile {
    fn from(path: P) -> Self {
        Self::new(path)
    }
}

/// A library that all workers have opened. Each worker closes it when the module and all its functions are dropped, and
/// none of its objects is left.
#[derive(Clone, Debug)]
pub struct Module(DRef);

impl Module {
    /// Opens a library of the TVM-FFI C ABI on all workers, without awaiting a reply.
    ///
    /// # Errors
    /// As [`call`](disco_core::Session#method.call); the path is not UTF-8; or the controller can't read a file that it sends.
    /// A worker that can't open the library fails, with the reason.
    pub async fn load(session: &dyn Session, file: impl Into<LibraryFile> + Send) -> Result<Self> {
        let file = file.into();
        let handle = if file.is_sent {
            let (name, bytes) = read(&file.path)?;
            session.call(name::LOAD_SENT, (name, bytes)).await
        } else {
            session.call(name::LOAD, (absolute_text(&file.path)?,)).await
        };
        handle.map(Self)
    }

    /// The function that a library has registered with libtvm_ffi under a global name, on all workers.
    ///
    /// # Errors
    /// As [`call`](Session#method.call). A worker without libtvm_ffi or without the function fails.
    pub async fn global_function(session: &dyn Session, name: &str) -> Result<DRef> {
        session.call(name::GLOBAL, (name,)).await
    }

    /// The function that the library exports as `__tvm_ffi_<name>`, on all workers. It is called like any other worker
    /// function.
    ///
    /// # Errors
    /// As [`call`](Session#method.call). A worker whose library lacks the function fails.
    pub async fn function(&self, session: &dyn Session, name: &str) -> Result<DRef> {
        session.call(name::FUNCTION, (&self.0, name)).await
    }

    /// The handle of the libraries.
    pub fn handle(&self) -> &DRef {
        &self.0
    }
}

/// A handle of modules that a function of a library has returned.
impl From<DRef> for Module {
    fn from(handle: DRef) -> Self {
        Self(handle)
    }
}

/// The absolute path of a file that workers open.
pub(crate) fn absolute_text(path: &Path) -> Result<String> {
    let whole = absolute(path).map_err(|error| Error::system(format!("the path `{}`", path.display()), error))?;
    let text = whole.into_os_string().into_string();
    text.map_err(|path| Error::invalid(format!("the path `{}` is not UTF-8", path.display())))
}

fn read(path: &Path) -> Result<(String, Vec<u8>)> {
    let bytes = fs::read(path);
    let bytes = bytes.map_err(|error| Error::system(format!("can't read the library `{}`", path.display()), error))?;
    let name = path.file_name().map_or_else(|| "library".into(), |name| name.to_string_lossy().into_owned());
    Ok((name, bytes))
}
