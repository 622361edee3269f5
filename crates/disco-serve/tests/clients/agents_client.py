"""The framework `openai-agents` against a server whose model has prescribed texts: a loop of three calls over both interfaces, at once and as
streams, and through a lost worker.

Arguments: as `journey.py` says.
"""

import asyncio
import json
import os
import signal

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from journey import Stop, address, book, calls, repairs, said, texts, weather, workers

# Without a text before the calls, the answer is of a schema.
output_type = None if said["first"] else Stop
tools = [function_tool(weather), function_tool(book)]


def check(result):
    expected = Stop(**json.loads(said["last"])) if output_type else said["last"]
    assert result.final_output == expected, result.final_output
    assert calls == said["calls"], calls
    calls.clear()
    items = [item for response in result.raw_responses for item in response.output]
    thoughts = [item.model_dump_json() for item in items if item.type == "reasoning"]
    assert (len(thoughts) == 1 and said["thought"] in thoughts[0]) or not said["first"], thoughts
    messages = [item for item in items if item.type == "message"]
    assert [message.content[0].text for message in messages] == texts, messages
    # The instructions and the tools alone are more.
    assert all(response.usage.input_tokens > 50 and response.usage.output_tokens > 0 for response in result.raw_responses)
    assert len(result.raw_responses) == 4, result.raw_responses


async def streamed(agent, victim=None):
    result = Runner.run_streamed(agent, "Plan my journey.")
    text = ""
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
            if victim is not None:
                os.kill(victim, signal.SIGKILL)
                victim = None
    assert text == "".join(texts), text
    check(result)


async def main():
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"http://{address}/v1", api_key="unused", max_retries=0)
    for model in [OpenAIResponsesModel, OpenAIChatCompletionsModel]:
        model = model(model="prescribed", openai_client=client)
        for settings in [{}, {"parallel_tool_calls": False, "store": False, "temperature": 0.5}]:
            # Streams of chats tell their usage only if they are asked to.
            settings = ModelSettings(include_usage=True, **settings)
            agent = Agent("guide", instructions="Be kind.", model=model, model_settings=settings, tools=tools, output_type=output_type)
            check(await Runner.run(agent, "Plan my journey."))
            await streamed(agent)
        if workers:
            before = repairs()
            await streamed(agent, workers.pop())
            assert repairs() == before + 1, repairs()


asyncio.run(main())
