"""Measures disco-serve beside its floor, the steps of a full batch without scheduler and HTTP, and beside the server of llama.cpp,
in one run.

    cargo build --release --package disco-serve --bin disco-serve --example steps --example load
    python3 -m venv peers && peers/bin/pip install xllamacpp==2026.10.11549
    peers/bin/python testing/scripts/serving_speed.py MODEL.gguf

Two workers with one thread each beside two threads; prompts of about 50 tokens, texts of 64, as many requests at once as a line says, until
fewer are left. Then the share of the control plane: the time of worker 0 between two steps that follow each other. Last, eight texts at
once alone, while another client sends schemas that are dear to compile, one after the other, and while it sends the same prompts without
schemas: their prompts lengthen steps, too.
"""
import concurrent.futures
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

RELEASE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../target/release")
AT_ONCE = [1, 4, 8, 16, 32]
PORT = 8131
# What each turn of the client of hostile schemas replaces.
DESCRIPTION = "no turn yet"


def output(*command, **environment):
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}).stdout.strip()


def ready(url):
    for _ in range(600):
        try:
            return urllib.request.urlopen(url).status
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{url} is not ready")


def load(at_once):
    requests = str(max(6 * at_once, 16))
    return output(f"{RELEASE}/examples/load", "--at", f"127.0.0.1:{PORT}", "--at-once", str(at_once), "--requests", requests)


@contextlib.contextmanager
def serving(command, **environment):
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **environment})
    try:
        ready(f"http://127.0.0.1:{PORT}/ready" if "disco" in command[0] else f"http://127.0.0.1:{PORT}/health")
        time.sleep(3)
        yield
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()


def control_plane(command, at_once):
    """The share of the time between two steps of worker 0, while there are requests."""
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.json")
        with serving(command, DISCO_TRACE=trace):
            load(at_once)
        with open(trace) as file:
            events = json.load(file)
    of_lane = {}
    for event in events:
        if event.get("ph") == "X" and event["name"] == "disco.models.step" and event["dur"] > 1:
            of_lane.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    # The lane of worker 0 is the first one.
    steps = sorted(of_lane[min(of_lane)])
    gaps = [after[0] - before[1] for before, after in zip(steps, steps[1:])]
    gaps = [gap for gap in gaps if gap < 50_000]
    busy = sum(end - start for start, end in steps)
    return sum(gaps) / (sum(gaps) + busy)


def hostile_schemas():
    """Schemas whose grammars are deep, wide, long or exponential, some of them beyond the limits of the server."""

    def deep(levels):
        schema = {"type": "string"}
        for _ in range(levels):
            schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        return schema

    def words(count, repeated=1):
        return [f"{number:06d} of many" * repeated for number in range(count)]

    def alternatives(count):
        return {"anyOf": [{"type": "object", "properties": {word: {"const": word}}} for word in words(count)]}

    def references(levels):
        rules = {f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 8} for level in range(levels)}
        return {"$defs": rules | {f"d{levels}": {"type": "string", "maxLength": 2000}}, "$ref": "#/$defs/d0"}

    return {
        "depth 30": deep(30),
        "depth 400": deep(400),
        "300 alternatives": alternatives(300),
        "2000 alternatives": alternatives(2000),
        "enum of 1500": {"enum": words(1500)},
        "enum of 20000": {"enum": words(20_000)},
        "10 MB": {"enum": words(20_000, 40)},
        "repeated pattern": {"type": "string", "pattern": "^((a{1,200}b{1,200}){1,200}c){1,200}$"},
        "exponential pattern": {"type": "string", "pattern": "^(.*a.{20}|.*b.{20}|.*c.{20}){20}$"},
        "references": references(20),
    }


def body(name, schema=None):
    """The body of a request."""
    body = {"messages": [{"role": "user", "content": name}], "max_tokens": 4}
    if schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return json.dumps(body).encode()


def ask(body):
    """The status of a request; none if the server has closed the connection while it came."""
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/chat/completions", body, {"Content-Type": "application/json"})
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def send_hostile(ended):
    """Sends hostile schemas one after the other: the time, the name and the status of each request."""
    # Made before, because the client has the same processors. Another description each time, so that no grammar is found again.
    bodies = {name: body(name, {**schema, "description": DESCRIPTION}) for name, schema in hostile_schemas().items()}
    begin, sent = time.monotonic(), []
    for turn in range(10**6):
        for name, written in bodies.items():
            if ended.is_set():
                return sent
            at = time.monotonic() - begin
            sent.append((at, name, ask(written.replace(DESCRIPTION.encode(), b"%09d" % turn))))


def send_plain(ended, sent):
    """Sends the requests of these that had a text again at the same times, without schemas."""
    begin = time.monotonic()
    for at, name, status in sent:
        if status == 200 and not ended.wait(max(0, begin + at - time.monotonic())):
            ask(body(name))


def beside(at_once, send, *arguments):
    """What the load's client prints while another client sends requests, and what that one returns."""
    ended = threading.Event()
    with concurrent.futures.ThreadPoolExecutor() as threads:
        client = threads.submit(send, ended, *arguments)
        printed = load(at_once)
        ended.set()
        return printed, client.result()


def llama_cpp(model):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_parallel, params.n_ctx = model, 32, 32 * 256
    params.port, params.cont_batching = PORT, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    time.sleep(1e6)


def main(model):
    print("floor")
    for at_once in AT_ONCE:
        steps = [f"{RELEASE}/examples/steps", model, "--workers", "2", "--prompt", "57", "--sequences", str(at_once)]
        print(output(*steps, RAYON_NUM_THREADS="1", CANDLE_NUM_THREADS="1"), flush=True)
    ours = [f"{RELEASE}/disco-serve", "--model", model, "--workers", "2", "--threads", "1", "--port", str(PORT)]
    theirs = [sys.executable, os.path.abspath(__file__), "llama.cpp", model]
    for name, command in (("disco-serve", ours), ("llama.cpp", theirs)):
        with serving(command):
            print(name)
            load(1)
            for at_once in AT_ONCE:
                print(f"{at_once}: {load(at_once)}", flush=True)
    print("control plane")
    for at_once in AT_ONCE[:3]:
        print(f"{at_once}: {control_plane(ours, at_once):.1%}", flush=True)
    print("hostile schemas")
    with serving(ours):
        load(8)
        for _ in range(3):
            print(f"alone: {load(8)}", flush=True)
            printed, sent = beside(8, send_hostile)
            statuses = {name: {status for _, other, status in sent if other == name} for _, name, _ in sent}
            print(f"beside: {printed}; {statuses}", flush=True)
            print(f"beside plain requests: {beside(8, send_plain, sent)[0]}", flush=True)


if __name__ == "__main__":
    llama_cpp(sys.argv[2]) if sys.argv[1] == "llama.cpp" else main(sys.argv[1])
