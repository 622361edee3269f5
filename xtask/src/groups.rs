//! Groups of test programs: what proves the product with nothing but Rust, and what needs libraries of vendors.

use std::collections::BTreeSet;

use clap::ValueEnum;

/// A group of test programs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Group {
    /// Contracts of lanes and of `local`, sessions of all kinds, a model, the server's HTTP, the command
    Product,
    /// Ranks of MPI libraries
    Mpi,
    /// NCCL, RCCL, and the test double of their libraries
    Gpu,
    /// Shared libraries of TVM's C ABI, and sessions with TVM
    Tvm,
}

/// Programs, and the arguments of each run.
type Runs = &'static [(&'static str, &'static str)];

/// Without the tests of the core and of the built-in backend, which run before these are built.
const PRODUCT: Runs = &[
    ("disco-tests test conformance", "local::"),
    ("disco-tests test conformance", "threads::"),
    ("disco-tests test conformance", "nodes::"),
    ("disco-tests test sessions", "processes:: --skip mpi:: --skip nccl::"),
    ("disco-tests test sessions", "nodes:: --skip mpi:: --skip nccl::"),
    ("disco-tests test sessions", "subsets::"),
    ("disco-tests test sessions", "kinds:: --skip nccl::"),
    ("disco-tests test standard", "failure:: session::"),
    ("disco-runtime-cli test cli", "commands::"),
    ("disco-models test models", "transformer::serving::"),
    ("disco-serve test serve", "http::"),
    ("disco-core lib disco_core", ""),
    ("disco-engine lib disco_engine", ""),
    ("disco-channel lib disco_channel", ""),
    ("disco-local lib disco_local", ""),
    ("disco-models lib disco_models", ""),
    ("disco-serve lib disco_serve", ""),
    ("disco-runtime lib disco", ""),
];

const MPI: Runs =
    &[("disco-mpi lib disco_mpi", ""), ("disco-tests test sessions", "mpi::"), ("disco-runtime-cli test mpi", "")];

const GPU: Runs = &[
    ("disco-runtime-cli test cli", "gpus::"),
    ("disco-nccl test kernels", ""),
    ("disco-tests test nccl", ""),
    ("disco-tests test sessions", "nccl::"),
    ("disco-gpu-double test double", ""),
    ("disco-ccl lib disco_ccl", ""),
    ("disco-ccl test nccl", ""),
    ("disco-nccl lib disco_nccl", ""),
    ("disco-rccl test real", ""),
];

const TVM: Runs = &[
    ("disco-ffi lib disco_ffi", ""),
    ("disco-ffi test ffi", ""),
    ("disco-ffi-library test library", ""),
    ("disco-tests test sessions", "tvm::"),
];

/// What [`Group::Product`] lacks, and the command for each.
const ELSEWHERE: [(&str, &str); 6] = [
    ("MPI", "cargo xtask programs --group mpi"),
    ("NCCL, RCCL and their test double", "cargo xtask programs --group gpu"),
    ("TVM", "cargo xtask programs --group tvm"),
    ("Python", "cargo xtask python"),
    ("all of these, lints, other tests, benchmarks, the guide", "cargo xtask check"),
    ("long tests", "cargo xtask test --long"),
];

impl Group {
    /// The programs of the group, and the arguments of each run.
    pub(crate) fn runs(self) -> Runs {
        match self {
            Self::Product => PRODUCT,
            Self::Mpi => MPI,
            Self::Gpu => GPU,
            Self::Tvm => TVM,
        }
    }

    /// The names of the group's programs that are not unit tests.
    pub(crate) fn tests(self) -> Vec<&'static str> {
        let tests = self.runs().iter().filter_map(|(program, _)| program.split_once(" test "));
        let names: BTreeSet<_> = tests.map(|(_, name)| name).collect();
        names.into_iter().collect()
    }
}

/// Says what the tests of the product have left out, and the command for each.
pub(crate) fn print_elsewhere() {
    println!("== left out, with the command for each:");
    ELSEWHERE.iter().for_each(|(what, command)| println!("   {what}: {command}"));
}
