//! When libraries are closed, and libraries that are sent.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use disco::{SessionKind, Value, block_on};
use disco_ffi::LibraryFile;

use super::{call, load, loaded, session, submit};
use crate::library::{folder, library};

crate::sessions::tests![
    a_library_is_closed_with_its_last_handle_and_function,
    a_library_is_sent_and_closed,
    a_library_is_opened_and_closed_many_times,
];

/// Files that closed libraries have left, one for each process.
fn left(prefix: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| file.file_name().unwrap().to_string_lossy().starts_with(prefix)).collect()
}

fn closes(session: &disco::LaneSession, prefix: &str, kind: SessionKind) {
    let processes = if kind == SessionKind::Threads { 1 } else { 2 };
    let start = Instant::now();
    while left(prefix).len() < processes && start.elapsed() < Duration::from_secs(20) {
        block_on(session.sync_all()).unwrap();
    }
    // A file may be there before its text is.
    block_on(session.sync_all()).unwrap();
    let files = left(prefix);
    assert_eq!(files.len(), processes);
    files.iter().for_each(|file| assert_eq!(fs::read_to_string(file).unwrap(), "closed\n", "closed once"));
}

fn a_library_is_closed_with_its_last_handle_and_function(kind: SessionKind) {
    let (session, module) = loaded(kind, library!("unload.c"));
    let prefix = folder().join("closed");
    let leave = block_on(module.function(&session, "leave")).unwrap();
    block_on(session.call(&leave, (prefix.to_str().unwrap(),))).unwrap();
    drop(module);
    block_on(session.call(&leave, (prefix.to_str().unwrap(),))).unwrap();
    block_on(session.sync_all()).unwrap();
    assert_eq!(left("closed.").len(), 0, "a function keeps the library");
    drop(leave);
    closes(&session, "closed.", kind);
}

fn a_library_is_sent_and_closed(kind: SessionKind) {
    let library = library!("unload.c");
    let copy = folder().join("gone.so");
    fs::copy(library, &copy).unwrap();
    let plain = library!("plain.c");
    let session = session(kind);
    let module = load(&session, LibraryFile::new(&copy).send());
    // A second library, so that both are open from memory at the same time.
    let other = load(&session, LibraryFile::new(&plain).send());
    fs::remove_file(&copy).unwrap();
    let prefix = folder().join("sent");
    submit(&session, &module, "leave", (prefix.to_str().unwrap(),)).unwrap();
    assert_eq!(call(&session, &other, "add4", (1, 2, 3, 4)).unwrap(), Value::Int(10));
    // Else a worker may close the library before another one opens it.
    block_on(session.sync_all()).unwrap();
    drop(module);
    closes(&session, "sent.", kind);
    assert_eq!(call(&session, &other, "add4", (1, 2, 3, 5)).unwrap(), Value::Int(11));
}

fn a_library_is_opened_and_closed_many_times(kind: SessionKind) {
    let library = library!("plain.c");
    let session = session(kind);
    for round in 0..60 {
        // Nothing waits, so that one worker opens the library while the other one closes it.
        let file = LibraryFile::new(&library);
        let module = load(&session, if round % 2 == 0 { file } else { file.send() });
        submit(&session, &module, "own_object", ()).unwrap();
        let sum = submit(&session, &module, "add4", (round, 1)).unwrap();
        if round % 20 == 0 {
            assert_eq!(block_on(session.get_all::<i32>(&sum)).unwrap(), [round + 1; 2]);
        }
    }
    block_on(session.sync_all()).unwrap();
}
