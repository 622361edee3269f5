"""Prints, as JSON, llama.cpp's tokens of each text in a file of JSON, for each of the GGUF files."""

import json
import sys
import urllib.request

import xllamacpp


def tokens(server, text):
    body = json.dumps({"content": text, "add_special": True, "parse_special": True})
    request = urllib.request.Request(
        server.listening_address + "/tokenize", body.encode(), {"Content-Type": "application/json"}
    )
    return json.loads(urllib.request.urlopen(request).read())["tokens"]


texts, *models = sys.argv[1:]
with open(texts) as file:
    texts = json.load(file)
for model in models:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = 64
    params.cpuparams.n_threads = 1
    params.warmup = False
    server = xllamacpp.Server(params)
    print(json.dumps([tokens(server, text) for text in texts]), flush=True)
    del server
