//! Programs that are killed while they save.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use disco::block_on;
use disco::checkpoint::Folder;

use crate::{Kind, assert_loads, end, names, save_numbers, session};

crate::tests![tests: a_killed_program_leaves_complete_checkpoints_only];

/// The variable with the folder of a program that saves until it is killed.
pub(crate) const FOLDER: &str = "CHECKPOINT_CRASH_FOLDER";

/// Saves one checkpoint after the other, and prints the step of each.
pub(crate) fn save_until_killed(folder: &Path) {
    let session = session(Kind::Processes);
    let folder = Folder::new(folder).keep(2);
    let first = folder.steps().unwrap().last().map_or(0, |last| last + 1);
    for step in first.. {
        block_on(save_numbers(&session, folder.clone(), step)).unwrap();
        println!("{step}");
    }
}

/// Kills the program when the test fails, too.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn a_killed_program_leaves_complete_checkpoints_only(_: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Folder::new(folder.path());
    let mut newest = None;
    for round in 0..6 {
        let mut program = Command::new(std::env::current_exe().unwrap());
        let mut program = program.env(FOLDER, folder.path()).stdout(Stdio::piped()).spawn().unwrap();
        let mut saved = BufReader::new(program.stdout.take().unwrap()).lines();
        let program = Killed(program);
        saved.next().expect("the program saves nothing").unwrap();
        // At different times of a save.
        thread::sleep(Duration::from_millis(7 * round));
        drop(program);
        let steps = checkpoints.steps().unwrap();
        for step in &steps {
            checkpoints.verify(*step).unwrap();
        }
        newest = steps.last().copied();
    }
    let newest = newest.unwrap();
    let session = session(Kind::Threads);
    assert_eq!(assert_loads(&session, folder.path(), newest), [""; 0]);
    // The next save removes what the programs have left.
    block_on(save_numbers(&session, checkpoints.keep(1), newest + 1)).unwrap();
    assert_eq!(names(folder.path()), [format!("step-{:06}", newest + 1)]);
    end(&session);
}
