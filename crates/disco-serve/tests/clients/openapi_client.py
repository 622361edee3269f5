"""The description of a server's routes against the specification of OpenAPI, and requests against their schemas.

Arguments: the server's address, and its token.
"""

import http.client
import json
import sys

import jsonschema
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

address, token = sys.argv[1:]


def ask(method, path, body=None):
    connection = http.client.HTTPConnection(address)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request(method, path, body and json.dumps(body), headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


status, document = ask("GET", "/openapi.json")
assert status == 200, document
validate(document, cls=OpenAPIV31SpecValidator)

# A schema permits what the server accepts, and nothing that it refuses.
path = "/v1/completions"
content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
schema = {**content["schema"], "components": document["components"]}
checker = jsonschema.Draft202012Validator(schema)
for more, is_valid in [
    ({}, True),
    ({"temperature": 0, "stop": ["x"], "unknown": 1}, True),
    ({"do_sample": True, "user": "x", "seed": None}, True),
    ({"temperature": 3}, False),
    ({"do_sample": False}, False),
    ({"stop": [""]}, False),
    ({"prompt": None}, False),
]:
    body = {"prompt": "The river", "max_tokens": 1, **more}
    status, answer = ask("POST", path, body)
    assert checker.is_valid(body) == is_valid == (status == 200), (more, answer)
