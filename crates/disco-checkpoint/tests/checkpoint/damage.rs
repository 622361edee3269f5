//! Damaged checkpoints: refused by name, and the one before is loaded.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use disco::block_on;
use disco::checkpoint::{self, Folder};

use crate::{Kind, assert_loads, end, names, save_numbers, session};

crate::tests![
    tests: damage_is_named_and_the_checkpoint_before_is_loaded,
    without_an_undamaged_checkpoint_all_reasons_are_named,
];

crate::tests![
    tests_of_files: each_flipped_bit_is_noticed,
    each_truncation_is_noticed,
    an_index_of_another_version_is_an_error,
    a_refused_checkpoint_is_a_warning,
];

const SHARD: &str = "worker-2-of-4.safetensors";

fn flip(path: &Path, at: u64, bit: u8) {
    let mut file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(at)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
}

fn truncate(path: &Path, by: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() - by).unwrap();
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

fn damage_is_named_and_the_checkpoint_before_is_loaded(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    block_on(save_numbers(&session, folder.path(), 1)).unwrap();
    let path = block_on(save_numbers(&session, folder.path(), 2)).unwrap();
    let (shard, index) = (path.join(SHARD), path.join("index.json"));
    let original: Vec<_> = names(&path).into_iter().map(|name| (fs::read(path.join(&name)).unwrap(), name)).collect();
    let short = format!("it has {} bytes, expected {}", len(&shard) - 1, len(&shard));
    // The damage, and the path and the text of the reason.
    type Case<'a> = (&'a dyn Fn(), &'a Path, &'a str);
    let cases: [Case<'_>; 9] = [
        (&|| flip(&shard, len(&shard) - 1, 3), &shard, "tensor `split` has the checksum "),
        (&|| flip(&shard, 20, 0), &shard, "its header has the checksum "),
        (&|| truncate(&shard, 1), &shard, &short),
        (
            &|| fs::remove_file(&shard).unwrap(),
            &shard,
            "the file does not exist; the machines of all workers must share the folder",
        ),
        (
            &|| _ = fs::copy(path.join("worker-1-of-4.safetensors"), &shard).unwrap(),
            &shard,
            "its header has the checksum ",
        ),
        (&|| flip(&index, 40, 1), &index, "it "),
        (&|| truncate(&index, 2), &index, "it is no index: EOF while parsing"),
        (&|| fs::remove_file(&index).unwrap(), &path, "it has no `index.json`"),
        (
            &|| _ = fs::copy(folder.path().join("step-000001/index.json"), &index).unwrap(),
            &index,
            "it is the index of step 1",
        ),
    ];
    for (damage, file, text) in cases {
        damage();
        let reasons = assert_loads(&session, folder.path(), 1);
        let [reason] = &reasons[..] else { panic!("{reasons:?}") };
        assert!(reason.contains(&format!("`{}` is damaged: {text}", file.display())), "{reason}");
        // A worker reports damage of a shard, the controller that of an index or of a folder.
        assert_eq!(reason.starts_with("worker "), file == shard, "{reason}");
        for (bytes, name) in &original {
            fs::write(path.join(name), bytes).unwrap();
        }
        assert_eq!(assert_loads(&session, folder.path(), 2), [""; 0]);
    }
    end(&session);
}

fn without_an_undamaged_checkpoint_all_reasons_are_named(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    let mut paths = Vec::new();
    for step in [1, 2] {
        paths.push(block_on(save_numbers(&session, folder.path(), step)).unwrap());
    }
    paths.iter().for_each(|path| fs::remove_file(path.join("index.json")).unwrap());
    let error = block_on(checkpoint::load(&session, folder.path())).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "`{}` has no checkpoint that can be loaded: `{}` is damaged: it has no `index.json`; `{}` is damaged: it has no \
             `index.json`",
            folder.path().display(),
            paths[1].display(),
            paths[0].display()
        )
    );
    end(&session);
}

fn each_flipped_bit_is_noticed(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    let path = block_on(save_numbers(&session, folder.path(), 1)).unwrap();
    end(&session);
    let folder = Folder::new(folder.path());
    folder.verify(1).unwrap();
    for name in names(&path) {
        let file = path.join(name);
        for at in 0..len(&file) {
            let bit = (at % 8) as u8;
            flip(&file, at, bit);
            let found = folder.verify(1);
            assert!(
                matches!(found, Err(checkpoint::Error::Damaged { .. })),
                "{}: bit {bit} of byte {at}: {found:?}",
                file.display()
            );
            flip(&file, at, bit);
        }
    }
    folder.verify(1).unwrap();
}

fn each_truncation_is_noticed(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    let path = block_on(save_numbers(&session, folder.path(), 1)).unwrap();
    end(&session);
    let folder = Folder::new(folder.path());
    for name in names(&path) {
        let file = path.join(name);
        let bytes = fs::read(&file).unwrap();
        for len in 0..bytes.len() {
            fs::write(&file, &bytes[..len]).unwrap();
            let found = folder.verify(1);
            // Without its last byte, a line end, the index is complete.
            let is_complete = len + 1 == bytes.len() && file.ends_with("index.json");
            assert_eq!(
                matches!(found, Err(checkpoint::Error::Damaged { .. })),
                !is_complete,
                "{len} bytes of {}",
                file.display()
            );
        }
        fs::write(&file, bytes).unwrap();
    }
    folder.verify(1).unwrap();
}

fn an_index_of_another_version_is_an_error(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    block_on(save_numbers(&session, folder.path(), 1)).unwrap();
    let path = block_on(save_numbers(&session, folder.path(), 2)).unwrap();
    // A format of the future; its checksum is valid.
    fs::write(path.join("index.json"), r#"{"crc32":"5a1dc9f0","checkpoint":{"version":2}}"#).unwrap();
    let error = block_on(checkpoint::load(&session, folder.path())).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("`{}` has version 2, and this program reads version 1", path.join("index.json").display())
    );
    end(&session);
}

fn a_refused_checkpoint_is_a_warning(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    block_on(save_numbers(&session, folder.path(), 1)).unwrap();
    let path = block_on(save_numbers(&session, folder.path(), 2)).unwrap();
    fs::remove_file(path.join("index.json")).unwrap();
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, || assert_loads(&session, folder.path(), 1));
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let (path, warnings) = (path.display(), log.lines().filter(|line| line.contains("WARN")).collect::<Vec<_>>());
    let [warning] = warnings[..] else { panic!("{log}") };
    assert!(
        warning.ends_with(&format!(
            "refused a checkpoint; the one before is next checkpoint={path} reason=`{path}` is damaged: it has no \
             `index.json`"
        )),
        "{warning}"
    );
    end(&session);
}

/// The text of the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
