//! The steps of the gate and of the tests, as data.

use std::env::consts::ARCH;
use std::fmt;

use crate::groups::Group;
use crate::test_programs::{Selection, WITHOUT_PYTHON};
use disco_testing::features::ALL_FEATURES;

/// One run of cargo.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Name of the step in the output.
    pub(crate) name: String,
    /// Environment variables of the step.
    pub(crate) env: Vec<(&'static str, &'static str)>,
    /// Cargo's arguments, separated by spaces.
    pub(crate) args: String,
}

/// Packages of the workspace and their folders. Each must build alone. A test compares this with the manifests.
pub(crate) const CRATES: [(&str, &str); 29] = [
    ("disco-runtime", "."),
    ("disco-core", "disco-core"),
    ("disco-engine", "crates/disco-engine"),
    ("disco-channel", "disco-channel"),
    ("disco-local", "crates/disco-local"),
    ("disco-tcp", "crates/disco-tcp"),
    ("disco-dl", "crates/disco-dl"),
    ("disco-ccl", "crates/disco-ccl"),
    ("disco-nccl", "disco-nccl"),
    ("disco-rccl", "disco-rccl"),
    ("disco-mpi", "disco-mpi"),
    ("disco-ffi", "crates/disco-ffi"),
    ("disco-candle", "crates/disco-candle"),
    ("disco-models", "crates/disco-models"),
    ("disco-checkpoint", "crates/disco-checkpoint"),
    ("disco-trace", "crates/disco-trace"),
    ("disco-conformance", "crates/disco-conformance"),
    ("disco-python", "crates/disco-python"),
    ("disco-serve", "crates/disco-serve"),
    ("disco-gpu-double", "testing/disco-gpu-double"),
    ("disco-runtime-cli", "disco-cli"),
    ("disco-benches", "benches"),
    ("disco-mailbox", "examples/backend"),
    ("disco-ffi-library", "examples/ffi_library"),
    ("disco-metrics", "examples/metrics"),
    ("disco-tokio", "examples/tokio"),
    ("disco-testing", "testing/common"),
    ("disco-tests", "testing/suite"),
    ("xtask", "xtask"),
];

/// Packages that are not published.
const UNPUBLISHED: [&str; 10] = [
    "disco-gpu-double",
    "disco-benches",
    "disco-mailbox",
    "disco-ffi-library",
    "disco-metrics",
    "disco-tokio",
    "disco-python",
    "disco-testing",
    "disco-tests",
    "xtask",
];

/// Features of the facade, which must build with each alone, and the examples that need them. A test compares this with the
/// manifest, except `nccl-without-bindings`, which needs a feature of another crate.
const FEATURES: [(&str, &[&str]); 15] = [
    ("checkpoint", &[]),
    ("local", &[]),
    ("nodes", &[]),
    ("ndarray", &[]),
    ("mpi", &["c_host"]),
    ("nccl", &["overlap", "gpu_evidence"]),
    ("rccl", &[]),
    ("tcp", &[]),
    ("trace", &[]),
    ("serde", &["serde_values"]),
    ("tvm", &[]),
    ("metrics", &[]),
    ("ffi", &[]),
    ("candle", &[]),
    ("models", &[]),
];

/// Cargo's arguments of the models of loom. `--cfg loom` compiles only the modelled parts of a crate, so no name filter is
/// needed, which could miss a model.
const LOOM: &str = "--quiet --package disco-channel --package disco-local --lib --target-dir target/loom";

/// Format, clippy with all features, models of loom that compile, cycles between modules, numbers of crates, and the number of
/// sleeps in tests.
pub(crate) fn lints() -> Vec<Step> {
    vec![
        step("format", "fmt --all --check"),
        step("clippy", &format!("clippy --quiet --workspace --all-targets {ALL_FEATURES} -- -D warnings")),
        step("loom models compile", &format!("check --profile test {LOOM}"))
            .with("RUSTFLAGS", "--cfg loom -D warnings"),
        step("no cycles between modules", "run --quiet --package xtask -- modules"),
        step("numbers of crates", "run --quiet --package xtask -- crates"),
        step("number of sleeps in tests", "run --quiet --package xtask -- sleeps"),
    ]
}

