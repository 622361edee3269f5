"""Random schemas against a server whose model has random weights. Each text that ends by itself must be valid (jsonschema).

Arguments: the server's address, and the number of schemas. Prints how many texts ended by themselves.
"""

import concurrent.futures
import http.client
import json
import random
import sys

import jsonschema

address, count = sys.argv[1], int(sys.argv[2])


def schema(choose, depth=0):
    """A random schema whose texts are short."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "format"]
    kinds += ["object", "array", "anyOf", "ref"] * (depth < 3)
    kind = choose.choice(kinds)
    if kind == "string":
        least = choose.randrange(3)
        return {"type": "string", "minLength": least, "maxLength": least + choose.randrange(6)}
    if kind == "integer":
        least = choose.randrange(-100, 100)
        return {"type": "integer", "minimum": least, "maximum": least + choose.randrange(1, 1000)}
    if kind == "number":
        return {"type": "number", "exclusiveMinimum": -choose.randrange(1, 9), "maximum": choose.randrange(9)}
    if kind == "enum":
        return {"enum": choose.sample(["a", "bé", 1, 2.5, None, True, "\n\"", "x y"], choose.randrange(1, 4))}
    if kind == "const":
        return {"const": choose.choice(["k", 7, None, {"a": 1}])}
    if kind == "pattern":
        return {"type": "string", "pattern": choose.choice(["^[a-c]{1,4}$", "^(x|yz)[0-9]{2}$", "^a?b+c{2}$"]), "maxLength": 9}
    if kind == "format":
        return {"type": "string", "format": choose.choice(["ipv4", "uuid"])}
    if kind == "object":
        keys = choose.sample(["a", "b", "c d", "é", "key"], choose.randrange(1, 4))
        properties = {key: schema(choose, depth + 1) for key in keys}
        return {"type": "object", "properties": properties, "required": keys[: choose.randrange(len(keys) + 1)], "additionalProperties": False}
    if kind == "array":
        least = choose.randrange(2)
        return {"type": "array", "items": schema(choose, depth + 1), "minItems": least, "maxItems": least + choose.randrange(3)}
    if kind == "anyOf":
        return {"anyOf": [schema(choose, depth + 1) for _ in range(choose.randrange(1, 3))]}
    if kind == "ref":
        return {"$ref": "#/$defs/short"}
    return {"type": kind}


def ask(seed):
    choose = random.Random(seed)
    wanted = schema(choose)
    wanted["$defs"] = {"short": {"type": "string", "maxLength": 3}}
    body = {
        "prompt": choose.choice(["a", "The river was"]),
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": wanted}},
        "temperature": choose.choice([0, 0.7, 1, 2]),
        "seed": seed,
        "max_tokens": 200,
    }
    while True:
        connection = http.client.HTTPConnection(address, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = json.loads(answer.read())
        if answer.status == 503:
            continue
        assert answer.status == 200, (seed, wanted, said)
        [choice] = said["choices"]
        if choice["finish_reason"] == "length":
            return 0
        try:
            jsonschema.Draft202012Validator(wanted, format_checker=jsonschema.FormatChecker()).validate(json.loads(choice["text"]))
        except (jsonschema.ValidationError, json.JSONDecodeError) as error:
            raise AssertionError((seed, wanted, choice["text"], str(error))) from error
        return 1


with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(sum(pool.map(ask, range(count))))
