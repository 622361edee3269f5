//! The answer of a program that `disco status` asks: what a decoded answer is written as decodes to the same answer.

#![no_main]

use std::time::Duration;

use disco_channel::fuzzing;
use disco_core::Error;
use disco_core::WorkerRange;
use disco_core::activity::Progress;
use disco_core::status::{Known, Program, Status};

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), Error> {
    let program = fuzzing::program(bytes)?;
    let written = fuzzing::program_bytes(&program);
    assert_eq!(fuzzing::program(&written).expect("an answer that was written can be read"), program);
    Ok(())
}

fn seeds() -> Vec<Vec<u8>> {
    let mut status = Status::default();
    (status.process, status.node, status.uptime) = (7, Some(1), Duration::from_millis(1500));
    let mut known = Known::new(Progress::new(2, 1));
    known.place = Some((10, 11));
    status.add_workers("processes", WorkerRange::new(1..3), |_| known.clone());
    let mut program = Program::default();
    (program.process, program.program, program.sessions) = (7, "train".into(), vec![status]);
    vec![fuzzing::program_bytes(&program), fuzzing::program_bytes(&Program::default())]
}
