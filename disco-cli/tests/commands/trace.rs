//! `disco trace`.

use std::fs;
use std::path::PathBuf;

use disco_core::activity::{OpDetails, OpState, Record, RecordKind, Recording};
use disco_core::{OpKind, WorkerId};
use disco_trace::{Trace, WorkerTrace};

use super::{disco, err, out};

crate::trials::tests!("commands::trace":
    trace_explains_and_exports_a_file,
    trace_names_a_file_that_is_no_trace_or_ends_early,
);

/// A folder with the file `trace.json.gz` of two workers, of which one has not called the second barrier.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("disco-trace-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let workers = (0..2_u32).map(|worker| {
            let mut recording = Recording::default();
            for number in 1..=2 - u64::from(worker) {
                let mut record = Record::new(number, RecordKind::Op(OpKind::Barrier), 100 * number);
                record.op = Some(OpDetails::new("plane 1".into(), number));
                if number == 1 {
                    (record.end, record.state) = (Some(150), OpState::Done);
                }
                recording.records.push(record);
            }
            WorkerTrace::new(WorkerId::new(worker), "this machine", "thread", Ok(recording))
        });
        let folder = Self(folder);
        Trace::new("train", None, workers.collect()).write(&folder.0.join("trace.json.gz")).unwrap();
        folder
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn trace_explains_and_exports_a_file() {
    let folder = Folder::new("all");
    let file = folder.path("trace.json.gz");
    let explained = disco(&["trace", "explain", &file]);
    assert!(explained.status.success(), "{}", err(&explained));
    let text = out(&explained);
    assert!(text.starts_with("Trace of train: 2 workers, 3 records over "), "{text}");
    assert!(text.contains("Missing: worker 1 has not called it."), "{text}");
    let dumps = folder.path("dumps");
    let exported = disco(&["trace", "export", "--pytorch", &file, "-o", &dumps]);
    assert!(exported.status.success(), "{}", err(&exported));
    assert_eq!(fs::read_dir(dumps).unwrap().count(), 2);
}

fn trace_names_a_file_that_is_no_trace_or_ends_early() {
    let folder = Folder::new("broken");
    let missing = folder.path("missing.json");
    let refused = disco(&["trace", "explain", &missing]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(err(&refused).starts_with(&format!("disco: can't read {missing}: No such file")), "{}", err(&refused));
    let other = folder.path("other.json");
    fs::write(&other, "{}").unwrap();
    let refused = disco(&["trace", "explain", &other]);
    let expected = format!("disco: {other}, line 1: this is no trace that Disco has written");
    assert!(err(&refused).starts_with(&expected), "{}", err(&refused));
    let whole = fs::read(folder.path("trace.json.gz")).unwrap();
    let cut = folder.path("cut.json.gz");
    fs::write(&cut, &whole[..whole.len() - 40]).unwrap();
    let exported = disco(&["trace", "export", "--pytorch", &cut, "-o", &folder.path("dumps")]);
    assert!(exported.status.success(), "{}", err(&exported));
    let expected = format!("disco: warning: {cut}: The file ends early: ");
    assert!(err(&exported).starts_with(&expected), "{}", err(&exported));
}
