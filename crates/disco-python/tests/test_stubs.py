"""The stub of the native part, which editors show."""

import ast
import inspect
from pathlib import Path

import disco


def test_the_stub_has_the_docstrings_of_what_users_call():
    stub = ast.parse((Path(disco.__file__).parent / "_disco.pyi").read_text())
    found = {}
    for node in ast.walk(stub):
        if isinstance(node, ast.ClassDef) and (hasattr(disco, node.name) or node.name == "Part"):
            runtime = getattr(disco._disco, node.name)
            found[node.name] = ast.get_docstring(node), inspect.cleandoc(runtime.__doc__)
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                    doc = inspect.cleandoc(getattr(runtime, method.name).__doc__)
                    found[f"{node.name}.{method.name}"] = ast.get_docstring(method), doc
    # The native session is behind the one of Python.
    found = {name: docs for name, docs in found.items() if not name.startswith("Session")}
    differ = {name: docs for name, docs in found.items() if docs[0].split() != docs[1].split()}
    assert len(found) > 30 and differ == {}
