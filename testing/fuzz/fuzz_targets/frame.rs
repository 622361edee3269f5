//! Frames, as a worker decodes them: a decoded frame can be encoded, and decodes to the same frame.

#![no_main]

use disco_core::wire::{WireError, decode_frame};
use disco_core::{Command, Frame, Local, Members, RegisterId, WorkerId, World};

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), WireError> {
    let frame = decode_frame(1, bytes)?;
    let written = frame.bytes().expect("a frame that was read can be written");
    let again = decode_frame(1, written).expect("a frame that was written can be read");
    assert_eq!(again.freed(), frame.freed());
    assert_eq!(again.bytes().expect("it was written before"), written);
    // The texts of a frame can be formatted.
    if let Command::CallPacked { args, .. } = frame.command() {
        args.iter().for_each(|arg| drop(arg.to_string()));
    }
    Ok(())
}

/// The workers of a session that has lost worker 2.
fn members() -> Members {
    let world = World::new(4, 2).expect("two groups of two");
    Members::new(world, [0, 1, 3, 4].map(WorkerId::new)).expect("a place for each worker")
}

fn seeds() -> Vec<Vec<u8>> {
    let (register, worker) = (RegisterId::new(5), WorkerId::new(1));
    let call = Command::CallPacked { register, function: RegisterId::new(2), args: disco_fuzz::values() };
    let commands = [
        Command::Shutdown,
        Command::KillReg { register },
        Command::GetGlobalFunc { register, name: "demo.function".into() },
        call,
        Command::SyncWorker { worker },
        Command::CopyFromWorker0 { register, host: Local(None) },
        Command::CopyToWorker0 { register, host: Local(None) },
        Command::DebugGet { register, worker },
        Command::SyncAll,
        Command::Recover { epoch: 2 },
        Command::Resize { epoch: 2, members: members().into() },
    ];
    let sets = disco_fuzz::values().into_iter().map(|value| Command::DebugSet { register, worker, value });
    let frames = commands.into_iter().chain(sets).enumerate().map(|(number, command)| {
        // With and without freed ids.
        let freed = (number % 2 == 0).then_some([RegisterId::new(8), RegisterId::new(9)]);
        Frame::new(1, freed.into_iter().flatten(), command)
    });
    frames.map(|frame| frame.bytes().expect("a frame of a seed can be written").to_vec()).collect()
}
