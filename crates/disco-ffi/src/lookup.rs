//! Functions by name: of libraries, of modules of libtvm_ffi, and global ones.

#![allow(unsafe_code)]

use std::any::Any as StdAny;
use std::ffi::c_void;
use std::rc::Rc;

use disco_core::function::Function;
use disco_core::{Error, Object, Result};

use crate::abi::{SafeCall, TypeIndex};
use crate::call::{self, Callee, Free};
use crate::foreign::{ForeignObject, Keep};
use crate::heap;
use crate::library::TvmFfi;
use crate::raw;
use crate::shared::{OpenLibrary, SharedLibrary};
use crate::value::Any;

/// The prefix of a library's symbols of functions.
const PREFIX: &str = "__tvm_ffi_";

impl SharedLibrary {
    /// The function that the library exports as `__tvm_ffi_<name>`, or that a module in the library has.
    ///
    /// # Errors
    /// There is no such function.
    pub fn function(&self, name: &str) -> Result<Function> {
        self.find(name)?.ok_or_else(|| self.absent(name))
    }

    /// As [`SharedLibrary::function`]; none if there is no such function.
    ///
    /// # Errors
    /// libtvm_ffi fails.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Function>> {
        let full = format!("{}:{name}", self.name());
        if let Some(module) = self.module() {
            return of_module(module, &self.keep(), name, &full);
        }
        let Some(address) = self.address(&format!("{PREFIX}{name}")) else { return Ok(None) };
        // SAFETY: by the ABI, symbols with this prefix are functions of this type.
        let entry = unsafe { std::mem::transmute::<*mut c_void, SafeCall>(address) };
        // SAFETY: the library keeps the entry in the process.
        Ok(Some(unsafe { Callee::exported(entry, self.keep()) }.into_function(&full)))
    }

    fn absent(&self, name: &str) -> Error {
        let library = self.name();
        Error::missing(format!(
            "the library `{library}` has no function `{name}`: it exports no symbol `{PREFIX}{name}`"
        ))
    }
}

impl ForeignObject {
    /// The function of a module, or of the modules that it imports.
    ///
    /// # Errors
    /// The object is no module, or has no such function.
    pub fn function(&self, name: &str) -> Result<Function> {
        self.find(name)?.ok_or_else(|| {
            let of = self.library().map(|library| format!(" of `{library}`")).unwrap_or_default();
            Error::missing(format!("the module{of} has no function `{name}`"))
        })
    }

    fn find(&self, name: &str) -> Result<Option<Function>> {
        if !self.is_module() {
            return Err(Error::invalid(format!("a {self:?} is no module, so it has no function `{name}`")));
        }
        let full = self.library().map_or_else(|| name.to_owned(), |library| format!("{library}:{name}"));
        of_module(self.any(), self.keep(), name, &full)
    }

    /// The name of the library from which the object is, if it is known.
    fn library(&self) -> Option<&str> {
        let kept: &(dyn StdAny + Send + Sync) = &**self.keep().as_ref()?;
        kept.downcast_ref::<OpenLibrary>().map(|library| library.name.as_str())
    }
}

/// The function of a module of libtvm_ffi. `full` is its name in errors.
fn of_module(module: &Any, keep: &Keep, name: &str, full: &str) -> Result<Option<Function>> {
    const GETTER: &str = "ffi.ModuleGetFunction";
    let getter = TvmFfi::get()?.global(GETTER);
    let getter = getter.ok_or_else(|| Error::missing(format!("libtvm_ffi has no function `{GETTER}`")))?;
    let query_imports = Any::plain(TypeIndex::BOOL, 1);
    let found = raw::call(&getter, &[module.clone(), heap::string(name), query_imports])
        .map_err(|raised| Error::missing(format!("{full}: {raised}")))?;
    Ok((found.type_index() == TypeIndex::FUNCTION).then(|| call::named(full, found, keep)))
}

/// The function that a library has registered under a global name.
///
/// # Errors
/// libtvm_ffi is not there, or has no such function.
pub fn global_function(name: &str) -> Result<Function> {
    let found = TvmFfi::get()?.global(name);
    let found = found.ok_or_else(|| Error::missing(format!("libtvm_ffi has no global function `{name}`")))?;
    Ok(call::named(name, found, &None))
}

/// Registers a worker function under a global name, for libraries that call it, in place of an earlier one. A call
/// gets the context of the worker on whose thread it is made.
///
/// # Errors
/// libtvm_ffi is not there, or refuses the function.
pub fn register_global(name: &'static str, call: Free) -> Result<()> {
    let function = call::export_free(name, call);
    let set = TvmFfi::get()?.set_global(name, &function);
    set.map_err(|raised| Error::state(format!("libtvm_ffi refused the global function `{name}`: {raised}")))
}

/// The function of a register's object: a library or a module.
///
/// # Errors
/// The object is neither, or has no such function.
pub(crate) fn function_of(object: &Object, name: &str) -> Result<Function> {
    match holder(object, name)? {
        Holder::Library(library) => library.function(name),
        Holder::Module(module) => module.function(name),
    }
}

/// As [`function_of`]; none if there is no such function.
///
/// # Errors
/// The object is neither a library nor a module.
pub(crate) fn find_in(object: &Object, name: &str) -> Result<Option<Function>> {
    match holder(object, name)? {
        Holder::Library(library) => library.find(name),
        Holder::Module(module) => module.find(name),
    }
}

/// An object that has functions.
enum Holder {
    Library(Rc<SharedLibrary>),
    Module(Rc<ForeignObject>),
}

fn holder(object: &Object, name: &str) -> Result<Holder> {
    if let Object::Opaque(opaque) = object {
        if let Some(library) = opaque.downcast::<SharedLibrary>() {
            return Ok(Holder::Library(library));
        }
        if let Some(module) = opaque.downcast::<ForeignObject>() {
            return Ok(Holder::Module(module));
        }
    }
    Err(Error::invalid(format!("{} is no library and no module, so it has no function `{name}`", object.kind())))
}