/// The steps of `cargo xtask test`. The gate does not build their programs again.
pub(crate) fn product() -> Vec<Step> {
    let selection = Selection::of(Group::Product);
    // A third of the crates, so that the first tests run soon.
    let first = format!("test --quiet --workspace {WITHOUT_PYTHON} --test suite --test local {ALL_FEATURES}");
    vec![
        step("tests of the core and of the built-in backend", &first),
        step("tests compile", &format!("{} --quiet", selection.build())),
        step("tests", "run --quiet --package xtask -- programs --group product"),
        step("the guide's programs", &format!("test --quiet --workspace {ALL_FEATURES} --doc")),
    ]
}

/// Clippy of each package alone, and of the facade with each feature alone: a feature that a manifest forgot to request is
/// missing only there.
pub(crate) fn alone() -> Vec<Step> {
    let clippy = |name: &str, args: &str| step(name, &format!("clippy --quiet {args} -- -D warnings"));
    let packages = CRATES.map(|(name, _)| clippy(&format!("{name} alone"), &format!("--package {name} --all-targets")));
    let facade = |name: &str, args: &str| {
        clippy(&format!("disco {name}"), &format!("--package disco-runtime --no-default-features {args}"))
    };
    let none = [facade("without features, library", "--lib"), facade("without features", "--all-targets")];
    // Without the examples, whose dependencies could enable a feature that the facade forgot to request.
    let libraries =
        FEATURES.iter().map(|(name, _)| facade(&format!("with {name}"), &format!("--lib --features {name}")));
    let examples = FEATURES.iter().filter(|(_, examples)| !examples.is_empty()).map(|(name, examples)| {
        let args =
            examples.iter().fold(format!("--features {name}"), |args, example| format!("{args} --example {example}"));
        facade(&format!("with {name}, examples"), &args)
    });
    packages.into_iter().chain(none).chain(libraries).chain(examples).collect()
}

/// All tests and examples.
pub(crate) fn programs() -> Vec<Step> {
    vec![
        step("tests, benchmarks and examples compile", &format!("{} --quiet", Selection::default().build())),
        step("documentation tests", &format!("test --quiet --workspace {ALL_FEATURES} --doc")),
        step("tests and examples, benchmarks once each, Python package", "run --quiet --package xtask -- programs"),
    ]
}

