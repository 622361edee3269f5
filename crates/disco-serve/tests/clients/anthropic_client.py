"""The client `anthropic` against a server whose model has random weights: messages, streams, tools, errors, and a lost worker.

Arguments: the server's address, its token, and the processes of its workers.
"""

import os
import signal
import sys

import anthropic

address, token = sys.argv[1:3]
workers = [int(process) for process in sys.argv[3:]]
client = anthropic.Anthropic(base_url=f"http://{address}", api_key=token)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
OPTIONS = {
    "model": "tiny",
    "max_tokens": 200,
    "system": "Be kind.",
    "tools": [{"name": "weather", "description": "The weather of a city.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
}


def check(message):
    """The call of a message that must have one."""
    [call] = message.content
    assert (call.type, call.name, message.stop_reason) == ("tool_use", "weather", "tool_use"), message
    assert len(call.input["city"]) <= 6 and 1 <= call.input["days"] <= 7, call
    return call


def streamed(messages):
    with client.messages.stream(messages=messages, **OPTIONS) as stream:
        kinds = [event.type for event in stream]
        assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
        assert kinds.count("input_json") > 1, kinds
        return stream.get_final_message()


# A loop of tools: the model calls, and gets the result.
messages = [{"role": "user", "content": "Is it raining?"}]
for turn in range(3):
    call = check(client.messages.create(messages=messages, **OPTIONS) if turn == 0 else streamed(messages))
    messages.append({"role": "assistant", "content": [call.model_dump(include={"type", "id", "name", "input"})]})
    messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]})
    if turn == 0:
        os.kill(workers[1], signal.SIGKILL)

plain = {"model": "tiny", "messages": messages[:1], "max_tokens": 20}
text = client.messages.create(**plain)
assert [block.type for block in text.content] == ["text"] and text.stop_reason in ("max_tokens", "end_turn"), text
counted = client.messages.count_tokens(model="tiny", messages=messages, tools=OPTIONS["tools"], system="Be kind.")
assert counted.input_tokens > client.messages.count_tokens(model="tiny", messages=messages[:1]).input_tokens > 0
for kind, changed in [
    (anthropic.NotFoundError, {"model": "other"}),
    (anthropic.BadRequestError, {"max_tokens": 0}),
    (anthropic.AuthenticationError, {}),
]:
    try:
        asked = client if changed else client.with_options(api_key="wrong")
        asked.messages.create(**{**plain, **changed})
    except kind as error:
        assert error.body["type"] == "error", error.body
    else:
        raise AssertionError(f"no {kind.__name__}")
