//! The loader: worker 0 reads, cuts and sends; with pre-sharded files each worker reads its own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use disco_core::function::{Args, Function, IntoObject as _};
use disco_core::{CommunicatorExt as _, Error, Object, Op, Rank, Result, Tensor, Value, WorkerContext};

use super::cache::{Cache, Parameter};
use super::info::{self, Info, Step};
use super::read;
use crate::lookup;

/// The function of a module that returns the shard info as text.
const SHARD_INFO: &str = "get_shard_info";

/// The source of a [`ShardLoader`].
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Shards {
    /// Path of `tensor-cache.json`. The files with the elements are beside it.
    pub path: PathBuf,
    /// The content of `tensor-cache.json`.
    pub metadata: String,
    /// How parameters are sharded, as JSON: `{parameter: [[function, [shape, dtype], int…], …]}`. Without it, the
    /// module's `get_shard_info` is asked, if there is a module that has it. A parameter that is not listed is not
    /// sharded.
    pub info: Option<String>,
    /// The library or module with the functions of the shard info. Other functions are global ones.
    pub module: Option<Object>,
}

impl Shards {
    /// The weights of a `tensor-cache.json` whose content is `metadata`; only the files beside it are read.
    pub fn new(path: impl Into<PathBuf>, metadata: impl Into<String>) -> Self {
        Self { path: path.into(), metadata: metadata.into(), info: None, module: None }
    }

    /// The weights of a `tensor-cache.json`, which is read.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn read(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let text = fs::read_to_string(&path);
        let text = text.map_err(|error| Error::system(format!("can't read `{}`", path.display()), error))?;
        Ok(Self::new(path, text))
    }

    /// Checks the metadata and the shard info, as [`ShardLoader::new`] does, without the files and the functions.
    ///
    /// # Errors
    /// The metadata is damaged; the error names the file and the parameter.
    pub fn check(&self) -> Result<()> {
        Cache::parse(&self.path, &self.metadata)?;
        info::parse(self.info.as_deref().unwrap_or_default()).map(drop)
    }
}

/// Loads the weights of a model that TVM has sharded, with the results of TVM's own loader
/// (`src/runtime/extra/disco/loader.cc`).
///
/// Worker 0 reads a parameter, calls the functions of its shard info one after the other, and scatters the result; a
/// parameter without shard info is broadcast. So the methods that load are collectives: all workers call them in the
/// same order. Pre-sharded weights are named `param_<i>_shard-<worker + 1>-of-<workers>`, and each worker reads its own.
pub struct ShardLoader {
    path: PathBuf,
    cache: Cache,
    info: Info,
    functions: HashMap<String, Function>,
    /// The file that was read last.
    open: RefCell<Option<(usize, Rc<File>)>>,
}

impl fmt::Debug for ShardLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<shard loader of `{}`>", self.path.display())
    }
}

impl ShardLoader {
    /// Checks the metadata and finds the functions. Files are opened by the first load.
    ///
    /// # Errors
    /// The metadata or the shard info is damaged, with the file and the parameter; a function is missing.
    pub fn new(ctx: &mut WorkerContext, shards: Shards) -> Result<Self> {
        let Shards { path, metadata, info, module } = shards;
        let cache = Cache::parse(&path, &metadata)?;
        let text = match (info, &module) {
            (None, Some(module)) => shard_info(ctx, module)?,
            (info, _) => info,
        };
        let info = info::parse(text.as_deref().unwrap_or_default())?;
        let mut functions = HashMap::new();
        for parameter in &cache.parameters {
            for step in info.get(&parameter.name).into_iter().flatten() {
                if !functions.contains_key(&step.function) {
                    let found = find(module.as_ref(), step, &parameter.name)?;
                    functions.insert(step.function.clone(), found);
                }
            }
        }
        Ok(Self { path, cache, info, functions, open: RefCell::new(None) })
    }