/// The steps that `cargo xtask test --long` adds to all tests.
pub(crate) fn long_tests() -> Vec<Step> {
    let long = |name, args| step(name, args).with("DISCO_LONG_TESTS", "1");
    let mut steps = vec![
        step("loom models", &format!("test --release {LOOM}")).with("RUSTFLAGS", "--cfg loom"),
        step("random sessions, for longer", "test --quiet --package disco-tests --test sessions soak::")
            .with("DISCO_SOAK_SECONDS", "600"),
        long("simulated trees of nodes, for longer", "test --quiet --package disco-engine --lib sim::tree::tests"),
        long(
            "random deaths and replacements, for longer",
            "test --quiet --package disco-tests --test standard replacement::",
        ),
        long(
            "training with lost workers, 200 times",
            "test --quiet --package disco-tests --test standard digits::lost_workers::",
        ),
        long("traces of many commands", "test --quiet --package disco-tests --test sessions many_commands"),
        long("many nodes that are processes", "test --quiet --package disco-tests --test sessions many_nodes"),
        long("kernels on threads, for longer", "test --quiet --package disco-nccl --test kernels tsan::"),
        long(
            "attention kernels on threads, for longer",
            "test --quiet --package disco-candle --lib paged::tests::kernels",
        ),
        long("models that TVM compiles", "test --quiet --package disco-ffi --test ffi models::"),
        step("models for tests", "run --quiet --package xtask -- fetch smollm2 minilm"),
        long(
            "language model on several workers",
            "test --quiet --package disco-models --test models transformer::long::",
        ),
        step("clients of the server", "run --quiet --package xtask -- fetch-clients"),
        long(
            "server: clients, lost workers and a soak",
            "test --quiet --package disco-serve --features otlp --test serve -- program::clients:: program::mix:: program::soak::",
        ),
        long("tasks of torchrun", "test --quiet --package disco-tests --test sessions launchers::torchrun::"),
        long("ranks and tasks under Slurm", "test --quiet --package disco-runtime-cli --test mpi slurm::"),
        step(
            "example generate",
            "run --quiet --package disco-models --example generate -- --workers 3 --max-tokens 4 Hello",
        ),
        step("example embed", "run --quiet --package disco-models --example embed -- Hello Goodbye"),
        step("packages build", &packages()),
        step("dependencies", "run --quiet --package xtask -- deny"),
        step("Python package with Jupyter, jax and torch", "run --quiet --package xtask -- python --long"),
        step("back end of torch.distributed", "run --quiet --package xtask -- python --torch"),
        step("wheel of the Python package", "run --quiet --package xtask -- python --wheel"),
        step("models with CUDA", "run --quiet --package xtask -- cuda"),
        step("GPU evidence kit without a GPU", "run --quiet --package xtask -- gpu-rehearsal"),
    ];
    steps.extend(sanitized_tests());
    steps
}

/// Tests under AddressSanitizer.
fn sanitized_tests() -> [Step; 4] {
    let target = format!("--target-dir target/asan --target {ARCH}-unknown-linux-gnu");
    let sanitized = |name, tests: &str, filter: &str| {
        step(name, &format!("test --quiet {tests} {target} -- {filter}"))
            // Tests request more memory than exists and expect an error.
            .with("ASAN_OPTIONS", "allocator_may_return_null=1")
            .with("RUSTC_BOOTSTRAP", "1")
            .with("RUSTFLAGS", "-Zsanitizer=address")
    };
    // Tests that AddressSanitizer breaks: a stack overflow as a signal, limits of memory, and the test double of NCCL, a
    // library that would need symbols of the sanitizer from the program.
    let but = [
        "a_stack_overflow",
        "meet_back_pressure",
        "do_not_grow_the_memory",
        "without_shared_memory",
        "buffers_few_of_them",
        "of_nccl",
    ];
    let but = but.map(|name| format!("--skip {name}")).join(" ");
    [
        sanitized(
            "address sanitizer",
            "--package disco-core --package disco-engine --package disco-channel --package disco-local --lib --tests",
            // Skips tests that run the compiler: it would have to compile with the same flags.
            "--skip the_message_for",
        ),
        sanitized("vector products, address sanitizer", "--package disco-candle --lib", "products"),
        sanitized("conformance, address sanitizer", "--package disco-tests --test conformance", ""),
        // Memory that stuck peers may still access is leaked on purpose.
        sanitized(
            "processes, address sanitizer",
            "--package disco-tests --test sessions",
            &format!("processes:: {but}"),
        )
        .with("ASAN_OPTIONS", "allocator_may_return_null=1:detect_leaks=0"),
    ]
}

/// Documentation without warnings, and the packages as they would be published.
pub(crate) fn documentation() -> Vec<Step> {
    vec![
        guide(),
        step("documentation", &format!("doc --quiet --workspace --no-deps {ALL_FEATURES}"))
            .with("RUSTDOCFLAGS", "-D warnings"),
        step("packages", &format!("{} --no-verify", packages())),
    ]
}

/// Links, chapters and variables of the guide, and its book.
pub(crate) fn guide() -> Step {
    step("guide", "run --quiet --package xtask -- book")
}

