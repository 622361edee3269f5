//! Runs the kernels on the host under ThreadSanitizer: each GPU thread is a thread of the process. Faults that are inserted
//! into the source must be detected.
//!
//! Without a g++ with ThreadSanitizer the tests are skipped, or fail with `DISCO_REQUIRE=tsan`. `DISCO_LONG_TESTS`, which
//! `cargo xtask test --long` sets, runs more cases and faults.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use candle_core::DType;
use disco_conformance::tsan::{Compiler, Program, text};
use half::{bf16, f16};

use super::super::launch::{KERNELS, Launch, ROWS, THREADS};
use super::{Case, Random, Shapes};

const SOURCE: &str = include_str!("../attention.cu");

fn is_long() -> bool {
    env::var_os("DISCO_LONG_TESTS").is_some()
}

/// Compiles the harness with `source` as the file of the kernels.
fn build(compiler: &Compiler, name: &str, source: &str) -> Program {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kernels = tempfile::tempdir().unwrap();
    fs::write(kernels.path().join("attention.cu"), source).unwrap();
    let machine = here.join("../../disco-nccl/tests/tsan");
    compiler.build(name, &here.join("tests/tsan/harness.cpp"), &[&machine, kernels.path()], &[])
}

impl Case {
    fn to_words(&self, numbers: &[f32]) -> Vec<u32> {
        let pair = |pair: &[f32], bits: fn(f32) -> u16| u32::from(bits(pair[0])) | u32::from(bits(pair[1])) << 16;
        match self.dtype {
            DType::F16 => numbers.chunks(2).map(|x| pair(x, |x| f16::from_f32(x).to_bits())).collect(),
            DType::BF16 => numbers.chunks(2).map(|x| pair(x, |x| bf16::from_f32(x).to_bits())).collect(),
            _ => numbers.iter().map(|x| x.to_bits()).collect(),
        }
    }

    fn numbers_of(&self, words: &[u32]) -> Vec<f32> {
        let halves = || words.iter().flat_map(|word| [*word as u16, (*word >> 16) as u16]);
        match self.dtype {
            DType::F16 => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
            DType::BF16 => halves().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
            _ => words.iter().copied().map(f32::from_bits).collect(),
        }
    }

    /// Launches the kernel of the case in `program`, with blocks of `warps` warps. The result is an error if the program has
    /// failed.
    fn launch(&self, program: &Program, warps: u32) -> Result<Vec<f32>, Output> {
        let plan = self.plan();
        let launch = Launch::of(&self.scope(&plan), &self.sizes(), self.dtype).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| -> PathBuf { folder.path().join(name) };
        let [query, keys, values] = [&self.query, &self.keys, &self.values].map(|numbers| self.to_words(numbers));
        for (name, words) in [("query", query), ("keys", keys), ("values", values), ("plan", plan.words())] {
            fs::write(file(name), bytemuck::cast_slice(&words)).unwrap();
        }
        if let Some(sinks) = &self.sinks {
            fs::write(file("sinks"), bytemuck::cast_slice(&sinks.values)).unwrap();
        }
        let Launch { kernel, grid, tokens, words, window, cap } = launch;
        let numbers = [grid.0, grid.1, grid.2, warps, tokens, words, window].map(|number| number.to_string());
        let mut args = vec![kernel.to_owned()];
        args.extend(numbers);
        args.extend([cap.to_string(), folder.path().display().to_string()]);
        let output = program.run(&args);
        if !output.status.success() {
            return Err(output);
        }
        let bytes = fs::read(file("output")).unwrap();
        let words: Vec<_> = bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect();
        Ok(self.numbers_of(&words))
    }
}

