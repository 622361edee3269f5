"""Compares the speed of `generate` with llama.cpp and mistral.rs on the same weights, in turn.

    cargo build --release -p disco-models --example generate
    python3 -m venv peers && peers/bin/pip install xllamacpp==2026.10.11549 mistralrs gguf
    peers/bin/python testing/scripts/models_speed.py target/release/examples/generate MODEL.gguf FOLDER [TYPE ..]

Writes the model into FOLDER in each type (F32, BF16, F16, Q8_0, Q4_0, Q4_1) that is not there (other names are quantised files that are), and prints tokens/s of
a prompt of 40 tokens and of 128 generated ones, the better of two rounds, as `prompt / generated`. `2 x 1` are two workers with one
thread each.
"""
import json
import os
import re
import subprocess
import sys

import gguf
import numpy

PROMPT, GENERATED, ROUNDS = 40, 128, 2
TYPES = {"F32": "f32", "BF16": "bf16", "F16": "f16", "Q8_0": "file", "Q4_0": "file", "Q4_1": "file"}
WORDS = "the quick brown fox jumps over the lazy dog and runs away from"


def convert(source, path, kind):
    """Writes the model with matrices of another type."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue
        of_items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], of_items)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        to = gguf.GGMLQuantizationType[kind if values.ndim > 1 else "F32"]
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, to), raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def best(run):
    """The better rates of all rounds."""
    rates = [run() for _ in range(ROUNDS)]
    return tuple(max(rate[i] for rate in rates) for i in (0, 1))


def ours(program, path, kind, workers, threads):
    command = [program, "--model", path, "--dtype", TYPES.get(kind, "file"), "--workers", str(workers), "--threads", str(threads)]
    command += ["--session", "threads", "--max-tokens", str(GENERATED), "--raw", " ".join([WORDS] * 3) + " the"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return tuple(float(re.search(rf"{what} .* ([\d.]+) tokens/s", output)[1]) for what in ("prompt", "generation"))


def peer(name, path, threads):
    """A peer in a process of its own, since its threads stay."""
    command = [sys.executable, __file__, name, path, str(threads)]
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    output = subprocess.run(command, capture_output=True, text=True, env=environment)
    if output.returncode:
        return (float("nan"), float("nan"))
    return tuple(json.loads(output.stdout.strip().splitlines()[-1]))


def llama_cpp(path, threads):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = path, 512, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    request = {"prompt": list(range(1000, 1000 + PROMPT)), "n_predict": GENERATED, "ignore_eos": True, "temperature": 0, "cache_prompt": False}
    server.handle_completions(request)
    timings = server.handle_completions(request)["timings"]
    return timings["prompt_per_second"], timings["predicted_per_second"]


def mistral(path, threads):
    import mistralrs

    folder, file = os.path.split(path)
    runner = mistralrs.Runner(which=mistralrs.Which.GGUF(quantized_model_id=folder, quantized_filename=file, tok_model_id=None))
    request = mistralrs.CompletionRequest(model="default", prompt=" ".join([WORDS] * 3), max_tokens=GENERATED, temperature=0.0)
    runner.send_completion_request(request)
    usage = runner.send_completion_request(request).usage
    return usage.avg_prompt_tok_per_sec, usage.avg_compl_tok_per_sec


def main(program, source, folder, *kinds):
    print("type   ours 1 x 1, 1 x 2, 2 x 1 | llama.cpp 1, 2 threads | mistral.rs 1 thread")
    for kind in kinds or TYPES:
        path = os.path.join(os.path.abspath(folder), kind + ".gguf")
        if not os.path.exists(path):
            convert(source, path, kind)
        cells = [best(lambda: ours(program, path, kind, *shape)) for shape in ((1, 1), (1, 2), (2, 1))]
        cells += [best(lambda: peer("llama.cpp", path, threads)) for threads in (1, 2)]
        cells.append(best(lambda: peer("mistral.rs", path, 1)))
        print(f"{kind:5}", " | ".join(f"{prompt:6.0f} / {generated:4.0f}" for prompt, generated in cells), flush=True)


if __name__ == "__main__":
    peers = {"llama.cpp": llama_cpp, "mistral.rs": mistral}
    if sys.argv[1] in peers:
        print(json.dumps(peers[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
    else:
        main(*sys.argv[1:])