/// Arguments of cargo that build the published packages.
fn packages() -> String {
    let published = CRATES.iter().map(|(name, _)| name).filter(|name| !UNPUBLISHED.contains(name));
    published.fold("package --quiet --allow-dirty".to_owned(), |args, name| format!("{args} --package {name}"))
}

pub(crate) fn step(name: &str, args: &str) -> Step {
    Step { name: name.to_owned(), env: Vec::new(), args: args.to_owned() }
}

impl Step {
    pub(crate) fn with(mut self, variable: &'static str, value: &'static str) -> Self {
        self.env.push((variable, value));
        self
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name)?;
        self.env.iter().try_for_each(|(variable, value)| write!(f, "{variable}='{value}' "))?;
        write!(f, "cargo {}", self.args)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{CRATES, FEATURES};
    use crate::built::root;
    use disco_testing::features::ALL_FEATURES;

    /// Features whose build needs the CUDA toolkit.
    const WITH_TOOLKIT: [&str; 4] =
        ["disco-candle/cuda", "disco-models/cuda", "disco-runtime/candle-cuda", "disco-serve/cuda"];

    const MANIFEST: &str = include_str!("../../Cargo.toml");

    fn between(start: &str, end: &str) -> &'static str {
        MANIFEST.split_once(start).unwrap().1.split_once(end).unwrap().0
    }

    #[test]
    fn every_package_of_the_workspace_has_a_row() {
        let members = between("members = [", "]").split(',').map(|folder| folder.trim().trim_matches('"'));
        let members: Vec<_> = members.filter(|folder| !folder.is_empty()).collect();
        assert_eq!(CRATES[1..].iter().map(|(_, folder)| *folder).collect::<Vec<_>>(), members);
        for (name, folder) in CRATES {
            let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
            assert!(manifest.contains(&format!("\nname = \"{name}\"\n")), "{folder} is no package {name}");
        }
    }

    #[test]
    fn every_feature_that_needs_no_toolkit_is_built() {
        let mut found = Vec::new();
        for (package, folder) in CRATES {
            let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
            let Some((_, features)) = manifest.split_once("[features]\n") else { continue };
            let lines = features.lines().take_while(|line| !line.starts_with('['));
            let names = lines.filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" = "));
            found.extend(names.filter(|(name, _)| *name != "default").map(|(name, _)| format!("{package}/{name}")));
        }
        found.retain(|feature| !WITH_TOOLKIT.contains(&feature.as_str()));
        let mut built: Vec<_> = ALL_FEATURES.strip_prefix("--features ").unwrap().split(',').collect();
        found.sort_unstable();
        built.sort_unstable();
        assert_eq!(built, found);
    }

    #[test]
    fn every_feature_of_the_facade_has_a_row() {
        let names =
            between("[features]\n", "\n[").lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name);
        let features: Vec<_> = names
            .filter(|name| {
                !["default", "nccl-without-bindings", "candle-cuda"].contains(name) && !name.starts_with('#')
            })
            .collect();
        assert_eq!(FEATURES.map(|(name, _)| name)[..], features);
    }

    #[test]
    fn every_example_is_built_with_the_features_that_it_needs_and_no_others() {
        let defaults = between("default = [", "]");
        for example in MANIFEST.split("[[example]]").skip(1) {
            let name = example.split_once("name = \"").unwrap().1.split_once('"').unwrap().0;
            let features = example.split_once("required-features = [").unwrap().1.split_once(']').unwrap().0;
            let of_row = |feature: &str| {
                let row = FEATURES.iter().find(|(name, _)| *name == feature.trim_matches('"'));
                row.is_some_and(|(_, examples)| examples.contains(&name))
            };
            let mut features = features.split(", ");
            assert!(features.all(|feature| defaults.contains(feature) || of_row(feature)), "{name}");
        }
    }
}
