"""The framework `pydantic-ai` against a server whose model has prescribed texts: a loop of three calls over both interfaces, at once and as
streams, and through a lost worker.

Arguments: as `journey.py` says.
"""

import asyncio
import json
import os
import signal

from pydantic_ai import Agent, AgentRunResultEvent, NativeOutput, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta, ThinkingPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from journey import Stop, address, book, calls, repairs, said, texts, weather, workers

# Without a text before the calls, the answer is of a schema.
output_type = str if said["first"] else NativeOutput(Stop)


def check(result):
    assert result.output == (said["last"] if output_type is str else Stop(**json.loads(said["last"]))), result.output
    assert calls == said["calls"], calls
    calls.clear()
    parts = [part for message in result.all_messages() if message.kind == "response" for part in message.parts]
    assert [part.content for part in parts if isinstance(part, TextPart)] == texts, parts
    for thought in (part for part in parts if isinstance(part, ThinkingPart)):
        # What is no summary of a response's reasoning is a detail of it.
        assert said["thought"] in [thought.content, *(thought.provider_details or {}).get("raw_content", [])], thought
    assert sum(isinstance(part, ThinkingPart) for part in parts) == bool(said["first"]), parts
    assert result.usage.requests == 4 and result.usage.output_tokens > 0, result.usage


async def streamed(agent, victim=None):
    text, result = "", None
    async with agent.run_stream_events("Plan my journey.") as events:
        async for event in events:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                text += event.part.content
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                text += event.delta.content_delta
                if victim is not None:
                    os.kill(victim, signal.SIGKILL)
                    victim = None
            elif isinstance(event, AgentRunResultEvent):
                result = event.result
    assert text == "".join(texts), text
    check(result)


async def main():
    provider = OpenAIProvider(base_url=f"http://{address}/v1", api_key="unused")
    for model in [OpenAIChatModel, OpenAIResponsesModel]:
        for settings in [{}, {"parallel_tool_calls": False, "temperature": 0.5, "max_tokens": 5000}]:
            model_of_server = model("prescribed", provider=provider)
            agent = Agent(model_of_server, instructions="Be kind.", tools=[weather, book], model_settings=settings, output_type=output_type)
            check(await agent.run("Plan my journey."))
            await streamed(agent)
        if workers:
            before = repairs()
            await streamed(agent, workers.pop())
            assert repairs() == before + 1, repairs()


asyncio.run(main())
