"""The client `openai` against a server: texts, streams, errors, and a lost worker.

Arguments: the server's address, its token, its process, and the processes of its workers. The server has ended afterwards.
"""

import os
import signal
import sys
import threading
import time

import openai

address, token = sys.argv[1:3]
server, *workers = [int(process) for process in sys.argv[3:]]
client = openai.OpenAI(base_url=f"http://{address}/v1", api_key=token)
PROMPT = "The river was"
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "What is gravity?"}]
# Texts of the model, whose end token is as probable as others, would end anywhere.
GREEDY = {"temperature": 0, "extra_body": {"ignore_eos": True}}


def complete(client=client, **options):
    options = {"model": model, "prompt": PROMPT, "max_tokens": 40, **GREEDY, **options}
    return client.completions.create(**options)


def chat(**options):
    options = {"model": model, "messages": MESSAGES, "max_tokens": 40, **GREEDY, **options}
    return client.chat.completions.create(**options)


def raised(kind, call, *words):
    """The error that a call raises."""
    try:
        call()
    except openai.APIError as error:
        assert type(error) is kind, repr(error)
        assert all(word in str(error) for word in words), str(error)
        return error
    raise AssertionError(f"no {kind.__name__}")


def the_list_has_the_model():
    listed = client.models.list().data
    assert [entry.id for entry in listed] == [model] and listed[0].object == "model"


def a_stream_has_the_text_of_a_whole_answer():
    whole = complete()
    chunks = list(complete(stream=True))
    assert len(chunks) > 5
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text != ""
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (5, 40, 45)


