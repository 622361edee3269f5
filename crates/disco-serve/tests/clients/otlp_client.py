"""Spans as the definition of OpenTelemetry's protocol reads them: the body of a request, from standard input."""

import json
import sys

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

body = json.load(sys.stdin)
# Names and types that the definition does not have are errors. Numbers of traces and spans are in hexadecimal digits, which
# are also digits of the base64 of other messages.
message = json_format.ParseDict(body, ExportTraceServiceRequest())
spans = message.resource_spans[0].scope_spans[0].spans
whole, *parts = spans
assert [span.name for span in spans] == ["text_completion llama-3", "waiting", "prompt", "generation"], spans
assert whole.kind == Span.SPAN_KIND_SERVER and all(part.kind == Span.SPAN_KIND_INTERNAL for part in parts)
assert not whole.parent_span_id and all(part.parent_span_id == whole.span_id for part in parts)
assert whole.start_time_unix_nano <= parts[0].start_time_unix_nano <= parts[-1].end_time_unix_nano == whole.end_time_unix_nano
attributes = {pair.key: pair.value for pair in whole.attributes}
assert attributes["gen_ai.usage.output_tokens"].int_value == 5, attributes
assert [value.string_value for value in attributes["gen_ai.request.stop_sequences"].array_value.values] == ["zz"]
assert attributes["gen_ai.request.temperature"].WhichOneof("value") == "double_value"
