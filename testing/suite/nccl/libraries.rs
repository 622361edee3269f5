//! Functions of users' libraries on workers with a GPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use disco::ffi::Module;
use disco::{DType, Placement, Tensor, WorkerContext, block_on};
use disco_conformance::Required;

use crate::alone::session;
use crate::on_the_double;

const SOURCE: &str = r#"
#include <stdint.h>

typedef struct { int32_t type; uint32_t len; union { int64_t i; void *p; }; } Any;
typedef struct { void *data; int32_t device_type, device_id; } Tensor;

void *TVMFFIEnvGetStream(int32_t device_type, int32_t device_id);

static const Tensor *tensor_of(const Any *arg) { return (const Tensor *)((char *)arg->p + 24); }

int __tvm_ffi_stream_for(void *self, const Any *args, int32_t count, Any *result) {
  const Tensor *tensor = tensor_of(args);
  result->type = 1;
  result->i = (int64_t)(intptr_t)TVMFFIEnvGetStream(tensor->device_type, tensor->device_id);
  return 0;
}

int __tvm_ffi_address_of(void *self, const Any *args, int32_t count, Any *result) {
  result->type = 1;
  result->i = (int64_t)(intptr_t)tensor_of(args)->data;
  return 0;
}

int __tvm_ffi_identity(void *self, const Any *args, int32_t count, Any *result) {
  if (args[0].type >= 64) __atomic_fetch_add((uint64_t *)args[0].p, 1, __ATOMIC_RELAXED);
  *result = args[0];
  return 0;
}
"#;

disco::register_function!("tests.libraries.stream", stream);
disco::register_function!("tests.libraries.address", address);

fn stream(ctx: &mut WorkerContext) -> disco::Result<i64> {
    Ok(ctx.queue().raw().addr() as i64)
}

fn address(_: &mut WorkerContext, tensor: Tensor) -> disco::Result<i64> {
    Ok(tensor.data().addr() as i64)
}

/// The compiled library in `folder`; none, with a line on standard output, if there is no C compiler.
fn library(folder: &Path) -> Option<PathBuf> {
    let (source, library) = (folder.join("stream.c"), folder.join("libstream.so"));
    fs::write(&source, SOURCE).unwrap();
    match Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).args([&library, &source]).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => {
            assert!(!Required::from_env().contains("ffi"), "DISCO_REQUIRE: no cc: {error}");
            println!("skipped: no cc: {error}");
            return None;
        }
    }
    Some(library)
}

/// Path of libtvm_ffi, or an empty text if it was not fetched.
fn libtvm_ffi() -> String {
    disco_conformance::libtvm_ffi().map(|file| file.display().to_string()).unwrap_or_default()
}

on_the_double! {
    /// The stream is the worker's during the call only, and tensors of the device are not copied.
    a_function_of_a_library_finds_the_worker_s_stream_and_device_tensors,
    ["DISCO_TVM_FFI_LIBRARY" = &super::libtvm_ffi()],
    {
        if std::env::var_os("DISCO_TVM_FFI_LIBRARY").is_none_or(|file| file.is_empty()) {
            return println!("skipped: libtvm_ffi is not there: `cargo xtask check` fetches it");
        }
        let folder = tempfile::tempdir().unwrap();
        let Some(library) = library(folder.path()) else { return };
        let session = session(2);
        let all = |name: &'static str, by_library: bool, args: Vec<&disco::DRef>| {
            let mut arguments = disco::Arguments::default();
            args.into_iter().for_each(|arg| arguments.push(arg));
            let (session, library) = (&session, &library);
            async move {
                let function = if by_library {
                    Module::load(session, library).await?.function(session, name).await?
                } else {
                    session.function(name).await?
                };
                session.call(&function, arguments).await
            }
        };
        block_on(async {
            session.init_ccl("nccl", &[]).await?;
            let tensor = session.empty(DType::F32, [4, 2], Placement::All).await?;
            let numbers = async |handle: &disco::DRef| session.get_all::<i64>(handle).await;

            let own = numbers(&all("tests.libraries.stream", false, vec![]).await?).await?;
            let seen = numbers(&all("stream_for", true, vec![&tensor]).await?).await?;
            assert!(own.iter().all(|stream| *stream != 0) && own == seen, "{own:?} {seen:?}");

            let own = numbers(&all("tests.libraries.address", false, vec![&tensor]).await?).await?;
            let seen = numbers(&all("address_of", true, vec![&tensor]).await?).await?;
            assert_eq!(own, seen);
            let same = all("identity", true, vec![&tensor]).await?;
            let back = numbers(&all("tests.libraries.address", false, vec![&same]).await?).await?;
            assert_eq!(own, back);
            // A tensor in an array is copied to the host when it is fetched.
            let array = session.call("tests.libraries.wrapped", (&tensor,)).await?;
            let fetched = session.get_all::<Vec<disco::Value>>(&array).await?;
            let disco::Value::Tensor(host) = &fetched[1][0] else { panic!("{fetched:?}") };
            assert_eq!(host.to_vec::<f32>()?, [0.0; 8]);
            session.shutdown().await
        })
        .unwrap();
    }
}

disco::register_function!("tests.libraries.wrapped", wrapped);

fn wrapped(_: &mut WorkerContext, tensor: Tensor) -> disco::Result<Vec<disco::Value>> {
    Ok(vec![disco::Value::Tensor(tensor)])
}
