//! A controller without memory for the value of a worker: the call that gets it fails, and the worker goes on.

use std::{env, fs};

use disco::error::ErrorKind;
use disco::{Builder, DType, Error, Result, SessionKind, Tensor, WorkerContext, WorkerId, block_on};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::programs;

super::tests!(
    "memory":
    a_value_that_the_controller_can_not_map_is_an_error_and_no_loss,
    a_value_that_the_controller_can_not_copy_is_an_error_and_no_loss,
    a_message_that_the_controller_can_not_hold_is_a_loss_for_want_of_memory,
);

/// Size of the value.
const BYTES: usize = 100 << 20;

fn a_value_that_the_controller_can_not_map_is_an_error_and_no_loss() {
    assert_eq!(output("processes", 64), "worker 1: reply: OutOfMemory, then works\n");
}

fn a_value_that_the_controller_can_not_copy_is_an_error_and_no_loss() {
    // The packets have room.
    assert_eq!(output("nodes", 160), "worker 1: reply: OutOfMemory, then works\n");
}

fn a_message_that_the_controller_can_not_hold_is_a_loss_for_want_of_memory() {
    let said = output("nodes", 32);
    assert!(said.contains(" lost: its message can't be received: no room for "), "{said}");
}

fn output(kind: &str, mib: usize) -> String {
    let output = programs::command("memory").args([kind, &mib.to_string()]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap()
}

disco::register_function!("memory.large", large);

fn large(_: &mut WorkerContext) -> Result<Tensor> {
    Tensor::zeros(DType::U8, [BYTES as i64])
}

/// The program `memory`: gets a value with as many MiB of address space left as its last argument says. Prints the error,
/// and whether the session works with all of the address space.
pub(crate) fn run() {
    disco::init();
    let args: Vec<String> = env::args().collect();
    let [.., kind, mib] = &args[..] else { panic!("{args:?}") };
    let builder = match &kind[..] {
        "processes" => Builder::processes(2),
        _ => Builder::new(SessionKind::Nodes, 2),
    };
    let session = builder.start().unwrap();
    let worker = WorkerId::new(1);
    block_on(async {
        let large = session.call("memory.large", ()).await.unwrap();
        session.sync_all().await.unwrap();
        let all = getrlimit(Resource::As);
        let limit = mapped() + (mib.parse::<u64>().unwrap() << 20);
        setrlimit(Resource::As, Rlimit { current: Some(limit), ..all }).unwrap();
        let error = session.value(&large, worker).await.unwrap_err();
        setrlimit(Resource::As, all).unwrap();
        let Error::Worker(failure) = &error else { return println!("{error}") };
        assert!(failure.message.contains("no room for"), "{error}");
        assert_eq!(error.kind(), ErrorKind::OutOfMemory { bytes: BYTES as u64 }, "{error}");
        let value: Tensor = session.get(&large, worker).await.unwrap();
        session.sync_all().await.unwrap();
        assert_eq!(value.byte_len(), BYTES);
        session.shutdown().await.unwrap();
        println!("{}: {}: OutOfMemory, then works", failure.worker, failure.operation);
    });
}

/// Bytes of address space in use.
fn mapped() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
