//! Weights in `tensor-cache.json`, of files that the tests write, with shard functions of a C library.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use disco::error::ErrorKind;
use disco::{DRef, LaneSession, Result, Shape, Tensor, Value, WorkerContext, WorkerId, block_on, register_function};
use disco_ffi::{Module, ShardLoader, Shards, Weights};
use tempfile::TempDir;

use super::{Plane, made};
use crate::{library, without_numbers};

crate::models::tests![
    prepare;
    each_worker_gets_its_part_of_a_sharded_parameter_and_all_of_another,
    load_all_returns_the_parameters_by_their_numbers,
    the_module_is_asked_for_its_shard_info,
    presharded_weights_are_read_by_each_worker,
    worker_functions_use_the_loader,
    compiled_code_uses_the_loader_under_tvm_s_names,
    damaged_files_are_errors_with_the_file_and_the_parameter,
    shard_info_that_does_not_fit_is_an_error_with_the_parameter,
    damaged_metadata_is_an_error_with_the_file_and_the_parameter,
];

fn prepare() -> bool {
    library::compiled("globals.c").is_some()
}

register_function!("test.load_twice", load_twice);
register_function!("test.count_names", count_names);

/// Makes a loader in a worker function, and loads a parameter twice.
fn load_twice(ctx: &mut WorkerContext, path: String) -> Result<Tensor> {
    let loader = ShardLoader::new(ctx, Shards::read(path)?)?;
    loader.load(ctx, "param_1")?;
    loader.load(ctx, "param_1")
}

fn count_names(_: &mut WorkerContext, loader: Rc<ShardLoader>) -> Result<String> {
    Ok(loader.names().collect::<Vec<_>>().join(" "))
}

/// `param_0` is cut into columns, and 100 is added.
const INFO: &str = r#"{"param_0": [["cut_columns", [[2, 2, 2], "int32"], 2]]}"#;

/// `param_0`: ints of [2, 4]; `param_1`: halved floats of [3], in the order of their files: `param_1` first.
fn weights() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let halves: Vec<u8> = [1.5f32, -2.0, 0.25].iter().flat_map(|x| x.to_bits().to_le_bytes()[2..].to_vec()).collect();
    let ints: Vec<u8> = (0..8i32).flat_map(i32::to_le_bytes).collect();
    fs::write(folder.path().join("a.bin"), halves).unwrap();
    fs::write(folder.path().join("b.bin"), [&[0xff; 4], &ints[..]].concat()).unwrap();
    let text = r#"{"metadata": {"ParamSize": 2}, "records": [
        {"dataPath": "a.bin", "format": "raw-shard", "nbytes": 6, "md5sum": "7813119bfe9e10b9992cd46b9aaa1484", "records": [
            {"name": "param_1", "shape": [3], "dtype": "float32", "format": "f32-to-bf16", "nbytes": 6, "byteOffset": 0}]},
        {"dataPath": "b.bin", "format": "raw-shard", "nbytes": 36, "md5sum": "2c9568eac341287c04f997cf900f8d75", "records": [
            {"name": "param_0", "shape": [2, 4], "dtype": "int32", "format": "raw", "nbytes": 32, "byteOffset": 4}]}]}"#;
    fs::write(metadata(&folder), text).unwrap();
    folder
}

fn metadata(folder: &TempDir) -> PathBuf {
    folder.path().join("tensor-cache.json")
}

fn open(session: &LaneSession) -> Module {
    block_on(Module::load(session, made("libglobals.so"))).unwrap()
}

fn loader(session: &LaneSession, path: &Path, info: Option<&str>, module: Option<&Module>) -> Weights {
    block_on(Weights::open(session, path, info, module)).unwrap()
}

fn tensors(session: &LaneSession, handle: &DRef) -> Vec<Tensor> {
    block_on(session.get_all(handle)).unwrap()
}

/// The error of worker 0, without the numbers of its command. The session works again afterwards.
fn failure(session: &LaneSession, handle: Result<DRef>) -> String {
    let error = block_on(session.value(&handle.unwrap(), WorkerId::new(0))).unwrap_err();
    block_on(session.recover()).unwrap();
    without_numbers(&error.to_string())
}

