//! The controller's side: libraries on all workers of a session.

use std::fs;
use std::path::{Path, PathBuf, absolute};

use disco_core::{DRef, Error, Result, Session, SessionExt};

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
    /// The function that the library exports as `__tvm_ffi_<name>`, on all workers. It is called like any other worker
    /// function.
    ///
    /// # Errors
    /// As [`SessionExt::call`]. A worker whose library lacks the function fails.
    pub async fn function<S: Session + ?Sized>(&self, session: &S, name: &str) -> Result<DRef> {
        session.call_named(name::FUNCTION, (&self.0, name)).await
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

/// Libraries of the TVM-FFI C ABI on all workers, for every [`Session`].
pub trait Libraries: Session {
    /// Opens a library on all workers, without awaiting a reply.
    ///
    /// # Errors
    /// As [`SessionExt::call`]; the path is not UTF-8; or the controller can't read a file that it sends. A worker that
    /// can't open the library fails, with the reason.
    fn load_library(&self, file: impl Into<LibraryFile>) -> impl Future<Output = Result<Module>> + Send {
        let file = file.into();
        async move {
            let handle = if file.is_sent {
                let (name, bytes) = read(&file.path)?;
                self.call_named(name::LOAD_SENT, (name, bytes)).await
            } else {
                self.call_named(name::LOAD, (absolute_text(&file.path)?,)).await
            };
            handle.map(Module)
        }
    }

    /// The function that a library has registered with libtvm_ffi under a global name, on all workers.
    ///
    /// # Errors
    /// As [`SessionExt::call`]. A worker without libtvm_ffi or without the function fails.
    fn global_function(&self, name: &str) -> impl Future<Output = Result<DRef>> + Send {
        let name = name.to_owned();
        async move { self.call_named(name::GLOBAL, (name,)).await }
    }
}

impl<S: Session + ?Sized> Libraries for S {}

pub(crate) fn absolute_text(path: &Path) -> Result<String> {
    let whole = absolute(path).map_err(|error| Error::system(format!("load_library: `{}`", path.display()), error))?;
    let text = whole.into_os_string().into_string();
    text.map_err(|path| Error::invalid(format!("load_library: the path `{}` is not UTF-8", path.display())))
}

fn read(path: &Path) -> Result<(String, Vec<u8>)> {
    let bytes = fs::read(path);
    let bytes =
        bytes.map_err(|error| Error::system(format!("load_library: can't read `{}`", path.display()), error))?;
    let name = path.file_name().map_or_else(|| "library".into(), |name| name.to_string_lossy().into_owned());
    Ok((name, bytes))
}
