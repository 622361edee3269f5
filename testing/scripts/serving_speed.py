"""Measures disco-serve beside its floor, the steps of a full batch without scheduler and HTTP, and beside the server of llama.cpp,
in one run.

    cargo build --release --package disco-serve --bin disco-serve --example steps --example load
    python3 -m venv peers && peers/bin/pip install xllamacpp==2026.10.11549
    peers/bin/python testing/scripts/serving_speed.py MODEL.gguf

Two workers with one thread each beside two threads; prompts of about 50 tokens, texts of 64, as many requests at once as a line says.
"""
import os
import subprocess
import sys
import time
import urllib.request

RELEASE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../target/release")
AT_ONCE = [1, 4, 8, 16, 32]
PORT = 8131


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
        steps = [f"{RELEASE}/examples/steps", model, "--workers", "2", "--prompt", "52", "--sequences", str(at_once)]
        print(output(*steps, RAYON_NUM_THREADS="1", CANDLE_NUM_THREADS="1"), flush=True)
    ours = [f"{RELEASE}/disco-serve", "--model", model, "--workers", "2", "--threads", "1", "--port", str(PORT)]
    theirs = [sys.executable, os.path.abspath(__file__), "llama.cpp", model]
    for name, command in (("disco-serve", ours), ("llama.cpp", theirs)):
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            ready(f"http://127.0.0.1:{PORT}/health")
            time.sleep(3)
            print(name)
            load(1)
            for at_once in AT_ONCE:
                print(f"{at_once}: {load(at_once)}", flush=True)
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()


if __name__ == "__main__":
    llama_cpp(sys.argv[2]) if sys.argv[1] == "llama.cpp" else main(sys.argv[1])
