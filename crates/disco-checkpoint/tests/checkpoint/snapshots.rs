//! Saves that overlap with later calls, notes, layouts without a whole tensor, and errors of entries.

use disco::checkpoint::{self, Layout};
use disco::{Tensor, block_on};

use crate::{Kind, call, end, numbers, replicated, save_numbers, scattered, session, values};

crate::tests![
    tests: a_checkpoint_has_the_values_of_the_time_of_the_save,
    notes_come_back_with_the_tensors,
    tensors_of_their_own_load_in_the_same_world_only,
    the_order_of_the_writes_does_not_matter,
    entries_that_are_not_what_their_layout_says_are_refused,
    requests_that_do_not_fit_are_refused,
];

/// Accepts futures that any executor may move to another thread.
fn is_send<F: Future + Send>(future: F) -> F {
    future
}

fn a_checkpoint_has_the_values_of_the_time_of_the_save(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    block_on(async {
        let x = replicated(&session, &numbers(0, 300_000)).await;
        let saving = is_send(checkpoint::save(&session, folder.path(), 1, [("x", &x)])).await.unwrap();
        // Training goes on, and overwrites the tensor, before the checkpoint is complete.
        call(&session, "tests.fill", (&x, -1)).await;
        let saved = is_send(saving).await.unwrap();
        assert_eq!((saved.step, saved.path), (1, folder.path().join("step-000001")));
        assert!(saved.bytes > 4 * 300_000, "{}", saved.bytes);
        let loaded = is_send(checkpoint::load(&session, folder.path())).await.unwrap().unwrap();
        let expected: Vec<i32> = (0..300_000).collect();
        assert!(values(&session, loaded.tensor("x").unwrap()).await.iter().all(|found| *found == expected));
        assert_eq!(values(&session, &x).await[0][..3], [-1, -1, -1]);
        // Workers may write to a loaded tensor.
        call(&session, "tests.fill", (loaded.tensor("x").unwrap(), 7)).await;
        assert_eq!(values(&session, loaded.tensor("x").unwrap()).await[3][..3], [7, 7, 7]);
    });
    end(&session);
}

fn notes_come_back_with_the_tensors(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    block_on(async {
        let (same, _) = crate::handles(&session, 2).await;
        let saving = checkpoint::save(&session, folder.path(), 2, [("same", &same)]).await.unwrap();
        saving.note("losses", "[0.5, 0.25]").note("seed", "1").note("seed", "\"2\"\n").await.unwrap();
        let loaded = checkpoint::load(&session, folder.path()).await.unwrap().unwrap();
        assert_eq!((loaded.note("losses"), loaded.note("seed")), (Some("[0.5, 0.25]"), Some("\"2\"\n")));
        assert_eq!(loaded.note("none"), None);
        assert_eq!(loaded.names().collect::<Vec<_>>(), ["same"]);
    });
    end(&session);
}

fn tensors_of_their_own_load_in_the_same_world_only(kind: Kind) {
    let (folder, four) = (tempfile::tempdir().unwrap(), session(kind));
    block_on(async {
        // Worker 2 has none.
        let own = |worker: usize| (worker != 2).then(|| numbers(worker as i32, worker + 1));
        let own = scattered(&four, own).await;
        checkpoint::save(&four, folder.path(), 3, [("own", &own, Layout::PerWorker)]).await.unwrap().await.unwrap();
        let loaded = checkpoint::load(&four, folder.path()).await.unwrap().unwrap();
        let tensors: Vec<Option<Tensor>> = four.get_all(loaded.tensor("own").unwrap()).await.unwrap();
        let found: Vec<Option<Vec<i32>>> = tensors.iter().map(|t| t.as_ref().map(|t| t.to_vec().unwrap())).collect();
        assert_eq!(found, [Some(vec![0]), Some(vec![1, 2]), None, Some(vec![3, 4, 5, 6])]);
        let error = checkpoint::load_only(&four, folder.path(), [("own", Layout::Replicated)]).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "`{}`: tensor `own`: it was saved different on each worker, and can't be loaded replicated",
                folder.path().join("step-000003").display()
            )
        );
    });
    end(&four);
    let two = disco::Builder::threads(2).start().unwrap();
    let error = block_on(checkpoint::load(&two, folder.path())).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "`{}`: tensor `own` is different on each worker; 4 workers saved it, and this session has 2; load it with 4 \
             workers, or load the other tensors only",
            folder.path().join("step-000003").display()
        )
    );
    end(&two);
}