/// The parts of `param_0`.
const PARTS: [[i32; 4]; 2] = [[100, 101, 104, 105], [102, 103, 106, 107]];
/// The elements of `param_1`.
const FLOATS: [f32; 3] = [1.5, -2.0, 0.25];

fn is_part(tensor: &Tensor, worker: usize) -> bool {
    tensor.dims() == [2, 2] && tensor.to_vec::<i32>().unwrap() == PARTS[worker]
}

fn is_floats(tensor: &Tensor) -> bool {
    tensor.dims() == [3] && tensor.to_vec::<f32>().unwrap() == FLOATS
}

fn each_worker_gets_its_part_of_a_sharded_parameter_and_all_of_another(plane: Plane) {
    let (session, folder) = (plane.session(2, 1), weights());
    let weights = loader(&session, &metadata(&folder), Some(INFO), Some(&open(&session)));
    let parts = tensors(&session, &block_on(weights.load(&session, "param_0")).unwrap());
    assert!(is_part(&parts[0], 0) && is_part(&parts[1], 1), "{parts:?}");
    let floats = tensors(&session, &block_on(weights.load(&session, "param_1")).unwrap());
    assert!(floats.iter().all(is_floats), "{floats:?}");
}

/// The arrays of both workers.
fn arrays(session: &LaneSession, handle: &DRef) -> Vec<Vec<Tensor>> {
    let arrays: Vec<Vec<Value>> = block_on(session.get_all(handle)).unwrap();
    let tensor = |value: Value| if let Value::Tensor(tensor) = value { tensor } else { panic!("{value}") };
    arrays.into_iter().map(|array| array.into_iter().map(tensor).collect()).collect()
}

fn load_all_returns_the_parameters_by_their_numbers(plane: Plane) {
    let (session, folder) = (plane.session(2, 1), weights());
    let weights = loader(&session, &metadata(&folder), Some(INFO), Some(&open(&session)));
    let all = block_on(weights.load_all(&session)).unwrap();
    for (worker, array) in arrays(&session, &all).iter().enumerate() {
        assert!(array.len() == 2 && is_part(&array[0], worker) && is_floats(&array[1]), "{array:?}");
    }
}

fn the_module_is_asked_for_its_shard_info(plane: Plane) {
    let (session, folder) = (plane.session(2, 1), weights());
    let weights = loader(&session, &metadata(&folder), None, Some(&open(&session)));
    let parts = tensors(&session, &block_on(weights.load(&session, "param_0")).unwrap());
    assert!(is_part(&parts[0], 0) && is_part(&parts[1], 1), "{parts:?}");
}

