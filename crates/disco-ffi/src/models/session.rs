//! The controller's side: models that TVM has compiled, and their weights, on all workers of a session.

use std::fs;
use std::path::Path;

use disco_core::{DRef, Device, Error, Result, Session, SessionExt};

use super::worker::name;
use crate::session::{Module, absolute_text};

/// TVM's compiled models and sharded weights on all workers, for every [`Session`].
pub trait Models: Session {
    /// Makes a Relax virtual machine of a compiled model on each worker, without awaiting a reply. Its functions are
    /// called like other worker functions: `model.function(&session, "main")`. Collectives in the model use the
    /// communicators of [`init_ccl`](disco_core::DataPlane::init_ccl). Each worker's machine has the file. A
    /// relative path starts at the folder of the controller. Without `device`, a machine computes on the device of its
    /// worker. A library without Relax functions is opened as by
    /// [`load_library`](crate::Libraries::load_library).
    ///
    /// # Errors
    /// As [`SessionExt::call`]; the path is not UTF-8. A worker that lacks libtvm_ffi, libtvm_runtime or the file fails,
    /// with the reason.
    fn load_vm_module(
        &self,
        path: impl AsRef<Path> + Send,
        device: Option<Device>,
    ) -> impl Future<Output = Result<Module>> + Send {
        async move {
            let path = absolute_text(path.as_ref())?;
            self.call_named(name::LOAD_VM, (path, device)).await.map(Module::from)
        }
    }

    /// Makes a loader of the weights of a `tensor-cache.json` on each worker. The controller reads the file; worker 0
    /// reads the files beside it, or each worker if the weights are pre-sharded. `info` says how parameters are sharded;
    /// without it, `get_shard_info` of the `module` is asked, if there is one. [`ShardLoader`](crate::ShardLoader)
    /// explains the files.
    ///
    /// # Errors
    /// As [`SessionExt::call`]; the controller can't read the file. A worker fails if the metadata or the shard info is
    /// damaged, with the file and the parameter, or if a function of the shard info is missing.
    fn shard_loader(
        &self,
        path: impl AsRef<Path> + Send,
        info: Option<&str>,
        module: Option<&Module>,
    ) -> impl Future<Output = Result<Weights>> + Send {
        let (info, module) = (info.map(str::to_owned), module.cloned());
        async move {
            let path = path.as_ref();
            let text = fs::read_to_string(path);
            let text = text.map_err(|error| Error::system(format!("can't read `{}`", path.display()), error))?;
            let args = (absolute_text(path)?, text, info, module.map(|module| module.handle().clone()));
            self.call_named(name::SHARD_LOADER, args).await.map(Weights)
        }
    }
}

impl<S: Session + ?Sized> Models for S {}

/// A loader of weights on each worker. Its methods return before the workers have loaded, and errors are those of
/// [`SessionExt::call`].
#[derive(Clone, Debug)]
pub struct Weights(DRef);

impl Weights {
    /// Each worker's part of a parameter, or all of it if it is not sharded: a tensor.
    ///
    /// # Errors
    /// As [`ShardLoader::load`](crate::ShardLoader::load), on the workers.
    pub async fn load<S: Session + ?Sized>(&self, session: &S, parameter: &str) -> Result<DRef> {
        session.call_named(name::LOAD_SHARD, (&self.0, parameter)).await
    }

    /// Each worker's parts of `param_0`, `param_1`, …: an array of tensors.
    ///
    /// # Errors
    /// As [`ShardLoader::load_all`](crate::ShardLoader::load_all), on the workers.
    pub async fn load_all<S: Session + ?Sized>(&self, session: &S) -> Result<DRef> {
        session.call_named(name::LOAD_SHARDS, (&self.0,)).await
    }

    /// Each worker's parts of all parameters from pre-sharded files: an array of tensors.
    ///
    /// # Errors
    /// As [`ShardLoader::load_all_presharded`](crate::ShardLoader::load_all_presharded), on the workers.
    pub async fn load_all_presharded<S: Session + ?Sized>(&self, session: &S) -> Result<DRef> {
        session.call_named(name::LOAD_PRESHARDED, (&self.0,)).await
    }

    /// The handle of the loaders, `Rc<ShardLoader>` as argument of a worker function.
    pub fn handle(&self) -> &DRef {
        &self.0
    }
}
