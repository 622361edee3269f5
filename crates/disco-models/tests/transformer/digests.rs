//! Digests of logits, and texts that are computed again.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use disco::{Builder, DeviceKind, block_on};
use disco_candle::weights::Weights;
use disco_models::serving::{Digests, Params, Row, Sampled, Start, Tokens};
use disco_models::worker::Load;
use disco_models::{Config, Precision, Sampler, fingerprint};
use serde_json::{Value, json};

use super::families::{Case, cases};
use super::serving::{Served, start};
use super::verify::verify;

const WORKERS: usize = 2;
const COUNT: usize = 12;

/// A text with digests.
fn text(model: &Path, prompt: &[u32]) -> Digests {
    let mut params = Params::new(Sampler::new(0.9, 0.95, 7));
    (params.choice, params.digests_logits, params.logprobs) = (3, true, Some(2));
    (params.presence_penalty, params.repetition_penalty) = (0.5, 1.1);
    params.bias = vec![(5, 0.7)];
    let mut digests = Digests::new(prompt, params.clone(), false);
    let mut served = Served::new(WORKERS, model, 8);
    let mut row = start(0, prompt, (0..8).collect(), Start::new(params, prompt.len()));
    for at in prompt.len()..prompt.len() + COUNT {
        let reply = served.row(row);
        let Some(Sampled::Token(chosen)) = &reply.rows[0].sampled else { panic!("{reply:?}") };
        digests.push(chosen.id, chosen.digest);
        row = Row::new(0, at as u32, Tokens::Last);
        row.samples = true;
    }
    digests
}

/// What the program says of a reply with these digests, after a change.
fn verified(model: &Path, digests: &Digests, change: impl FnOnce(&mut Value)) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("reply.json");
    let mut reply = json!({"system_fingerprint": null, "choices": [{"index": 0, "logits_digest": digests}]});
    change(&mut reply);
    fs::write(&file, reply.to_string()).unwrap();
    let weights = Weights::open(model).unwrap();
    let config = Config::open(&weights).unwrap();
    let session = Builder::threads(WORKERS + 1).start().unwrap();
    block_on(session.init_ccl("local", &[])).unwrap();
    let load = Load::new(model.to_owned(), Precision::F32);
    verify(&file, (&weights, &config), load, session, &AtomicBool::new(false)).map_err(|error| error.to_string())
}

#[test]
fn a_reply_is_computed_again_and_its_first_difference_is_named() {
    let Case { folder, prompts, .. } = cases().into_iter().find(|case| case.folder.ends_with("llama-3")).unwrap();
    let digests = text(&folder, &prompts[0].prompt_ids);
    assert!(digests.digests.iter().collect::<std::collections::HashSet<_>>().len() > COUNT / 2, "{digests:?}");
    verified(&folder, &digests, |_| ()).unwrap();

    let place = |reply: &mut Value, of: &str, to: Value| reply["choices"][0]["logits_digest"][of][5] = to;
    let error = verified(&folder, &digests, |reply| place(reply, "digests", "0123456789abcdef".into())).unwrap_err();
    assert!(error.starts_with("text 0, token 5: the logits have the digest "), "{error}");
    let other = u32::from(digests.token_ids[5] == 0);
    let error = verified(&folder, &digests, |reply| place(reply, "token_ids", other.into())).unwrap_err();
    assert_eq!(error, format!("text 0, token 5: the token is {} here, and {other} in the reply", digests.token_ids[5]));
    // A grammar may have chosen it, and the next logits tell that it was another one.
    let error = verified(&folder, &digests, |reply| {
        place(reply, "token_ids", other.into());
        reply["choices"][0]["logits_digest"]["has_grammar"] = true.into();
    });
    assert!(error.unwrap_err().starts_with("text 0, token 6: the logits have the digest "));
    let error = verified(&folder, &digests, |reply| reply["choices"][0] = json!({"index": 0})).unwrap_err();
    assert!(error.contains("\"logits_digest\": true"), "{error}");
}

#[test]
fn fingerprints_tell_files_and_types_apart() {
    let case = |name: &str| cases().into_iter().find(|case| case.folder.ends_with(name)).unwrap().folder;
    let of = |model: &Path, precision| {
        fingerprint(&Weights::open(model).unwrap(), &Load::new(model.to_owned(), precision), DeviceKind::Cpu).unwrap()
    };
    let model = case("llama-3");
    let copy = tempfile::tempdir().unwrap();
    for file in fs::read_dir(&model).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    let own = of(&model, Precision::F32);
    assert_eq!(of(copy.path(), Precision::F32), own);
    assert_ne!(of(&model, Precision::F16), own);
    // One bit of the last tensor.
    let file = copy.path().join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_ne!(of(copy.path(), Precision::F32), own);
}