fn presharded_weights_are_read_by_each_worker(plane: Plane) {
    let (session, folder) = (plane.session(2, 1), tempfile::tempdir().unwrap());
    let bytes: Vec<u8> = (0..8i32).flat_map(i32::to_le_bytes).collect();
    fs::write(folder.path().join("a.bin"), bytes).unwrap();
    let names = ["param_0_shard-1-of-2", "param_1_shard-1-of-2", "param_0_shard-2-of-2", "param_1_shard-2-of-2"];
    let records = names.iter().enumerate().map(|(at, name)| {
        let (dtype, offset) = (r#""dtype": "int32", "format": "raw", "nbytes": 8"#, 8 * at);
        format!(r#"{{"name": "{name}", "shape": [2], {dtype}, "byteOffset": {offset}}}"#)
    });
    let records = records.collect::<Vec<_>>().join(", ");
    let text = format!(
        r#"{{"records": [{{"dataPath": "a.bin", "format": "raw-shard", "nbytes": 32, "records": [{records}]}}]}}"#
    );
    fs::write(metadata(&folder), &text).unwrap();
    let weights = loader(&session, &metadata(&folder), None, None);
    let all = block_on(weights.load_all_presharded(&session)).unwrap();
    let elements = |tensor: &Tensor| tensor.to_vec::<i32>().unwrap();
    let found: Vec<Vec<_>> = arrays(&session, &all).iter().map(|array| array.iter().map(elements).collect()).collect();
    assert_eq!(found, [[vec![0, 1], vec![2, 3]], [vec![4, 5], vec![6, 7]]]);
    fs::write(metadata(&folder), text.replace("param_1_shard-1-of-2", "other")).unwrap();
    let weights = loader(&session, &metadata(&folder), None, None);
    let text = failure(&session, block_on(weights.load_all_presharded(&session)));
    assert!(text.ends_with("tensor-cache.json` has no parameter `param_1_shard-1-of-2`"), "{text}");
}

fn worker_functions_use_the_loader(plane: Plane) {
    let (session, folder) = (plane.session(2, 1), weights());
    let path = metadata(&folder).to_str().unwrap().to_owned();
    let loaded = block_on(session.call("test.load_twice", (path,))).unwrap();
    assert!(tensors(&session, &loaded).iter().all(is_floats));
    let weights = loader(&session, &metadata(&folder), None, None);
    let names = block_on(session.call("test.count_names", (weights.handle(),))).unwrap();
    assert_eq!(block_on(session.get_all::<String>(&names)).unwrap(), ["param_1 param_0"; 2]);
}

fn compiled_code_uses_the_loader_under_tvm_s_names(plane: Plane) {
    let (session, folder) = (plane.session(2, 1), weights());
    let (module, path) = (open(&session), metadata(&folder));
    let text = fs::read_to_string(&path).unwrap();
    let call = block_on(module.function(&session, "call_global")).unwrap();
    let name = |name: &str| format!("runtime.disco.ShardLoader{name}");
    let args = (name(""), path.to_str().unwrap(), text, INFO, module.handle());
    let loader = block_on(session.call(&call, args)).unwrap();
    // The index is the position in the file.
    let load = |function: &str, index: i64| {
        tensors(&session, &block_on(session.call(&call, (name(function), &loader, Shape::from([index])))).unwrap())
    };
    let (floats, parts) = (load("Load", 0), load("Load", 1));
    assert!(floats.iter().all(is_floats) && is_part(&parts[0], 0) && is_part(&parts[1], 1), "{floats:?} {parts:?}");
    let whole = load("LoadParamOnWorker0", 0);
    assert_eq!(whole[0].to_vec::<i32>().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(whole[1].dims(), [2, 4]);
    let all = block_on(session.call(&call, (name("LoadAll"), &loader))).unwrap();
    for (worker, array) in arrays(&session, &all).iter().enumerate() {
        assert!(is_part(&array[0], worker) && is_floats(&array[1]), "{array:?}");
    }
    let presharded = |function: &str| {
        let called = match function {
            "LoadPresharded" => block_on(session.call(&call, (name(function), &loader, Shape::from([0])))),
            _ => block_on(session.call(&call, (name(function), &loader))),
        };
        failure(&session, called)
    };
    for function in ["LoadPresharded", "LoadAllPresharded"] {
        let text = presharded(function);
        assert!(text.contains(&name(function)) && text.contains("has no parameter `param_0_shard-1-of-2`"), "{text}");
    }
    let text = failure(&session, block_on(session.call(&call, (name("Load"), &loader, Shape::from([2])))));
    assert!(text.ends_with("has 2 parameters, and none has the index 2"), "{text}");
    let text = failure(&session, block_on(session.call(&call, (name("LoadAll"), 7))));
    assert!(text.contains("argument 0: expected a shard loader, got an int"), "{text}");
}

fn damaged_files_are_errors_with_the_file_and_the_parameter(plane: Plane) {
    let (session, folder) = (plane.connect(plane.builder(2).collective_deadline(Duration::from_secs(2))), weights());
    let weights = loader(&session, &metadata(&folder), None, None);
    let file = folder.path().join("a.bin");
    fs::write(&file, [0; 5]).unwrap();
    let loaded = block_on(weights.load(&session, "param_1")).unwrap();
    let error = block_on(session.sync_all()).unwrap_err();
    let expected = format!(
        "worker 0: ffi.load_shard: parameter `param_1`: the weights `{}` have 5 bytes, but the metadata says 6: the file \
         is not complete, or is of another model",
        file.display()
    );
    assert_eq!(without_numbers(&error.to_string()), expected);
    drop(loaded);
    // Worker 1 has waited for worker 0.
    let reconnected = |session: &LaneSession| {
        block_on(session.init_ccl(plane.backend(), &[])).unwrap();
    };
    if plane == Plane::Mpi {
        return;
    }
    reconnected(&session);
    // One bit of the last element.
    fs::write(&file, [0xc0, 0x3f, 0, 0xc0, 0x81, 0x3e]).unwrap();
    let loaded = block_on(weights.load(&session, "param_1")).unwrap();
    let error = block_on(session.sync_all()).unwrap_err();
    let expected = format!(
        "worker 0: ffi.load_shard: parameter `param_1`: the weights `{}` have another MD5 sum than the metadata says: the \
         file is damaged, or is of another model",
        file.display()
    );
    assert_eq!(without_numbers(&error.to_string()), expected);
    drop(loaded);
    reconnected(&session);
    fs::remove_file(&file).unwrap();
    let loaded = block_on(weights.load(&session, "param_1")).unwrap();
    let error = block_on(session.sync_all()).unwrap_err();
    let expected =
        format!("worker 0: ffi.load_shard: parameter `param_1`: can't open the weights `{}`: ", file.display());
    assert!(without_numbers(&error.to_string()).starts_with(&expected), "{error}");
    assert_eq!(error.kind(), ErrorKind::System { code: Some(2) });
    drop(loaded);
}

fn shard_info_that_does_not_fit_is_an_error_with_the_parameter(plane: Plane) {
    let (session, folder) = (plane.session(2, 1), weights());
    let module = open(&session);
    let path = metadata(&folder);
    let with = |info: &str| loader(&session, &path, Some(info), Some(&module));
    let load = |info: &str| failure(&session, block_on(with(info).load(&session, "param_0")));
    let text = load(&INFO.replace("[2, 2, 2]", "[4, 2, 1]"));
    let expected = "worker 0: ffi.load_shard: parameter `param_0`: its shard info makes a tensor of shape [4, 2, 1] for 2 \
                    workers; the first extent must be the number of workers";
    assert_eq!(text, expected);
    let text = failure(&session, block_on(with(INFO).load(&session, "param_2")));
    assert!(text.ends_with("tensor-cache.json` has no parameter `param_2`"), "{text}");
    let made = |info: &str| {
        let weights = with(info);
        failure(&session, Ok(weights.handle().clone()))
    };
    let text = made(&INFO.replace("cut_columns", "no_such_function"));
    let expected = "worker 0: ffi.shard_loader: parameter `param_0`: no module and no library has the function \
                    `no_such_function`: libtvm_ffi has no global function `no_such_function`";
    assert_eq!(text, expected);
    let text = made(r#"{"param_0": [[]]}"#);
    assert!(
        text.ends_with("shard info: parameter `param_0`: its steps are not `[function, [shape, dtype], int…]`"),
        "{text}"
    );
    if plane != Plane::Mpi {
        // The function fails on worker 0 only, so that the communicators can't be used afterwards.
        let text = load(&INFO.replace("], 2]", "], 3]"));
        let expected = "worker 0: ffi.load_shard: parameter `param_0`: function `cut_columns`: ValueError: the columns \
                        can't be cut so";
        assert_eq!(text, expected);
    }
}

fn damaged_metadata_is_an_error_with_the_file_and_the_parameter(plane: Plane) {
    let (session, folder) = (plane.session(1, 1), weights());
    let path = metadata(&folder);
    let text = fs::read_to_string(&path).unwrap().replace(r#""byteOffset": 4"#, r#""byteOffset": 5"#);
    fs::write(&path, text).unwrap();
    let weights = loader(&session, &path, None, None);
    let text = failure(&session, Ok(weights.handle().clone()));
    let expected = format!(
        "worker 0: ffi.shard_loader: `{}`: file `b.bin`: parameter `param_0`: 32 bytes from 5 leave the file, which has \
         36 bytes",
        path.display()
    );
    assert_eq!(text, expected);
    fs::remove_file(&path).unwrap();
    let error = block_on(Weights::open(&session, &path, None, None)).unwrap_err();
    assert!(error.to_string().starts_with(&format!("can't read `{}`: ", path.display())), "{error}");
}
