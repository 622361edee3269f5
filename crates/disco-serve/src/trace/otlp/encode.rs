//! Spans as the JSON of OTLP (`opentelemetry-proto`, `ExportTraceServiceRequest`).

use serde_json::{Value, json};

use crate::trace::{Event, Span, Trace};

/// The kind of a span that answers a request of another program, and of its parts.
const SERVER: u8 = 2;
const INTERNAL: u8 = 1;
/// The status of a span that has failed.
const ERROR: u8 = 2;
/// Flags of a span: its trace is recorded; it is known whether its parent is of another program; it is.
const SAMPLED: u32 = 1;
const KNOWS_PARENT: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// The body of a request with these traces, of a program with these attributes.
pub(super) fn body(traces: &[Trace], resource: &[(String, String)]) -> Value {
    let spans: Vec<_> = traces.iter().flat_map(|trace| trace.spans.iter().map(|one| span(trace, one))).collect();
    let given = resource.iter().map(|(name, text)| json!({"key": name, "value": {"stringValue": text}}));
    let own = [
        attribute("service.version", &env!("CARGO_PKG_VERSION").into()),
        attribute("process.pid", &std::process::id().into()),
    ];
    let attributes: Vec<_> = given.chain(own).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": attributes},
        "scopeSpans": [{"scope": {"name": "disco-serve", "version": env!("CARGO_PKG_VERSION")}, "spans": spans}],
    }]})
}

fn span(trace: &Trace, span: &Span) -> Value {
    let is_whole = trace.spans.first().is_some_and(|first| first.id == span.id);
    let flags = SAMPLED | KNOWS_PARENT | if span.has_remote_parent { IS_REMOTE } else { 0 };
    let mut json = json!({
        "traceId": format!("{:032x}", trace.id),
        "spanId": format!("{:016x}", span.id),
        "traceState": trace.state,
        "flags": flags,
        "name": span.name,
        "kind": if is_whole { SERVER } else { INTERNAL },
        "startTimeUnixNano": span.start.to_string(),
        "endTimeUnixNano": span.end.to_string(),
        "attributes": attributes(&span.attributes),
        "events": span.events.iter().map(event).collect::<Vec<_>>(),
    });
    if let Some(parent) = span.parent {
        json["parentSpanId"] = format!("{parent:016x}").into();
    }
    if let Some(why) = &span.failure {
        json["status"] = json!({"code": ERROR, "message": why});
    }
    json
}

fn event(event: &Event) -> Value {
    let attributes = attributes(&event.attributes);
    json!({"timeUnixNano": event.time.to_string(), "name": event.name, "attributes": attributes})
}

fn attributes(attributes: &[(&'static str, Value)]) -> Vec<Value> {
    attributes.iter().map(|(name, value)| attribute(name, value)).collect()
}

fn attribute(name: &str, value: &Value) -> Value {
    json!({"key": name, "value": any(value)})
}

fn any(value: &Value) -> Value {
    match value {
        Value::Array(values) => json!({"arrayValue": {"values": values.iter().map(any).collect::<Vec<_>>()}}),
        Value::Bool(value) => json!({"boolValue": value}),
        Value::Number(number) if number.is_f64() => json!({"doubleValue": number}),
        // Integers of 64 bits are texts in the JSON of protobuf.
        Value::Number(number) => json!({"intValue": number.to_string()}),
        other => json!({"stringValue": other}),
    }
}
