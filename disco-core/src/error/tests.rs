//! Texts of errors, and the cause of an error that wraps another one.

use super::*;
use crate::id::Rank;

#[derive(Debug, thiserror::Error)]
#[error("step failed")]
struct Step(#[source] Box<dyn StdError>);

#[test]
fn a_remedy_stands_below_a_table_on_a_line_of_its_own() {
    let failure = |causes: &[&str]| {
        Arc::new(Failure {
            worker: WorkerId::new(1),
            command: 7,
            operation: "f".into(),
            register: None,
            message: "no end".into(),
            causes: causes.iter().map(|cause| (*cause).to_owned()).collect(),
            aborted: false,
            kind: ErrorKind::User,
            user: None,
        })
    };
    let earlier = |causes| Error::Earlier { operation: "call".into(), failure: failure(causes) }.to_string();
    let start = "call: not submitted, because an earlier command failed: worker 1: f (command 7): no end";
    let remedy = "`recover` or `init_ccl` makes the workers forget the failure";
    assert_eq!(earlier(&[]), format!("{start}; {remedy}"));
    let table = "x\nMissing: worker 2 has not called it.";
    assert_eq!(earlier(&[table]), format!("{start}: {table}\n{remedy}"));
}

#[test]
fn the_system_error_is_a_source_and_appears_in_the_text_once() {
    let error = Error::system("can't read `weights`", io::ErrorKind::NotFound);
    assert_eq!(error.to_string(), "can't read `weights`: entity not found");
    let kind = error.source().and_then(|source| source.downcast_ref::<Arc<io::Error>>()).map(|error| error.kind());
    assert_eq!(kind, Some(io::ErrorKind::NotFound));
    assert_eq!(causes(&error), [""; 0]);
    assert_eq!(causes(&Step(error.into())), ["can't read `weights`: entity not found"]);
}

#[test]
fn debug_prints_the_text_and_alternate_debug_the_kind_and_the_fields() {
    let late = Error::Deadline {
        operation: "start".into(),
        after: Duration::from_secs(30),
        state: "node 1 did not join".into(),
    };
    assert_eq!(format!("{late:?}"), "start: no end after 30s: node 1 did not join");
    let fields = format!("{late:#?}");
    assert!(
        fields.starts_with("Error {\n    text: \"start: no end") && fields.contains("kind: Deadline {"),
        "{fields}"
    );
    let system = Error::system("can't read `weights`", io::ErrorKind::NotFound);
    assert_eq!(format!("{system:?}"), "can't read `weights`: entity not found");
}

#[test]
fn the_kind_of_an_error_is_found_below_a_wrapping_error() {
    let kind = |error: Box<dyn StdError>| ErrorKind::of(&Step(error));
    let no_memory = Error::OutOfMemory { bytes: 7, memory: Memory::Host, why: None };
    assert_eq!(kind(no_memory.into()), ErrorKind::OutOfMemory { bytes: 7 });
    assert_eq!(kind(io::Error::from_raw_os_error(28).into()), ErrorKind::System { code: Some(28) });
    assert_eq!(kind(Error::system("no room", io::Error::other("x")).into()), ErrorKind::System { code: None });
    assert_eq!(kind(Unavailable::new("libnccl").into()), ErrorKind::Unavailable);
    assert_eq!(kind("a text".into()), ErrorKind::User);
}

#[test]
fn from_text_is_the_inverse_of_as_text() {
    let made = [Error::invalid("a"), Error::missing("b"), Error::protocol("c"), Error::refused("d"), Error::state("e")];
    for error in made {
        let (variant, text) = error.as_text().unwrap();
        assert_eq!(format!("{:#?}", Error::from_text(variant, text).unwrap()), format!("{error:#?}"));
    }
    assert!(Error::NoCommunicator.as_text().is_none() && Error::from_text(5, "f").is_none());
}

#[test]
fn an_abort_is_found_below_a_wrapping_error_with_its_cause() {
    let cancelled = AbortCause::Cancelled { command: 4, why: "enough".into() };
    let dropped = Error::peer_lost(LostPeer::Rank(Rank::new(2)), LossCause::CommunicatorDropped);
    let broken = Error::Broken { operation: "barrier".into(), cause: cancelled.clone() };
    let closed = Error::peer_lost(LostPeer::Controller, LossCause::ConnectionClosed);
    for (error, cause) in [
        (Error::Aborted { cause: "worker 1 panicked".into() }, Some("worker 1 panicked".into())),
        (broken, Some(cancelled)),
        (dropped.clone(), Some(AbortCause::Dropped(Rank::new(2)))),
        (closed, None),
        (Error::NoCommunicator, None),
    ] {
        assert_eq!(AbortCause::find(&Step(error.into())), cause);
    }
    assert_eq!(AbortCause::of(&dropped).to_string(), dropped.to_string());
}
