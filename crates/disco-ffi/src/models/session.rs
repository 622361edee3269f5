//! The controller's side: models that TVM has compiled, and their weights, on all workers of a session.

use std::fs;
use std::path::Path;

use disco_core::{DRef, Device, Error, Result, Session};

use super::worker::name;
use crate::session::{Module, absolute_text};

impl Module {
    /// Makes a Relax virtual machine of a model that TVM has compiled on each worker, without awaiting a reply. Its functions
    /// are called like other worker functions: `model.function(&session, "main")`. Collectives in the model use the
    /// communicators of [`init_ccl`](disco_core::Session#method.init_ccl). Each worker's machine has the file. A relative path
    /// starts at the folder of the controller. Without `device`, a machine computes on the device of its worker. A library
    /// without Relax functions is opened as by [`load`](Self::load).
    ///
    /// # Errors
    /// As [`call`](disco_core::Session#method.call); the path is not UTF-8. A worker that lacks libtvm_ffi, libtvm_runtime or
    /// the file fails, with the reason.
    pub async fn load_vm(session: &dyn Session, path: impl AsRef<Path> + Send, device: Option<Device>) -> Result<Self> {
        let path = absolute_text(path.as_ref())?;
        session.call(name::LOAD_VM, (path, device)).await.map(Self::from)
    }
}

/// A loader of weights on each worker. Its methods return before the workers have loaded, and errors are those of
/// [`call`](Session#method.call).
#[derive(Clone, Debug)]
pub struct Weights(DRef);

impl Weights {
    /// Makes a loader of the weights of a `tensor-cache.json` on each worker. The controller reads the file; worker 0
    /// reads the files beside it, or each worker if the weights are pre-sharded. `info` says how parameters are sharded;
    /// without it, `get_shard_info` of the `module` is asked, if there is one. [`ShardLoader`](crate::ShardLoader)
    /// explains the files.
    ///
    /// # Errors
    /// As [`call`](Session#method.call); the controller can't read the file. A worker fails if the metadata or the shard info
    /// is damaged, with the file and the parameter, or if a function of the shard info is missing.
    pub async fn open(
        session: &dyn Session,
        path: impl AsRef<Path> + Send,
        info: Option<&str>,
        module: Option<&Module>,
    ) -> Result<Self> {
        let path = path.as_ref();
        let text = fs::read_to_string(path);
        let text = text.map_err(|error| Error::system(format!("can't read `{}`", path.display()), error))?;
        let args = (absolute_text(path)?, text, info, module.map(Module::handle));
        session.call(name::SHARD_LOADER, args).await.map(Self)
    }

    /// Each worker's part of a parameter, or all of it if it is not sharded: a tensor.
    ///
    /// # Errors
    /// As [`ShardLoader::load`](crate::ShardLoader::load), on the workers.
    pub async fn load(&self, session: &dyn Session, parameter: &str) -> Result<DRef> {
        session.call(name::LOAD_SHARD, (&self.0, parameter)).await
    }

    /// Each worker's parts of `param_0`, `param_1`, …: an array of tensors.
    ///
    /// # Errors
    /// As [`ShardLoader::load_all`](crate::ShardLoader::load_all), on the workers.
    pub async fn load_all(&self, session: &dyn Session) -> Result<DRef> {
        session.call(name::LOAD_SHARDS, (&self.0,)).await
    }

    /// Each worker's parts of all parameters from pre-sharded files: an array of tensors.
    ///
    /// # Errors
    /// As [`ShardLoader::load_all_presharded`](crate::ShardLoader::load_all_presharded), on the workers.
    pub async fn load_all_presharded(&self, session: &dyn Session) -> Result<DRef> {
        session.call(name::LOAD_PRESHARDED, (&self.0,)).await
    }

    /// The handle of the loaders, `Rc<ShardLoader>` as argument of a worker function.
    pub fn handle(&self) -> &DRef {
        &self.0
    }
}