#[test]
fn kernels_compute_the_attention_of_loops_in_f64() {
    let Some(compiler) = Compiler::find() else { return };
    let program = build(&compiler, "attention", SOURCE);
    let random = &mut Random(2);
    let check = |case: Case, warps: u32| {
        let found = case.launch(&program, warps).unwrap_or_else(|output| panic!("{case:?}: {}", text(&output)));
        case.check(&found, "kernel");
    };
    // Each kernel, with unequal groups, and with a part of a prompt, decodes, and the end of a prompt.
    for (index, (dtype, widest, _)) in KERNELS.into_iter().enumerate() {
        let window = [None, Some(5), Some(33)][index % 3];
        let cap = [None, Some(0.7)][index % 2];
        let shapes = Shapes { dtype, width: widest - [0, 2, 24][index / 3], groups: &[1, 3], window, cap };
        let case = Case::new(shapes, &[(0, 9), (70, 1), (17, 3)], random);
        check(if index % 2 == 0 { case.with_sinks(random) } else { case }, 2);
    }
    let rounds = if is_long() { 60 } else { 3 };
    for _ in 0..rounds {
        let dtype = [DType::F32, DType::F16, DType::BF16][random.below(3)];
        let groups = [&[1][..], &[4], &[2, 2], &[1, 5], &[7]][random.below(5)];
        let window = [None, Some(1), Some(16), Some(1 + random.below(80))][random.below(4)];
        let cap = [None, Some(0.5)][random.below(2)];
        let shapes = Shapes { dtype, width: 2 + 2 * random.below(128), groups, window, cap };
        let runs = (0..1 + random.below(3)).map(|_| (random.below(100), 1 + [0, random.below(18)][random.below(2)]));
        let runs: Vec<_> = runs.collect();
        let case = Case::new(shapes, &runs, random);
        let case = if random.below(3) == 0 { case.with_sinks(random) } else { case };
        check(case, 1 + random.below(3) as u32);
    }
}

#[test]
fn constants_and_names_match_the_source() {
    let warps = format!("MAX_WARPS = {};", THREADS / 32);
    for text in [format!("ROWS = {ROWS};"), warps, format!("SLOTS = {};", super::BLOCK)] {
        assert!(SOURCE.contains(&text), "{text}");
    }
    for (_, _, kernel) in KERNELS {
        assert!(SOURCE.contains(&format!("KERNEL({kernel}, ")), "{kernel}");
    }
}

/// A fault: a text that is in the source once, its replacement, and whether the sanitizer or the comparison finds it.
struct Fault {
    from: &'static str,
    to: &'static str,
    is_race: bool,
}

/// Without `DISCO_LONG_TESTS`, the first ones only.
const SHORT_FAULTS: usize = 6;
const FAULTS: [Fault; 13] = [
    race("__syncthreads();", ""),
    race(
        "shares[warp][row][lane / 2] = share;\n        }\n        __syncwarp();",
        "shares[warp][row][lane / 2] = share;\n        }",
    ),
    race("// The next block overwrites the shares.\n        __syncwarp();", ""),
    other("at <= position(row)", "at <= position(row) + 1"),
    other("lowest(position(row)) <= at &&", "at + 1 > 0 &&"),
    other("if (share != 0)", "if (row < rows)"),
    other("sum[row][e] *= factor", "sum[row][e] *= 1"),
    other("expf(sink - highest)", "0"),
    other("total[row] * factor + share", "total[row] + share"),
    other("all += factor * totals", "all += totals"),
    other("first_head + (start + row) % heads", "first_head"),
    other("position(rows - 1) / SLOTS", "position(0) / SLOTS"),
    other("tables[tile.table + i]", "tables[i]"),
];

const fn race(from: &'static str, to: &'static str) -> Fault {
    Fault { from, to, is_race: true }
}

const fn other(from: &'static str, to: &'static str) -> Fault {
    Fault { from, to, is_race: false }
}

#[test]
fn inserted_faults_are_detected() {
    let Some(compiler) = Compiler::find() else { return };
    let shapes = Shapes { dtype: DType::F32, width: 32, groups: &[1, 2], window: Some(55), cap: None };
    // Each warp has two blocks of the second run, which follow each other, and a tile of the first one is in two blocks.
    let mut case = Case::new(shapes, &[(14, 4), (75, 1)], &mut Random(3)).with_sinks(&mut Random(4));
    // The highest scores differ between blocks.
    case.query.iter_mut().for_each(|x| *x *= 3.0);
    let none = case.launch(&build(&compiler, "no-fault", SOURCE), 2);
    case.check(&none.unwrap_or_else(|output| panic!("{}", text(&output))), "no fault");
    let count = if is_long() { FAULTS.len() } else { SHORT_FAULTS };
    for (number, Fault { from, to, is_race }) in FAULTS.into_iter().take(count).enumerate() {
        assert_eq!(SOURCE.matches(from).count(), 1, "{from}");
        let program = build(&compiler, &format!("fault-{number}"), &SOURCE.replace(from, to));
        match case.launch(&program, 2) {
            Err(output) => {
                assert!(is_race && output.status.code() == Some(Program::RACE), "{from}: {}", text(&output));
            }
            Ok(found) => {
                assert!(!is_race && case.difference(&found).is_some(), "{from}: not found");
            }
        }
    }
}
