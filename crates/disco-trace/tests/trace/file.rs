//! Files: written, read, cut off, and others.

use std::fs;
use std::path::Path;

use disco_core::activity::{Alignment, ClockPoint};
use disco_trace::{Trace, TraceError, explain};
use proptest::prelude::*;

use crate::{arbitrary, sample};

fn decode(bytes: &[u8]) -> Result<Trace, TraceError> {
    Trace::decode(bytes, Path::new("trace.json"))
}

/// The content of the file that is written.
pub(crate) fn written(trace: &Trace, name: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    trace.write(&path).unwrap();
    fs::read(path).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_trace_that_is_written_is_read_back(trace in arbitrary::trace()) {
        for name in ["trace.json", "trace.json.gz"] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(name);
            trace.write(&path).unwrap();
            prop_assert_eq!(&Trace::read(&path).unwrap(), &trace);
        }
    }

    #[test]
    fn bytes_that_are_no_trace_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode(&bytes).is_err());
    }

    #[test]
    fn a_damaged_file_is_refused_or_read(trace in arbitrary::trace(), at in any::<usize>(), byte in any::<u8>()) {
        for name in ["trace.json", "trace.json.gz"] {
            let mut bytes = written(&trace, name);
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(trace) = decode(&bytes) {
                drop(explain(&trace));
                let again = written(&trace, "again.json");
                prop_assert_eq!(written(&decode(&again).unwrap(), "again.json"), again);
            }
        }
    }
}

#[test]
fn a_file_has_one_event_a_line_and_is_json() {
    let bytes = written(&sample::trace(), "trace.json");
    let events: Vec<serde_json::Value> = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), events.len() + 2);
    let again = decode(&bytes).unwrap();
    assert_eq!(again, sample::trace());
    let compressed = written(&sample::trace(), "trace.json.gz");
    assert!(compressed.len() < bytes.len() / 4, "{} of {}", compressed.len(), bytes.len());
}

#[test]
fn a_file_that_is_cut_anywhere_is_read_up_to_there() {
    let trace = sample::trace();
    let all: usize = trace.workers.iter().map(|it| it.recording.as_ref().unwrap().records.len()).sum();
    let all = (all + trace.controller.as_ref().unwrap().records.len()) as u64;
    for name in ["trace.json", "trace.json.gz"] {
        let bytes = written(&trace, name);
        let step = if name.ends_with("gz") { 64 } else { 1024 };
        let mut before = 0;
        for len in (1024..bytes.len()).step_by(step) {
            let read = decode(&bytes[..len]).unwrap();
            let kept = read.workers.iter().filter_map(|it| it.recording.as_ref().ok());
            let kept: usize = kept.chain(&read.controller).map(|recording| recording.records.len()).sum();
            assert_eq!(kept as u64 + read.missing.records, all, "{name} at {len}");
            assert_eq!(read.workers.len() as u64 + read.missing.workers, 4, "{name} at {len}");
            assert!(kept >= before, "{name} at {len}");
            before = kept;
            // Written again, it still lacks what it lacks.
            assert_eq!(decode(&written(&read, "again.json")).unwrap().missing, read.missing);
        }
        assert!(before > 0);
    }
}

#[test]
fn a_cut_file_says_how_much_is_missing() {
    let bytes = written(&sample::trace(), "trace.json");
    let read = decode(&bytes[..bytes.len() / 2]).unwrap();
    let text = explain(&read);
    let expected = format!("The file ends early: {} records are missing.\n", read.missing.records);
    assert!(text.contains(&expected), "{text}");
}

#[test]
fn errors_name_the_file_and_the_line() {
    let path = Path::new("/nowhere/trace.json");
    let error = sample::trace().write(path).unwrap_err();
    assert_eq!(error.to_string(), "can't write /nowhere/trace.json");
    assert_eq!(Trace::read(path).unwrap_err().to_string(), "can't read /nowhere/trace.json");
    let not = "this is no trace that Disco has written";
    let other = decode(b"[\n{\"ph\":\"X\",\"name\":\"a\"}\n]\n").unwrap_err();
    assert_eq!(other.to_string(), format!("trace.json, line 2: {not}"));
    let empty = decode(b"").unwrap_err();
    assert_eq!(empty.to_string(), format!("trace.json, line 1: {not}: the file ends before its first event"));
    let binary = decode(b"\x7fELF\x02\x01").unwrap_err();
    assert!(binary.to_string().starts_with(&format!("trace.json, line 1: {not}: ")), "{binary}");
    let mut bytes = written(&sample::trace(), "trace.json");
    let line = bytes.windows(5).rposition(|word| word == b"\"f32\"").unwrap();
    bytes[line + 1] = b'x';
    let error = decode(&bytes).unwrap_err().to_string();
    assert!(error.contains("unknown dtype `x32`"), "{error}");
    let later =
        String::from_utf8(written(&sample::trace(), "trace.json")).unwrap().replace("disco trace 2", "disco trace 9");
    let error = decode(later.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "trace.json, line 2: the format is `disco trace 9`; this version reads `disco trace 2`");
}

/// A device on which each write fails because it is full.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_that_names_the_file() {
    let error = sample::trace().write(Path::new("/dev/full")).unwrap_err();
    assert_eq!(error.to_string(), "can't write /dev/full");
    let cause = std::error::Error::source(&error).unwrap();
    assert!(cause.to_string().contains("No space left"), "{cause}");
}

/// The counters of a trace have a part for each thousandth of its time.
#[test]
fn a_clock_that_jumps_back_by_years_does_not_make_a_file_large() {
    let mut trace = sample::trace();
    let recording = trace.workers[1].recording.as_mut().unwrap();
    let time = recording.records.iter().rfind(|record| record.op.is_some()).unwrap().start;
    let jump = |time, shift| ClockPoint { time, shift, error: 0 };
    recording.alignment = Alignment::new([jump(0, 0), jump(time - 1, 0), jump(time, i64::MIN / 2)]);
    assert!(written(&trace, "trace.json").len() < 4 * written(&sample::trace(), "trace.json").len());
}
