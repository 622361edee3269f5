//! Failures while workers write: a worker that dies, a file that can't grow, folders that can't be written to, a session
//! that fails or ends.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use disco::checkpoint::{self, Error, Layout};
use disco::{Error as SessionError, block_on};
use rustix::process::{Pid, Signal, kill_process};

use crate::{Kind, assert_loads, end, handles, names, save_numbers, session, worker};

crate::tests![
    tests: a_worker_that_dies_while_it_writes_is_named_with_its_shard,
    a_worker_that_replaced_a_writer_is_named_and_the_session_goes_on,
    a_full_disk_is_named_with_its_worker,
    a_folder_that_can_not_be_made_is_named,
    a_shard_that_can_not_be_made_is_named_with_its_worker,
    a_writer_without_progress_is_named,
    a_failed_worker_ends_the_save,
    after_the_shutdown_a_save_ends,
];

/// Elements of a tensor that takes a while to write.
const LARGE: usize = 16 << 20;

/// Of a session whose worker 0 is a process of its own, and can die.
pub(crate) const OF_WORKER_0: (&str, fn(Kind)) =
    ("worker_0_that_dies_while_it_writes_is_named_with_its_shard", |kind| dies_while_it_writes(kind, 0));

fn a_worker_that_dies_while_it_writes_is_named_with_its_shard(kind: Kind) {
    dies_while_it_writes(kind, 2);
}

fn dies_while_it_writes(kind: Kind, victim: usize) {
    let shard_name = format!("worker-{victim}-of-4.safetensors");
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    block_on(async {
        save_numbers(&session, folder.path(), 1).await.unwrap();
        let processes = session.call("tests.process", ()).await.unwrap();
        let processes: Vec<i64> = session.get_all(&processes).await.unwrap();
        let large = session.call("tests.large", (LARGE,)).await.unwrap();
        let saving = checkpoint::save(&session, folder.path(), 2, [("x", &large, Layout::PerWorker)]).await.unwrap();
        let partial = names(folder.path()).into_iter().find(|name| name.ends_with(".partial")).unwrap();
        let (shard, start) = (folder.path().join(partial).join(&shard_name), Instant::now());
        while !shard.exists() {
            assert!(start.elapsed() < Duration::from_secs(60), "worker {victim} does not begin to write");
        }
        kill_process(Pid::from_raw(processes[victim] as i32).unwrap(), Signal::KILL).unwrap();
        let error = saving.await.unwrap_err();
        let text = error.to_string();
        let Error::Lost { files, source, .. } = error else { panic!("{text}") };
        assert_eq!(files, [&shard_name[..]]);
        assert!(matches!(source, SessionError::Lost(_)), "{source}");
        assert!(
            text.starts_with(&format!(
                "checkpoint `{}` was not saved, because `{shard_name}` is not complete: worker {victim} lost: its \
                 process ended: signal: 9",
                folder.path().join("step-000002").display()
            )),
            "{text}"
        );
    });
    assert_eq!(names(folder.path()), ["step-000001"]);
    _ = block_on(session.shutdown());
    let next = crate::session(kind);
    assert_eq!(assert_loads(&next, folder.path(), 1), [""; 0]);
    end(&next);
}

fn a_worker_that_replaced_a_writer_is_named_and_the_session_goes_on(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    block_on(async {
        let (same, _) = handles(&session, 1).await;
        let begin = |step| checkpoint::save(&session, folder.path(), step, [("same", &same)]);
        let (replaced, resized) = (begin(1).await.unwrap(), begin(2).await.unwrap());
        let processes = session.call("tests.process", ()).await.unwrap();
        let process: i64 = session.get(&processes, worker(2)).await.unwrap();
        kill_process(Pid::from_raw(process as i32).unwrap(), Signal::KILL).unwrap();
        while session.sync_all().await.is_ok() {}
        session.replace_lost().await.unwrap();
        let path = |step| folder.path().join(format!("step-00000{step}"));
        assert_eq!(
            replaced.await.unwrap_err().to_string(),
            format!(
                "checkpoint `{}` was not saved, because `worker-2-of-4.safetensors` is not complete: worker 2 is new since \
                 epoch 1; save again",
                path(1).display()
            )
        );
        session.resize(2).await.unwrap();
        assert_eq!(
            resized.await.unwrap_err().to_string(),
            format!(
                "checkpoint `{}`: waiting for the shards: the session was resized meanwhile; save again",
                path(2).display()
            )
        );
        checkpoint::save(&session, folder.path(), 3, [("same", &same)]).await.unwrap().await.unwrap();
    });
    assert_eq!(names(folder.path()), ["step-000003"]);
    end(&session);
}

/// The variable with the folder of a small disk, of the program that [`on_a_small_disk`] runs in.
pub(crate) const SMALL_DISK: &str = "CHECKPOINT_SMALL_DISK";

