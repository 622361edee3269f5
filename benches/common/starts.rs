//! The spread of comparisons over starts of the program.
//!
//! Within one process, threads and memory keep their places, so its rounds agree with each other. Another start may
//! have other places and give other ratios.

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

/// Environment variable with the number of starts.
const STARTS: &str = "DISCO_BENCH_STARTS";
/// Options of criterion that leave nearly all of the time to the comparisons.
const SHORT: [&str; 6] = ["--measurement-time", "0.05", "--warm-up-time", "0.02", "--sample-size", "10"];

/// The text between a comparison's figures and its ratio.
pub(crate) const RATIO: &str = "   ours / floor = ";

/// Runs this program as often as [`STARTS`] says, and prints the smallest ratio, the median and the largest ratio of
/// each comparison. Returns false if the variable is not set.
pub(crate) fn run() -> bool {
    let Some(starts) = env::var_os(STARTS) else { return false };
    let starts: usize = starts.to_str().and_then(|starts| starts.parse().ok()).expect("it is a number of starts");
    let program = env::current_exe().expect("this program has a path");
    let mut ratios = BTreeMap::<String, Vec<f64>>::new();
    for start in 1..=starts {
        println!("start {start} of {starts}");
        let mut command = Command::new(&program);
        command.args(env::args_os().skip(1)).args(SHORT).env_remove(STARTS).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program starts itself");
        let lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        for line in lines.map(|line| line.expect("the program prints text")) {
            if let Some((figures, ratio)) = line.split_once(RATIO) {
                println!("{line}");
                let name = figures.split("   ours ").next().unwrap_or_default().trim_end();
                ratios.entry(name.to_owned()).or_default().push(ratio.parse().expect("it is a number"));
            }
        }
        assert!(child.wait().expect("the program ends").success(), "start {start} failed");
    }
    for (name, mut ratios) in ratios {
        ratios.sort_unstable_by(f64::total_cmp);
        let [least, middle, most] = [0, ratios.len() / 2, ratios.len() - 1].map(|index| ratios[index]);
        println!("{name:<44} ours / floor over {starts} starts: {least:.2}, median {middle:.2}, {most:.2}");
    }
    true
}
