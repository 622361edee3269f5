//! Folders with several checkpoints: removal of old ones, a step that is saved twice, concurrent saves, abandoned saves.

use std::fs;

use disco::block_on;
use disco::checkpoint::{self, Folder, Layout};

use crate::{Kind, assert_loads, end, handles, names, save_numbers, session};

crate::tests![
    tests: the_last_checkpoints_are_kept,
    a_second_checkpoint_of_a_step_is_refused,
    a_damaged_checkpoint_of_the_same_step_is_replaced,
    of_two_saves_of_one_step_the_first_wins,
    folders_of_programs_that_have_ended_are_removed,
    a_later_step_with_more_digits_is_newer,
];

fn the_last_checkpoints_are_kept(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    let keep = Folder::new(folder.path()).keep(2);
    for step in [10, 20, 30, 40] {
        block_on(save_numbers(&session, keep.clone(), step)).unwrap();
    }
    assert_eq!(names(folder.path()), ["step-000030", "step-000040"]);
    assert_eq!(keep.steps().unwrap(), [30, 40]);
    // A save that continues from an earlier step is not removed by itself.
    block_on(save_numbers(&session, keep.clone(), 5)).unwrap();
    assert_eq!(names(folder.path()), ["step-000005", "step-000040"]);
    // Folders without an index are no checkpoints: they do not count, and stay.
    fs::create_dir(folder.path().join("step-000001")).unwrap();
    block_on(save_numbers(&session, keep.keep(0), 50)).unwrap();
    assert_eq!(names(folder.path()), ["step-000001", "step-000050"]);
    end(&session);
}

fn a_second_checkpoint_of_a_step_is_refused(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    let path = block_on(save_numbers(&session, folder.path(), 3)).unwrap();
    let error = block_on(save_numbers(&session, folder.path(), 3)).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "`{}` exists already; save under another step or into another folder, or remove the checkpoint first",
            path.display()
        )
    );
    assert_eq!(assert_loads(&session, folder.path(), 3), [""; 0]);
    end(&session);
}

fn a_damaged_checkpoint_of_the_same_step_is_replaced(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    let path = block_on(save_numbers(&session, folder.path(), 3)).unwrap();
    fs::remove_file(path.join("worker-1-of-4.safetensors")).unwrap();
    block_on(save_numbers(&session, folder.path(), 3)).unwrap();
    assert_eq!(assert_loads(&session, folder.path(), 3), [""; 0]);
    assert_eq!(names(folder.path()), ["step-000003"]);
    end(&session);
}

fn of_two_saves_of_one_step_the_first_wins(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    block_on(async {
        let (same, split) = handles(&session, 6).await;
        let entries = [("same", &same, Layout::Replicated), ("split", &split, Layout::split(0))];
        let one = checkpoint::save(&session, folder.path(), 6, entries.clone()).await.unwrap();
        let other = checkpoint::save(&session, folder.path(), 6, entries).await.unwrap();
        one.await.unwrap();
        let error = other.await.unwrap_err();
        assert!(
            matches!(&error, checkpoint::Error::Exists { checkpoint } if checkpoint.ends_with("step-000006")),
            "{error}"
        );
    });
    assert_eq!(names(folder.path()), ["step-000006"]);
    assert_eq!(assert_loads(&session, folder.path(), 6), [""; 0]);
    end(&session);
}

fn folders_of_programs_that_have_ended_are_removed(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    let (stale, removed) =
        (folder.path().join(".step-000001.9-0-1.partial"), folder.path().join(".step-000001.9-0-2.removed"));
    for half in [&stale, &removed] {
        fs::create_dir(half).unwrap();
        fs::write(half.join("worker-0-of-4.safetensors"), "half").unwrap();
    }
    // The folder of a program that runs is locked.
    let running = folder.path().join(".step-000002.9-0-1.partial");
    fs::create_dir(&running).unwrap();
    let lock = fs::File::open(&running).unwrap();
    lock.lock().unwrap();
    fs::create_dir(folder.path().join("other")).unwrap();
    assert!(block_on(checkpoint::load(&session, folder.path())).unwrap().is_none(), "half a checkpoint is none");
    block_on(save_numbers(&session, folder.path(), 3)).unwrap();
    assert_eq!(names(folder.path()), [".step-000002.9-0-1.partial", "other", "step-000003"]);
    drop(lock);
    block_on(save_numbers(&session, folder.path(), 4)).unwrap();
    assert_eq!(names(folder.path()), ["other", "step-000003", "step-000004"]);
    end(&session);
}

fn a_later_step_with_more_digits_is_newer(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    for step in [999_999, 1_000_000] {
        block_on(save_numbers(&session, folder.path(), step)).unwrap();
    }
    assert_eq!(assert_loads(&session, folder.path(), 1_000_000), [""; 0]);
    end(&session);
}