fn a_full_disk_is_named_with_its_worker(_: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let in_namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-euc", script]).env(SMALL_DISK, folder.path());
        command.arg(std::env::current_exe().unwrap());
        command.output()
    };
    const MOUNT: &str = "mount -t tmpfs -o size=8m none \"$CHECKPOINT_SMALL_DISK\"";
    if !in_namespace(MOUNT).is_ok_and(|tried| tried.status.success()) {
        println!("skipped: this user can't mount a small disk in a namespace");
        return;
    }
    let ran = in_namespace(&format!("{MOUNT}; exec \"$0\"")).unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// Saves more and then less than fits on a disk of 8 MiB. Workers keep the memory of the copies, also of failed saves.
pub(crate) fn on_a_small_disk(folder: &Path) {
    let session = session(Kind::Processes);
    block_on(async {
        let large = session.call("tests.large", (1 << 20,)).await.unwrap();
        let reusing = checkpoint::Folder::new(folder).reuse_memory(true);
        let saving = checkpoint::save(&session, reusing, 1, [("x", &large, Layout::PerWorker)]).await.unwrap();
        let error = saving.await.unwrap_err();
        let text = error.to_string();
        let Error::Io { worker: Some(_), path, source, .. } = error else { panic!("{text}") };
        assert_eq!(source.raw_os_error(), Some(28), "{text}");
        assert!(path.to_string_lossy().ends_with("-of-4.safetensors"), "{text}");
        assert!(text.contains(" failed: No space left on device (os error 28)"), "{text}");
        assert_eq!(names(folder), [""; 0]);
        save_numbers(&session, folder, 1).await.unwrap();
    });
    assert_eq!(assert_loads(&session, folder, 1), [""; 0]);
    end(&session);
}

fn a_folder_that_can_not_be_made_is_named(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    let file = folder.path().join("file");
    fs::write(&file, "a file").unwrap();
    let error = block_on(save_numbers(&session, file.join("folder"), 1)).unwrap_err().to_string();
    let path = file.join("folder");
    assert_eq!(error, format!("`{}`: making the folder failed: Not a directory (os error 20)", path.display()));
    end(&session);
}

fn a_shard_that_can_not_be_made_is_named_with_its_worker(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    block_on(async {
        let (_, split) = handles(&session, 1).await;
        // The workers begin late, when the folder is gone, as on a machine that does not share it.
        session.call("tests.delay", (disco::Shape::from([500; 4]),)).await.unwrap();
        let saving = checkpoint::save(&session, folder.path(), 1, [("x", &split, Layout::split(0))]).await.unwrap();
        let partial = names(folder.path()).into_iter().find(|name| name.ends_with(".partial")).unwrap();
        fs::rename(folder.path().join(&partial), folder.path().join("elsewhere")).unwrap();
        let error = saving.await.unwrap_err();
        let text = error.to_string();
        let Error::Io { worker: Some(by), .. } = error else { panic!("{text}") };
        let path = folder.path().join(partial).join(format!("worker-{}-of-4.safetensors", by.index()));
        assert_eq!(
            text,
            format!("{by}: `{}`: creating the shard failed: No such file or directory (os error 2)", path.display())
        );
    });
    end(&session);
}

fn a_writer_without_progress_is_named(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    block_on(async {
        let large = session.call("tests.large", (LARGE,)).await.unwrap();
        // Each writer has at least once not written since the last question.
        let limited = checkpoint::Folder::new(folder.path()).stall_limit(Duration::ZERO);
        let saving = checkpoint::save(&session, limited, 1, [("x", &large, Layout::PerWorker)]).await.unwrap();
        let error = saving.await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Stalled { after: Duration::ZERO, .. }), "{text}");
        assert!(text.contains("-of-4.safetensors`: nothing was written for 0ns, after "), "{text}");
    });
    assert_eq!(names(folder.path()), [""; 0]);
    end(&session);
}

fn a_failed_worker_ends_the_save(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    block_on(async {
        let (same, _) = handles(&session, 1).await;
        // The function needs an argument.
        let poisoned = session.call("tests.fill", ()).await.unwrap();
        let saved = async { checkpoint::save(&session, folder.path(), 1, [("x", &same)]).await?.await };
        let error = saved.await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Session { .. }), "{text}");
        assert!(text.contains("expected 2 arguments, got 0"), "{text}");
        session.recover().await.unwrap();
        // The handle of the failed call has no value, which is an error of the save only.
        let saved = async { checkpoint::save(&session, folder.path(), 1, [("x", &poisoned)]).await?.await };
        let text = saved.await.unwrap_err().to_string();
        let path = folder.path().join("step-000001");
        let expected = format!("worker 0: `{}`: tensor `x`: worker 0: tests.fill (command ", path.display());
        assert!(text.starts_with(&expected), "{text}");
        save_numbers(&session, folder.path(), 1).await.unwrap();
    });
    assert_eq!(names(folder.path()), ["step-000001"]);
    end(&session);
}

fn after_the_shutdown_a_save_ends(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    block_on(async {
        let (same, _) = handles(&session, 1).await;
        let saving = checkpoint::save(&session, folder.path(), 1, [("x", &same)]).await.unwrap();
        session.shutdown().await.unwrap();
        let error = saving.await.unwrap_err().to_string();
        assert!(error.contains("waiting for the shards: ") && error.ends_with(": the session is shut down"), "{error}");
    });
    assert_eq!(names(folder.path()), [""; 0]);
}