def a_stream_of_a_chat_has_the_text_of_a_whole_answer():
    whole = chat()
    assert whole.choices[0].message.role == "assistant" and whole.choices[0].finish_reason == "length"
    chunks = list(chat(stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content != ""


def usage_ends_a_stream_that_asks_for_it():
    for call in [complete, chat]:
        usage = call().usage
        chunks = list(call(stream=True, stream_options={"include_usage": True}))
        assert chunks[-1].choices == [] and chunks[-1].usage == usage
        assert all(chunk.usage is None for chunk in chunks[:-1])


def logprobs_are_those_of_the_most_probable_tokens():
    entries = chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(entries) == 40
    for entry in entries:
        assert entry.logprob == entry.top_logprobs[0].logprob < 0 and entry.token == entry.top_logprobs[0].token
        assert len(entry.top_logprobs) == 3
    found = complete(logprobs=2, echo=True, max_tokens=3).choices[0].logprobs
    assert len(found.token_logprobs) == 8 and found.token_logprobs[0] is None
    assert found.text_offset[0] == 0 and "".join(found.tokens).startswith(PROMPT)


def a_stop_string_ends_the_text_before_it():
    text = complete().choices[0].text
    stop = text[10:14]
    for stream in [False, True]:
        answer = complete(stop=[stop, "never"], stream=stream)
        chunks = list(answer) if stream else [answer]
        assert "".join(chunk.choices[0].text for chunk in chunks) == text[: text.index(stop)]
        assert chunks[-1].choices[0].finish_reason == "stop"


def a_seed_repeats_a_text_and_another_one_does_not():
    first, same, other = (complete(temperature=1, seed=seed).choices[0].text for seed in [7, 7, 8])
    assert first == same != other


def choices_differ_and_are_those_of_a_stream():
    options = {"n": 3, "temperature": 1, "seed": 3}
    choices = sorted(complete(**options).choices, key=lambda choice: choice.index)
    texts = [choice.text for choice in choices]
    assert len(set(texts)) == 3
    streamed = ["", "", ""]
    for chunk in complete(stream=True, **options):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == texts


def prompts_can_be_several_and_tokens():
    tokens = client.post(f"http://{address}/tokenize", body={"prompt": PROMPT}, cast_to=object)["tokens"]
    both = complete(prompt=[PROMPT, "a"]).choices
    assert complete(prompt=tokens).choices[0].text == both[0].text != both[1].text


def errors_have_the_classes_of_their_status():
    raised(openai.NotFoundError, lambda: complete(model="another"), "another", model)
    error = raised(openai.BadRequestError, lambda: complete(max_tokens=10_000), "10000", "256")
    assert error.code == "context_length_exceeded"
    error = raised(openai.BadRequestError, lambda: chat(temperature=9), "temperature")
    assert error.param == "temperature" and error.type == "invalid_request_error"
    raised(openai.BadRequestError, lambda: chat(tools=[{"type": "function", "function": {"name": "f"}}]), "tools")
    stranger = openai.OpenAI(base_url=client.base_url, api_key="another")
    raised(openai.AuthenticationError, lambda: complete(stranger), "token")


def until(condition):
    while not condition():
        time.sleep(0.01)


def a_full_server_is_asked_again():
    """The worker stands still, so that requests wait until there are too many."""
    expected = complete().choices[0].text
    os.kill(workers[0], signal.SIGSTOP)
    # Each has 16 of 256 seats.
    waiting = [threading.Thread(target=complete, kwargs={"n": 16, "max_tokens": 1}) for _ in range(16)]
    for thread in waiting:
        thread.start()
    until(lambda: metric("vllm:num_requests_running") + metric("vllm:num_requests_waiting") >= 256)
    error = raised(openai.RateLimitError, lambda: complete(client.with_options(max_retries=0)), "256")
    assert error.code == "too_many_requests" and error.response.headers["retry-after"] == "1"
    again = {}

    def ask_again():
        answer = client.with_options(max_retries=9).completions.with_raw_response.create(model=model, prompt=PROMPT, max_tokens=40, **GREEDY)
        again.update(retries=answer.retries_taken, text=answer.parse().choices[0].text)

    asking = threading.Thread(target=ask_again)
    asking.start()
    # Until the server has refused it once.
    refusals = metric("disco_serve_rejections_total", 'reason="too_many_requests"')
    until(lambda: metric("disco_serve_rejections_total", 'reason="too_many_requests"') > refusals)
    os.kill(workers[0], signal.SIGCONT)
    for thread in [asking, *waiting]:
        thread.join()
    assert again["retries"] > 0 and again["text"] == expected, again


def a_stream_goes_on_after_a_lost_worker():
    expected = complete(max_tokens=200).choices[0].text
    stream = complete(max_tokens=200, stream=True)
    text = "".join(next(stream).choices[0].text for _ in range(5))
    os.kill(workers[1], signal.SIGKILL)
    text += "".join(chunk.choices[0].text for chunk in stream)
    assert text == expected
    assert metric("disco_serve_repairs_total") >= 1


def a_server_that_ends_is_an_internal_server_error_and_completes_streams():
    expected = complete(max_tokens=240).choices[0].text
    stream = complete(max_tokens=240, stream=True)
    text = next(stream).choices[0].text
    os.kill(server, signal.SIGTERM)
    while True:
        try:
            complete(client.with_options(max_retries=0), max_tokens=1)
        except openai.InternalServerError as error:
            assert error.status_code == 503 and "shutting down" in str(error), str(error)
            break
    assert text + "".join(chunk.choices[0].text for chunk in stream) == expected


def metric(name, label=""):
    """The sum of a metric's values."""
    text = client.get(f"http://{address}/metrics", cast_to=str)
    lines = (line for line in text.splitlines() if line.startswith(name) and label in line)
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


model = client.models.list().data[0].id
for check in [
    the_list_has_the_model,
    a_stream_has_the_text_of_a_whole_answer,
    a_stream_of_a_chat_has_the_text_of_a_whole_answer,
    usage_ends_a_stream_that_asks_for_it,
    logprobs_are_those_of_the_most_probable_tokens,
    a_stop_string_ends_the_text_before_it,
    a_seed_repeats_a_text_and_another_one_does_not,
    choices_differ_and_are_those_of_a_stream,
    prompts_can_be_several_and_tokens,
    errors_have_the_classes_of_their_status,
    a_full_server_is_asked_again,
    a_stream_goes_on_after_a_lost_worker,
    a_server_that_ends_is_an_internal_server_error_and_completes_streams,
]:
    check()
    print("ok", check.__name__, flush=True)
