"""Calls the functions of the library whose path is the argument, and checks results and errors."""

import sys

import numpy
import tvm_ffi

library = tvm_ffi.load_module(sys.argv[1])


def error_of(function, *args):
    try:
        function(*args)
    except Exception as error:
        return type(error), str(error)
    raise AssertionError("no error")


assert library.add(40, 2) == 42
assert library.root(6.25) == 2.5
text = "a string of more than seven bytes"
assert library.describe([1, text, None, True, b"x"]) == f'an int 1; a string "{text}"; none none; a bool true; bytes 1 bytes'

# The elements are shared, both ways.
elements = numpy.array([1.0, 2.0, 4.0])
scaled = library.scale(tvm_ffi.from_dlpack(elements), 0.5)
assert elements.tolist() == [0.5, 1.0, 2.0]
assert numpy.from_dlpack(scaled).ctypes.data == elements.ctypes.data
assert numpy.from_dlpack(library.scale(scaled, 2.0)).tolist() == [1.0, 2.0, 4.0]

assert error_of(library.root, -1.0) == (ValueError, "-1 has no square root")
assert error_of(library.root, "x") == (TypeError, "argument 0: expected a float, got a string")
assert error_of(library.add, 1) == (TypeError, "expected 2 arguments, got 1")
assert error_of(library.panic, "on purpose") == (RuntimeError, "panicked: on purpose")
kind, text = error_of(library.add, 2**63 - 1, 1)
assert (kind, text) == (RuntimeError, "9223372036854775807 + 1 does not fit in 64 bits")

print("all calls returned what they should")
