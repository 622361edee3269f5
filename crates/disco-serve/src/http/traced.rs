//! The spans of a request for texts or vectors.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse as _, Response};

use super::request_id::{RequestId, TRACERESPONSE};
use super::shared::Shared;
use crate::api::ApiError;
use crate::trace::{Context, Recorder};

/// The header in which a client says which span the request is a part of, and the one beside it.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// What the handlers of texts and vectors take.
pub(super) type Called = (State<Arc<Shared>>, Extension<RequestId>, Request);

/// A request that was not answered yet. If it is dropped before, its client has left, or its handler has panicked.
pub(super) struct Traced {
    pub(super) recorder: Recorder,
    response: Option<HeaderValue>,
    is_answered: bool,
}

impl Traced {
    /// Records a request for `operation` from now on, if the server has a collector.
    pub(super) fn begin(shared: &Shared, operation: &'static str, request: &Request, id: &RequestId) -> Self {
        let none = || Self { recorder: Recorder::default(), response: None, is_answered: false };
        let Some(queue) = &shared.spans else { return none() };
        let model = &*shared.name;
        let (recorder, response) = queue.record(format!("{operation} {model}"), parent(request.headers()));
        recorder.note(|| {
            [
                ("gen_ai.operation.name", Some(operation.into())),
                ("gen_ai.provider.name", Some("disco".into())),
                ("gen_ai.request.model", Some(model.into())),
                ("http.request.method", Some(request.method().as_str().into())),
                ("http.route", Some(request.uri().path().into())),
                ("disco.request.id", Some((&*id.0).into())),
            ]
        });
        Self { recorder, response: HeaderValue::from_str(&response).ok(), is_answered: false }
    }

    /// The response to the request, or its head: texts that follow are recorded by clones of the recorder.
    pub(super) fn answer(mut self, result: Result<Response, ApiError>) -> Response {
        self.is_answered = true;
        let mut answer = result.unwrap_or_else(|error| {
            fail(&self.recorder, &error);
            error.into_response()
        });
        self.recorder.note(|| [("http.response.status_code", Some(usize::from(answer.status().as_u16()).into()))]);
        answer.headers_mut().extend(self.response.take().map(|response| (TRACERESPONSE, response)));
        answer
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if !self.is_answered {
            leave(&self.recorder);
        }
    }
}

/// Records that nothing more is to come of a request, for another reason than an error of its own.
pub(super) fn leave(recorder: &Recorder) {
    if std::thread::panicking() {
        fail(recorder, &ApiError::Panicked);
    } else {
        recorder.fail("cancelled", false, String::new);
    }
}

/// Records an error of a request.
pub(super) fn fail(recorder: &Recorder, error: &ApiError) {
    recorder.fail(error.code(), error.status() >= 500, || error.to_string());
}

/// The span of the client that a request is a part of.
fn parent(headers: &HeaderMap) -> Option<Context> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    // Several ones are none.
    let (Some(parent), None) = (parents.next(), parents.next()) else { return None };
    let states = headers.get_all(TRACESTATE).iter().filter_map(|state| state.to_str().ok());
    Context::parse(parent.to_str().ok()?, &states.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_several_headers_are_joined_and_several_parents_are_none() {
        let parent_of = |pairs: &[(HeaderName, &'static str)]| {
            let pairs = pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            let mut headers = HeaderMap::new();
            pairs.for_each(|(name, value)| _ = headers.append(name, value));
            parent(&headers)
        };
        let one = (TRACEPARENT, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let [first, second] = [(TRACESTATE, "a=1"), (TRACESTATE, "b=2")];
        assert_eq!(parent_of(&[one.clone(), first.clone(), second]).unwrap().state, "a=1,b=2");
        assert_eq!(parent_of(&[one.clone(), one, first.clone()]), None);
        assert_eq!(parent_of(&[first]), None);
    }
}
