//! The template of a program, as `cargo generate` makes one from it, a program without the feature `nodes`, and one that
//! registers two worker functions under one name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use disco_testing::features;
use tempfile::TempDir;

/// A program made from the template.
struct Program(TempDir);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

impl Program {
    /// Fills in the template, as `cargo generate --name NAME --define checkout=…` does, with `options` of the dependency on
    /// Disco. The programs of tests have different names, because they share a folder of builds.
    fn generate(name: &str, options: &str) -> Self {
        let (root, folder) = (root(), TempDir::new().unwrap());
        let template = root.join("examples/template");
        let read = |file: &str| {
            let text = fs::read_to_string(template.join(file)).unwrap();
            text.replace("{{project-name}}", name).replace("{{crate_name}}", &name.replace('-', "_"))
        };
        let manifest = read("Cargo.toml");
        let (before, rest) = manifest.split_once("{% if").unwrap();
        let (_, after) = rest.split_once("{% endif %}").unwrap();
        let dependency = format!("path = {:?}{options}", root.to_str().unwrap());
        let main = read("src/main.rs");
        assert!(!main.contains("{{") && !after.contains("{%"), "{main}{after}");
        fs::write(folder.path().join("Cargo.toml"), [before, &dependency, after].concat()).unwrap();
        fs::create_dir(folder.path().join("src")).unwrap();
        fs::write(folder.path().join("src/main.rs"), main).unwrap();
        // The tested versions of all crates.
        fs::copy(root.join("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
        Self(folder)
    }

    /// Appends code to the program.
    fn append(&self, code: &str) {
        let main = self.0.path().join("src/main.rs");
        fs::write(&main, fs::read_to_string(&main).unwrap() + code).unwrap();
    }

    fn cargo(&self, args: &[&str], env: &[(&str, &str)]) -> Output {
        let mut command: Command = features::cargo(env!("CARGO"));
        // Nothing waits for these programs, so nothing is optimised.
        command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
        command.env("CARGO_TARGET_DIR", root().join("target/template"));
        command.current_dir(&self.0).args(args).args(["--quiet", "--offline"]).envs(env.iter().copied());
        command.output().unwrap()
    }
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[test]
fn a_program_from_the_template_passes_its_test_and_runs() {
    let program = Program::generate("my-program", "");
    let tested = program.cargo(&["test"], &[]);
    assert!(tested.status.success() && text(&tested.stdout).contains("1 passed"), "{tested:?}");
    for session in ["threads", "processes"] {
        let output = program.cargo(&["run"], &[("DISCO_SESSION", session), ("DISCO_WORKERS", "4")]);
        assert_eq!(text(&output.stdout), "[2, 3, 2, 3]\n", "{output:?}");
    }
}

#[test]
fn a_program_without_the_feature_nodes_refuses_nodes_by_name() {
    let program = Program::generate("without-nodes", r#", default-features = false, features = ["local"]"#);
    let tree = program.cargo(&["tree", "--prefix", "none", "--format", "{lib}"], &[]);
    let crates: Vec<_> = text(&tree.stdout).lines().collect();
    assert!(crates.contains(&"disco_engine"), "{tree:?}");
    assert!(!["ring", "snow"].iter().any(|name| crates.contains(name)), "{crates:?}");

    let needs = "needs the feature `nodes` of `disco-runtime`, without which this program was built\n";
    let session = format!("Error: a session of nodes {needs}");
    let torchrun = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("MASTER_ADDR", "192.0.2.1"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "template"),
    ];
    for (env, error) in [
        (&[("DISCO_SESSION", "nodes")][..], session.clone()),
        (&[("DISCO_NODES", "2")], session.clone()),
        (&[("DISCO_NODES", "2"), ("DISCO_TOKEN", "a secret of many words")], session),
        (
            &[("DISCO_CONNECT", "127.0.0.1:1")],
            format!("disco: DISCO_CONNECT, which makes this program a node of a session, {needs}"),
        ),
        (&torchrun, format!("disco: joining the session of task 0 of torchrun, which is on another machine, {needs}")),
    ] {
        let output = program.cargo(&["run"], env);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), error.as_str()), "{env:?}");
    }
    let output = program.cargo(&["run"], &[("DISCO_SESSION", "processes"), ("DISCO_WORKERS", "4")]);
    assert_eq!(text(&output.stdout), "[2, 3, 2, 3]\n", "{output:?}");
}

#[test]
fn two_functions_of_one_name_are_a_start_error_that_names_both_places() {
    let program = Program::generate("twice", "");
    program.append("mod heads {\n    disco::register_function!(\"twice.share\", super::share);\n}\n");
    let output = program.cargo(&["run"], &[("DISCO_SESSION", "threads")]);
    let error = text(&output.stderr);
    let start = "Error: two worker functions are registered as `twice.share`: in ";
    assert!(error.starts_with(start) && error.ends_with("; give one of them another name\n"), "{output:?}");
    for place in ["in twice at src/main.rs:11", "in twice::heads at src/main.rs:43"] {
        assert!(error.contains(place), "{error}");
    }
    assert_eq!(output.status.code(), Some(1));
}