    /// Names of the parameters, in the order of the metadata.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.cache.parameters.iter().map(|parameter| parameter.name.as_str())
    }

    /// This worker's part of a parameter, or all of it if it is not sharded. A collective.
    ///
    /// # Errors
    /// There is no such parameter; worker 0 can't read it; a function of its shard info fails; the communicator fails.
    pub fn load(&self, ctx: &mut WorkerContext, name: &str) -> Result<Tensor> {
        let parameter = self.find(name)?;
        let is_root = ctx.worker().index() == 0;
        let root = Rank::new(0);
        let Some(last) = self.info.get(name).and_then(|steps| steps.last()) else {
            let whole =
                if is_root { self.read(ctx, parameter)? } else { ctx.empty(parameter.dtype, parameter.shape.clone())? };
            ctx.comm()?.enqueue(&[Op::Broadcast { src: None, dst: whole.clone(), root }])?;
            return Ok(whole);
        };
        let workers = ctx.world().size();
        let part = match &last.shape[..] {
            [first, part @ ..] if *first == workers as i64 => ctx.empty(last.dtype, part)?,
            _ => {
                return Err(Error::invalid(format!(
                    "parameter `{name}`: its shard info makes a tensor of shape {} for {workers} workers; the first \
                     extent must be the number of workers",
                    last.shape
                )));
            }
        };
        let parts = is_root.then(|| self.sharded(ctx, parameter)).transpose()?;
        ctx.comm()?.scatter(parts.as_ref(), &part, root)?;
        Ok(part)
    }

    /// The parts of `param_0`, `param_1`, … on this worker, in this order. A collective.
    ///
    /// # Errors
    /// As [`ShardLoader::load`]; or a parameter has another name.
    pub fn load_all(&self, ctx: &mut WorkerContext) -> Result<Vec<Tensor>> {
        (0..self.cache.parameters.len()).map(|index| self.load(ctx, &format!("param_{index}"))).collect()
    }

    /// This worker's part of parameter `index`, from its own file.
    ///
    /// # Errors
    /// There are no pre-sharded weights for this number of workers; the file can't be read.
    pub fn load_presharded(&self, ctx: &mut WorkerContext, index: usize) -> Result<Tensor> {
        let (worker, workers) = (ctx.worker().index() + 1, ctx.world().size());
        let parameter = self.find(&format!("param_{index}_shard-{worker}-of-{workers}"))?;
        self.read(ctx, parameter)
    }

    /// This worker's parts of all parameters, in order, from its own files.
    ///
    /// # Errors
    /// As [`ShardLoader::load_presharded`].
    pub fn load_all_presharded(&self, ctx: &mut WorkerContext) -> Result<Vec<Tensor>> {
        let count = self.cache.parameters.len() / ctx.world().size();
        (0..count).map(|index| self.load_presharded(ctx, index)).collect()
    }

    /// The whole parameter `param_<index>` on worker 0, and a tensor of its shape on other workers.
    ///
    /// # Errors
    /// There is no such parameter, or it can't be read.
    pub(crate) fn load_on_worker_0(&self, ctx: &mut WorkerContext, index: usize) -> Result<Tensor> {
        let parameter = self.find(&format!("param_{index}"))?;
        match ctx.worker().index() {
            0 => self.read(ctx, parameter),
            _ => ctx.empty(parameter.dtype, parameter.shape.clone()),
        }
    }

    /// The name of the parameter at a position in the metadata.
    pub(crate) fn name_at(&self, index: usize) -> Result<&str> {
        let count = self.cache.parameters.len();
        let parameter = self.cache.parameters.get(index);
        let name = parameter.map(|parameter| parameter.name.as_str());
        name.ok_or_else(|| Error::invalid(format!("{self:?} has {count} parameters, and none has the index {index}")))
    }

    fn find(&self, name: &str) -> Result<&Parameter> {
        let found = self.cache.find(name);
        found.ok_or_else(|| Error::invalid(format!("`{}` has no parameter `{name}`", self.path.display())))
    }

    fn read(&self, ctx: &mut WorkerContext, parameter: &Parameter) -> Result<Tensor> {
        let about = &self.cache.files[parameter.file];
        let path = self.path.parent().unwrap_or(Path::new("")).join(&about.path);
        let known = self.open.borrow().clone().filter(|(index, _)| *index == parameter.file);
        let file = match known {
            Some((_, file)) => file,
            None => {
                let file =
                    read::open(&path, about).map_err(|error| in_parameter(&parameter.name, &error)).map(Rc::new)?;
                self.open.replace(Some((parameter.file, file.clone())));
                file
            }
        };
        read::read(ctx, &file, &path, parameter)
    }

    /// The parts for all workers, one behind the other.
    fn sharded(&self, ctx: &mut WorkerContext, parameter: &Parameter) -> Result<Tensor> {
        let mut tensor = self.read(ctx, parameter)?;
        for step in self.info.get(&parameter.name).into_iter().flatten() {
            let out = ctx.empty(step.dtype, step.shape.clone())?;
            let mut args = vec![tensor.into_object()];
            args.extend(step.params.iter().map(|number| number.into_object()));
            args.push(out.clone().into_object());
            let missing = || Error::state(format!("the function `{}` was not looked up", step.function));
            let function = self.functions.get(&step.function).ok_or_else(missing)?;
            let called = function.call(ctx, &Args::of_objects(&args));
            called.map_err(|error| {
                Error::invalid(format!("parameter `{}`: function `{}`: {error}", parameter.name, step.function))
            })?;
            tensor = out;
        }
        Ok(tensor)
    }
}

fn in_parameter(name: &str, error: &Error) -> Error {
    match error {
        Error::System { operation, source } => {
            Error::System { operation: format!("parameter `{name}`: {operation}"), source: source.clone() }
        }
        other => Error::invalid(format!("parameter `{name}`: {other}")),
    }
}

/// The shard info that a module has.
fn shard_info(ctx: &mut WorkerContext, module: &Object) -> Result<Option<String>> {
    let Some(function) = lookup::find_in(module, SHARD_INFO)? else { return Ok(None) };
    let info = function.call(ctx, &Args::of_objects(&[]));
    match info.map_err(|error| Error::invalid(format!("{SHARD_INFO}: {error}")))? {
        Object::Value(Value::Str(text)) => Ok(Some(text.to_string())),
        other => Err(Error::invalid(format!("{SHARD_INFO} returned {}, not a string", other.kind()))),
    }
}

fn find(module: Option<&Object>, step: &Step, parameter: &str) -> Result<Function> {
    let in_module = module.map(|module| lookup::find_in(module, &step.function)).transpose()?.flatten();
    let found = in_module.map_or_else(|| lookup::global_function(&step.function), Ok);
    found.map_err(|error| {
        let name = &step.function;
        Error::missing(format!("parameter `{parameter}`: no module and no library has the function `{name}`: {error}"))
    })
}