fn the_order_of_the_writes_does_not_matter(kind: Kind) {
    let session = session(kind);
    let contents = |delays: [i64; 4]| {
        let folder = tempfile::tempdir().unwrap();
        block_on(async {
            let (same, split) = crate::handles(&session, 1).await;
            session.call("tests.delay", (disco::Shape::from(delays),)).await.unwrap();
            let entries = [("same", &same, Layout::Replicated), ("split", &split, Layout::split(0))];
            checkpoint::save(&session, folder.path(), 1, entries).await.unwrap().await.unwrap();
        });
        let checkpoint = folder.path().join("step-000001");
        let files = crate::names(&checkpoint);
        files.into_iter().map(|name| (std::fs::read(checkpoint.join(&name)).unwrap(), name)).collect::<Vec<_>>()
    };
    let first = contents([0, 0, 0, 0]);
    assert_eq!(first, contents([60, 40, 20, 0]));
    assert_eq!(first, contents([0, 40, 0, 60]));
    end(&session);
}

fn entries_that_are_not_what_their_layout_says_are_refused(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    // The text of the error behind the path of the checkpoint, with the worker before it.
    let checkpoint = format!("`{}`: ", folder.path().join("step-000001").display());
    let text = |error: checkpoint::Error| {
        let text = error.to_string();
        let (worker, problem) = text.split_once(&checkpoint).unwrap_or_else(|| panic!("{text}"));
        format!("{worker}{problem}")
    };
    let refused = |handle: &disco::DRef, layout: Layout| {
        let saved = async { checkpoint::save(&session, folder.path(), 1, [("x", handle, layout)]).await?.await };
        text(block_on(saved).unwrap_err())
    };
    let split = block_on(scattered(&session, |worker| Some(numbers(3 * worker as i32, 3))));
    let differs = "its layout is replicated; save it with the layout that it has, such as `Layout::split(0)` or \
                   `Layout::PerWorker`";
    assert_eq!(
        refused(&split, Layout::Replicated),
        format!("tensor `x`: it differs between worker 0 and worker 1: other elements; {differs}")
    );
    let shapes = block_on(scattered(&session, |worker| Some(numbers(0, 1 + worker / 2))));
    assert_eq!(
        refused(&shapes, Layout::Replicated),
        format!("tensor `x`: it differs between worker 0 and worker 2: I32[1] and I32[2]; {differs}")
    );
    assert_eq!(
        refused(&split, Layout::split(1)),
        "tensor `x`: of shape [3] is split along dimension 1, which it does not have"
    );
    let some = block_on(scattered(&session, |worker| (worker != 3).then(|| numbers(0, 1))));
    assert_eq!(
        refused(&some, Layout::Replicated),
        "worker 3: tensor `x`: the worker has no tensor, and the layout is replicated"
    );
    let number = block_on(session.call("tests.process", ())).unwrap();
    assert_eq!(refused(&number, Layout::PerWorker), "worker 0: tensor `x`: the handle is of an int, not of a tensor");
    let twice = block_on(async { checkpoint::save(&session, folder.path(), 1, [("x", &split), ("x", &split)]).await });
    assert_eq!(text(twice.unwrap_err()), "tensor `x`: two entries have this name");
    let reserved = block_on(async { checkpoint::save(&session, folder.path(), 1, [("__metadata__", &split)]).await });
    assert_eq!(text(reserved.unwrap_err()), "tensor `__metadata__`: safetensors reserves this name");
    assert_eq!(crate::names(folder.path()), [""; 0], "no folder is left");
    // The session is usable.
    block_on(save_numbers(&session, folder.path(), 1)).unwrap();
    end(&session);
}

fn requests_that_do_not_fit_are_refused(kind: Kind) {
    let (folder, session) = (tempfile::tempdir().unwrap(), session(kind));
    assert!(block_on(checkpoint::load(&session, folder.path())).unwrap().is_none());
    assert!(block_on(checkpoint::load(&session, folder.path().join("none"))).unwrap().is_none());
    block_on(save_numbers(&session, folder.path(), 1)).unwrap();
    let path = folder.path().join("step-000001");
    let refused = |name: &str, layout: Layout| {
        block_on(checkpoint::load_only(&session, folder.path(), [(name, layout)])).unwrap_err().to_string()
    };
    assert_eq!(
        refused("splitt", Layout::Replicated),
        format!("`{}` has no tensor `splitt`; did you mean `split`?", path.display())
    );
    assert_eq!(
        refused("same", Layout::split(1)),
        format!("`{}`: tensor `same`: it has the shape [5], and no dimension 1 to split", path.display())
    );
    assert_eq!(
        refused("same", Layout::PerWorker),
        format!(
            "`{}`: tensor `same`: it was saved replicated, and can't be loaded different on each worker",
            path.display()
        )
    );
    assert_eq!(
        refused("same", Layout::split(0)),
        format!(
            "`{}`: tensor `same` of shape [5] can't be split over 4 ranks: dimension 0 has 5 elements, which 4 does not \
             divide",
            path.display()
        )
    );
    block_on(async {
        let loaded = checkpoint::load_only(&session, folder.path(), ["same"]).await.unwrap().unwrap();
        let error = loaded.tensor("split").unwrap_err().to_string();
        assert_eq!(error, format!("`{}` has no tensor `split`", path.display()));
    });
    end(&session);
}
