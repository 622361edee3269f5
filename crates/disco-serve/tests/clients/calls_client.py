"""The client `openai` against a server whose model has random weights: calls of tools in streams of chats and responses.

Arguments: the server's address and its token.
"""

import json
import sys

import openai

address, token = sys.argv[1:3]
client = openai.OpenAI(base_url=f"http://{address}/v1", api_key=token, max_retries=0)

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "The weather of a city.", "parameters": SCHEMA, "strict": True}


def check(name, arguments, pieces):
    assert name == "weather" and arguments == "".join(pieces) and len(pieces) > 1, (name, arguments, pieces)
    arguments = json.loads(arguments)
    assert len(arguments["city"]) <= 6 and 1 <= arguments["days"] <= 7, arguments


messages = [{"role": "user", "content": "Is it raining?"}]
for seed in range(4):
    with client.chat.completions.stream(
        model="tiny", messages=messages, tools=[{"type": "function", "function": FUNCTION}], tool_choice="required",
        parallel_tool_calls=False, max_tokens=400, seed=seed,
    ) as stream:
        pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        choice = stream.get_final_completion().choices[0]
    [call] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and call.function.parsed_arguments, choice
    check(call.function.name, call.function.arguments, [piece for piece in pieces if piece])
    function = {"name": call.function.name, "arguments": call.function.arguments}
    messages.append({"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]})
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "rain"})

    with client.responses.stream(
        model="tiny", input="Is it raining?", tools=[{"type": "function", **FUNCTION}], tool_choice="required",
        parallel_tool_calls=False, max_output_tokens=400, extra_body={"seed": seed},
    ) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        [item] = stream.get_final_response().output
    check(item.name, item.arguments, pieces)
