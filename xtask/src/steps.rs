//! The steps of the gate and of the tests, as data.

use std::env::consts::ARCH;
use std::fmt;

use anyhow::{Context as _, Result};

use crate::groups::Group;
use crate::test_programs::{Selection, WITHOUT_PYTHON};
use crate::workspace::{self, Package};
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

/// The facade's package.
const FACADE: &str = "disco-runtime";

/// Features of the facade that are not built alone: one needs a feature of another crate, and one the CUDA toolkit.
const NOT_ALONE: [&str; 3] = ["default", "nccl-without-bindings", "candle-cuda"];

/// Cargo's arguments of the models of loom. `--cfg loom` compiles only the modelled parts of a crate, so no name filter is
/// needed, which could miss a model.
const LOOM: &str =
    "--quiet --package disco-channel --package disco-local --package disco-tcp --lib --target-dir target/loom";

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
///
/// # Errors
/// Cargo fails.
pub(crate) fn alone() -> Result<Vec<Step>> {
    let clippy = |name: &str, args: &str| step(name, &format!("clippy --quiet {args} -- -D warnings"));
    let facade = |name: &str, args: &str| {
        clippy(&format!("disco {name}"), &format!("--package {FACADE} --no-default-features {args}"))
    };
    let packages = workspace::packages()?;
    let alone = packages
        .iter()
        .map(|Package { name, .. }| clippy(&format!("{name} alone"), &format!("--package {name} --all-targets")));
    let mut steps: Vec<_> = alone.collect();
    steps.extend([facade("without features, library", "--lib"), facade("without features", "--all-targets")]);
    let this = packages.iter().find(|package| package.name == FACADE).context("the workspace has no facade")?;
    for feature in this.features.keys().filter(|name| !NOT_ALONE.contains(&name.as_str())) {
        // Without the examples, whose dependencies could enable a feature that the facade forgot to request.
        steps.push(facade(&format!("with {feature}"), &format!("--lib --features {feature}")));
        let is_default = this.features.get("default").is_some_and(|defaults| defaults.contains(feature));
        let examples = this.targets_of("example");
        let examples = examples.filter(|example| !is_default && example.required_features.contains(feature));
        let examples: String = examples.map(|example| format!(" --example {}", example.name)).collect();
        if !examples.is_empty() {
            steps.push(facade(&format!("with {feature}, examples"), &format!("--features {feature}{examples}")));
        }
    }
    Ok(steps)
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
///
/// # Errors
/// Cargo fails.
pub(crate) fn long_tests() -> Result<Vec<Step>> {
    let long = |name, args| step(name, args).with("DISCO_LONG_TESTS", "1");
    let mut steps = vec![
        step("loom models", &format!("test --release {LOOM}")).with("RUSTFLAGS", "--cfg loom"),
        step("random sessions, for longer", "test --quiet --package disco-tests --test sessions soak::")
            .with("DISCO_SOAK_SECONDS", "600"),
        step("200 faults of nodes during collectives", "test --package disco-tests --test sessions soak::")
            .with("DISCO_SOAK_FAULTS", "200"),
        long("simulated trees of nodes, for longer", "test --quiet --package disco-engine --lib sim::tree::tests"),
        long(
            "random deaths and replacements, for longer",
            "test --quiet --package disco-tests --test standard replacement::",
        ),
        long(
            "training with lost workers, 200 times",
            "test --quiet --package disco-tests --test standard digits::lost_workers:: -- --show-output",
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
            "server: clients, lost workers and machines, and a soak",
            "test --quiet --package disco-serve --features otlp --test serve -- program::clients:: program::mix:: program::soak:: program::faults::",
        ),
        long("tasks of torchrun", "test --quiet --package disco-tests --test sessions launchers::torchrun::"),
        long("ranks and tasks under Slurm", "test --quiet --package disco-runtime-cli --test mpi slurm::"),
        step(
            "example generate",
            "run --quiet --package disco-models --example generate -- --workers 3 --max-tokens 4 Hello",
        ),
        step("example embed", "run --quiet --package disco-models --example embed -- Hello Goodbye"),
        step("packages build", &packages()?),
        step("dependencies", "run --quiet --package xtask -- deny"),
        step("Python package with Jupyter, jax and torch", "run --quiet --package xtask -- python --long"),
        step("back end of torch.distributed", "run --quiet --package xtask -- python --torch"),
        step("wheel of the Python package", "run --quiet --package xtask -- python --wheel"),
        step("models with CUDA", "run --quiet --package xtask -- cuda"),
        step("GPU evidence kit without a GPU", "run --quiet --package xtask -- gpu-rehearsal"),
    ];
    steps.extend(sanitized_tests());
    Ok(steps)
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
///
/// # Errors
/// Cargo fails.
pub(crate) fn documentation() -> Result<Vec<Step>> {
    Ok(vec![
        guide(),
        step("documentation", &format!("doc --quiet --workspace --no-deps {ALL_FEATURES}"))
            .with("RUSTDOCFLAGS", "-D warnings"),
        step("packages", &format!("{} --no-verify", packages()?)),
    ])
}

/// Links, chapters and variables of the guide, and its book.
pub(crate) fn guide() -> Step {
    step("guide", "run --quiet --package xtask -- book")
}

/// Arguments of cargo that build the published packages.
fn packages() -> Result<String> {
    let packages = workspace::packages()?;
    let published = packages.iter().filter(|package| package.publish.as_ref().is_none_or(|to| !to.is_empty()));
    Ok(published.fold("package --quiet --allow-dirty".to_owned(), |args, it| format!("{args} --package {}", it.name)))
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
    use crate::workspace;
    use disco_testing::features::ALL_FEATURES;

    /// Features whose build needs the CUDA toolkit.
    const WITH_TOOLKIT: [&str; 4] =
        ["disco-candle/cuda", "disco-models/cuda", "disco-runtime/candle-cuda", "disco-serve/cuda"];

    #[test]
    fn every_feature_that_needs_no_toolkit_is_built() {
        let mut found = Vec::new();
        for package in workspace::packages().unwrap() {
            let names = package.features.keys().filter(|name| *name != "default");
            found.extend(names.map(|name| format!("{}/{name}", package.name)));
        }
        found.retain(|feature| !WITH_TOOLKIT.contains(&feature.as_str()));
        let mut built: Vec<_> = ALL_FEATURES.strip_prefix("--features ").unwrap().split(',').collect();
        found.sort_unstable();
        built.sort_unstable();
        assert_eq!(built, found);
    }

    #[test]
    fn each_example_of_the_facade_is_built_with_the_features_that_it_needs() {
        let steps = super::alone().unwrap();
        let args = |name: &str| &steps.iter().find(|step| step.name == name).unwrap().args;
        assert!(args("disco with mpi, examples").contains("--no-default-features --features mpi --example c_host"));
        assert!(args("disco with nccl, examples").contains("--example gpu_evidence"));
        assert!(args("disco with serde, examples").contains("--example serde_values"));
    }
}
