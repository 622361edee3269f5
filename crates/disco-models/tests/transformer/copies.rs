//! Copies of a model along an axis of a mesh, each with its own batch.

use candle_core::quantized::GgmlDType;
use disco::{Builder, DRef, Json, LaneSession, Mesh, Value, WorkerId, block_on};
use disco_models::Precision;
use disco_models::worker::Load;

use super::random::{Model, NINE_HEADS};
use super::reference::Reference;
use super::tokens::{batch, prompt};

const COUNT: usize = 12;

/// Loads the model, or goes on with a kept one.
fn load(session: &LaneSession, load: &Load, kept: Option<&DRef>) -> disco::Result<DRef> {
    block_on(async {
        let kept = match kept {
            Some(kept) => session.call("disco.models.load", (Json(load.clone()), kept)).await?,
            None => session.call("disco.models.load", (Json(load.clone()), Value::None)).await?,
        };
        session.sync_all().await?;
        Ok(kept)
    })
}

/// The tokens that each worker has after a batch of one prompt; workers of copy `i` get prompt `i`.
fn generate(session: &LaneSession, state: &DRef, mesh: &Mesh, prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut texts = vec![Vec::new(); session.world().size()];
    block_on(async {
        let batches = session.call("tests.process", ()).await.unwrap();
        let own = |worker: WorkerId| {
            let copy = mesh.coordinate("dp", worker).unwrap();
            Json(batch(&prompts[copy..=copy]))
        };
        session.set_each(&batches, own).await.unwrap();
        let mut tokens = session.call("disco.models.prompt", (state, &batches)).await.unwrap();
        for _ in 0..COUNT {
            let found: Vec<Json<Vec<Option<u32>>>> = session.get_all(&tokens).await.unwrap();
            texts.iter_mut().zip(found).for_each(|(text, found)| text.push(found.0[0].unwrap()));
            tokens = session.call("disco.models.next", (state,)).await.unwrap();
        }
        session.sync_all().await.unwrap();
    });
    texts
}

#[test]
fn each_copy_along_an_axis_gives_the_tokens_of_one_process_also_after_a_loss() {
    disco::init_test!();
    let model = Model::gguf(NINE_HEADS, 31, GgmlDType::F32);
    let prompts = [7, 11].map(|len| prompt(len, len, NINE_HEADS.vocabulary));
    let mut reference = Reference::open(&model.path());
    let expected = prompts.each_ref().map(|prompt| reference.generate(prompt, COUNT).0);
    // Ranks of a copy are consecutive workers, and then workers with a worker of the other copy between them.
    for text in ["dp=2,tp=2", "tp=2,dp=2"] {
        let mesh: Mesh = text.parse().unwrap();
        let mut argument = Load::new(model.path(), Precision::F32);
        argument.over = mesh.along(&["tp"]).unwrap();
        let of_copies: Vec<_> =
            (0..4).map(|worker| expected[mesh.coordinate("dp", WorkerId::new(worker)).unwrap()].clone()).collect();
        let session = Builder::processes(4).start().unwrap();
        block_on(session.init_ccl("local", &[])).unwrap();
        let state = load(&session, &argument, None).unwrap();
        assert_eq!(generate(&session, &state, &mesh, &prompts), of_copies, "{mesh}");

        let pids = block_on(async {
            let pids = session.call("tests.process", ()).await?;
            session.get_all::<u32>(&pids).await
        });
        let killed = std::process::Command::new("kill").args(["-9", &pids.unwrap()[3].to_string()]).status();
        assert!(killed.unwrap().success());
        block_on(session.sync_all()).unwrap_err();
        block_on(session.replace_lost()).unwrap();
        block_on(session.init_ccl("local", &[])).unwrap();
        block_on(session.set(&state, WorkerId::new(3), Value::None)).unwrap();
        let state = load(&session, &argument, Some(&state)).unwrap();
        assert_eq!(generate(&session, &state, &mesh, &prompts), of_copies, "{mesh} after a loss");
        block_on(session.shutdown()).unwrap();
    }
}

#[test]
fn a_mesh_that_does_not_fit_is_an_error_of_the_load() {
    let model = Model::gguf(NINE_HEADS, 32, GgmlDType::F32);
    let mut argument = Load::new(model.path(), Precision::F32);
    argument.over = Mesh::new([("dp", 2), ("tp", 2)]).unwrap().along(&["tp"]).unwrap();
    let session = Builder::threads(2).start().unwrap();
    block_on(session.init_ccl("local", &[])).unwrap();
    let error = load(&session, &argument, None).unwrap_err().to_string();
    let why = "mesh `dp=2,tp=2` has 4 places, and the session has 2 workers; `dp=1,tp=2` or `dp=2,tp=1` would fit";
    assert!(error.contains("disco.models.load") && error.contains(why), "{error}");
    block_on(session.shutdown()).unwrap();
}
