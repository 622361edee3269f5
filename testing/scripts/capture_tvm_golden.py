"""Capture golden bytes of Disco's wire format from the real TVM.

Run, from the root of the repository, in any virtual environment:

    pip install apache-tvm==0.27.0 && python testing/scripts/capture_tvm_golden.py > disco-core/tests/data/tvm-0.27.tsv

How it works. The script creates a `ProcessSession` of two workers with its own process pool. The
pool starts TVM's `tvm.exec.disco_worker` as worker 1 (worker 0 is a thread of the controller and
has no pipe) and forwards and records all bytes of the two pipes. The streams are split at the u64
prefix `packet_nbytes`; a packet is stored with its prefix.

The decoder below decodes every packet to its last byte. The decoded text must equal the VALUE
column of the case. Each group of cases has its own session, so register ids start anew and the
output is the same in every run.

This file is also the module that worker 1 runs (`python -m capture_tvm_golden <id> <num_workers>
<num_groups> <read_fd> <write_fd>`), because the shared libraries must be opened with RTLD_GLOBAL
before TVM is imported.

The file in the repository was captured with apache-tvm-ffi 0.1.15.post2 (named in its second line);
another version of that package may give other type indices to the debug object (`debug outer=N`).
"""

import base64
import ctypes
import gc
import importlib.metadata
import importlib.util
import json
import os
import struct
import sys
import threading
import time

# `tvm.runtime.disco` exists only if these libraries are opened with RTLD_GLOBAL before `import tvm`.
import tvm_ffi

_TVM_LIB = os.path.join(importlib.util.find_spec("tvm").submodule_search_locations[0], "lib")
for _name in ("libtvm_runtime.so", "libtvm_runtime_extra.so"):
    ctypes.CDLL(os.path.join(_TVM_LIB, _name), ctypes.RTLD_GLOBAL)

import numpy as np
import tvm
from tvm.exec import disco_worker  # registers tests.disco.*

# ---------------------------------------------------------------------------------------------
# Worker functions, registered in worker 1 and in the controller (where worker 0 is a thread).


@tvm_ffi.register_global_func("golden.accept")
def _accept(*_args):
    """Accept any arguments and return None."""


@tvm_ffi.register_global_func("golden.echo")
def _echo(value):
    """Return the value as a worker would create it: a new string, stored inline if it is short."""
    if isinstance(value, str):
        return "".join(value)
    if isinstance(value, bytes):
        return bytes(bytearray(value))
    return value


@tvm_ffi.register_global_func("golden.array")
def _array(*args):
    return tvm_ffi.Array(args)


@tvm_ffi.register_global_func("golden.map")
def _map(key, value):
    return tvm_ffi.Map({key: value})


@tvm_ffi.register_global_func("golden.tensor")
def _tensor(dtype, shape):
    """A tensor of that type and shape that holds 1, 2, 3, ..."""
    return _make_tensor(dtype, tuple(shape))


def _make_tensor(dtype, shape):
    count = int(np.prod(shape, dtype=np.int64))
    return tvm.runtime.tensor(np.arange(1, count + 1).astype(dtype).reshape(shape))


# ---------------------------------------------------------------------------------------------
# The session with a recorder between the pipes.


class Lane:
    """One direction of the pipe pair: forwards all bytes and stores the packets."""

    def __init__(self, source, sink):
        self.packets = []
        self._source = source
        self._sink = sink
        self.thread = threading.Thread(target=self._pump, daemon=True)
        self.thread.start()

    def _pump(self):
        pending = b""
        while True:
            data = os.read(self._source, 1 << 16)
            if not data:
                break
            pending += data
            while len(pending) >= 8:
                end = 8 + struct.unpack_from("<Q", pending)[0]
                if len(pending) < end:
                    break
                self.packets.append(pending[:end])
                pending = pending[end:]
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._sink, view) :]
            except BrokenPipeError:
                break
        assert not pending, "the stream ended inside a packet"
        os.close(self._sink)
        os.close(self._source)


_LANES = {}


@tvm_ffi.register_global_func("golden.create_process_pool")
def _create_process_pool(num_workers, num_groups, entrypoint):
    from tvm.runtime.disco.process_pool import DiscoPopenWorker

    pool = [DiscoPopenWorker(i, num_workers, num_groups, entrypoint) for i in range(1, num_workers)]

    def start(worker_id):
        if worker_id == 0:
            return None  # the session ends; the worker leaves by itself
        read_fd, write_fd = pool[worker_id - 1].start()
        from_session, session_write = os.pipe()
        session_read, to_session = os.pipe()
        _LANES["down"] = Lane(from_session, write_fd)
        _LANES["up"] = Lane(read_fd, to_session)
        return tvm_ffi.Shape([session_read, session_write])

    return start


class Recorder:
    """A new session of two workers; the traffic of worker 1 is recorded."""

    def __init__(self):
        from tvm.runtime.disco import ProcessSession

        class Session(ProcessSession):
            __slots__ = ()

            def _configure_structlog(self):
                """Skipped, so that the traffic does not depend on installed packages."""

            def __init__(self):
                self.__init_handle_by_constructor__(
                    tvm.runtime.disco._ffi_api.SessionProcess,
                    2,
                    1,
                    "golden.create_process_pool",
                    "capture_tvm_golden",
                )

        self.session = Session()
        self.down = _LANES["down"]
        self.up = _LANES["up"]
        self.flush()

    def flush(self):
        """Wait until both workers have executed all commands; return and clear the traffic."""
        self.session.sync_worker_0()
        self.session._sync_worker(1)
        down, up = self.down.packets[:], self.up.packets[:]
        del self.down.packets[:], self.up.packets[:]
        assert decode_down(down[-2]) == "SyncWorker worker=0"
        assert decode_down(down[-1]) == "SyncWorker worker=1"
        assert decode_up(up[-1]) == "SyncWorkerReply worker=1"
        return down[:-2], up[:-1]

    def close(self):
        gc.collect()
        self.session.shutdown()
        deadline = time.monotonic() + 60
        while not self.down.packets and time.monotonic() < deadline:
            time.sleep(0.01)
        del self.session
        gc.collect()
        return self.down.packets[:]


# ---------------------------------------------------------------------------------------------
# The decoder: packet -> text. It fails on any byte that it does not understand.

DREF, STR, BYTES, SHAPE = 114, 65, 66, 69
DEVICE_NAMES = {1: "cpu", 2: "cuda", 3: "cuda_host", 7: "vulkan", 8: "metal", 10: "rocm"}
TENSOR_MAGIC = 0xDD5E40F096B4A13F


def text(value):
    return json.dumps(value, ensure_ascii=False)


def show_float(value):
    return f"float {value!r} bits=0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016x}"


def show_dtype(code, bits, lanes):
    name = {row[1:]: row[0] for row in DTYPES}[code, bits, lanes]
    return f"dtype {name} code={code} bits={bits} lanes={lanes}"


def show_device(kind, index):
    return f"device {DEVICE_NAMES[kind]}:{index} type={kind} id={index}"


def show_shape(dims):
    return "(" + ",".join(str(d) for d in dims) + ")"


class Reader:
    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, count):
        assert self.at + count <= len(self.data), "the packet is too short"
        self.at += count
        return self.data[self.at - count : self.at]

    def read(self, fmt):
        value = struct.unpack("<" + fmt, self.take(struct.calcsize("<" + fmt)))
        return value[0] if len(value) == 1 else value

    def end(self):
        assert self.at == len(self.data), "bytes are left in the packet"

    def sized(self):
        return self.take(self.read("Q"))

    def tensor_header(self):
        device, ndim = self.read("ii"), self.read("i")
        dtype = self.read("BBH")
        return device, dtype, [self.read("q") for _ in range(ndim)]

    def argument(self):
        outer = self.read("i")
        if outer == 0:
            return "none"
        if outer == 1:
            return f"int {self.read('q')}"
        if outer == 2:
            return f"bool {['false', 'true'][self.read('q')]}"
        if outer == 3:
            return show_float(self.read("d"))
        if outer == 4:
            return f"ptr 0x{self.read('Q'):016x}"
        if outer == 5:
            dtype = self.read("BBH")
            assert self.read("i") == 0
            return show_dtype(*dtype)
        if outer == 6:
            return show_device(*self.read("ii"))
        if outer == 7:
            data = self.read("Q")
            device, dtype, dims = self.tensor_header()
            offset = self.read("Q")
            return (
                f"dltensor data=0x{data:016x} {show_device(*device)} {show_dtype(*dtype)}"
                f" shape={show_shape(dims)} byte_offset={offset}"
            )
        if outer == 8:
            return f"raw_str {text(self.sized().decode())}"
        if outer == 9:
            return f"byte_array 0x{self.sized().hex()}"
        inner = self.read("I")
        if inner == DREF:
            assert outer == DREF
            return f"dref {self.read('q')}"
        if inner == STR:
            return f"{ {11: 'small_str', STR: 'str'}[outer] } {text(self.sized().decode())}"
        if inner == BYTES:
            return f"{ {12: 'small_bytes', BYTES: 'bytes'}[outer] } 0x{self.sized().hex()}"
        if inner == SHAPE:
            assert outer == SHAPE
            return f"shape {show_shape([self.read('q') for _ in range(self.read('Q'))])}"
        assert inner == 0, f"unknown object {inner}"
        assert outer >= 128, "the debug object has a dynamic type index"
        body = self.sized().decode()
        if body[-1] == "0":
            return f"debug outer={outer} json={body[:-1]}"
        assert body[-1] == "1"
        saved = Reader(base64.b64decode(body[:-1], validate=True))
        assert saved.read("QQ") == (TENSOR_MAGIC, 0)
        device, dtype, dims = saved.tensor_header()
        content = saved.sized()
        saved.end()
        return (
            f"debug outer={outer} tensor {show_device(*device)} {show_dtype(*dtype)}"
            f" shape={show_shape(dims)} data=0x{content.hex()}"
        )


def decode(packet):
    reader = Reader(packet)
    assert reader.read("Q") == len(packet) - 8
    assert reader.read("i") == 4, "not kReturn"
    args = [reader.argument() for _ in range(reader.read("i"))]
    reader.end()
    return args


def integer(arg):
    assert arg.startswith("int "), arg
    return arg[4:]


def decode_down(packet):
    command, *args = decode(packet)
    command = int(integer(command))
    first = integer(args[0])
    if command == 0 and len(args) == 1:
        return f"ShutDown reg={first}"
    if command == 1 and len(args) == 1:
        return f"KillReg reg={first}"
    if command == 2 and len(args) == 2:
        return f"GetGlobalFunc reg={first} name={args[1]}"
    if command == 3:
        return f"CallPacked reg={first} func={integer(args[1])} args=[{', '.join(args[2:])}]"
    if command == 4 and len(args) == 1:
        return f"SyncWorker worker={first}"
    if command == 5 and len(args) == 1:
        return f"CopyFromWorker0 reg={first}"
    if command == 6 and len(args) == 1:
        return f"CopyToWorker0 reg={first}"
    if command == 7 and len(args) == 2:
        return f"DebugGetFromRemote reg={first} worker={integer(args[1])}"
    if command == 8 and len(args) == 3:
        return f"DebugSetRegister reg={first} worker={integer(args[1])} value={args[2]}"
    raise AssertionError(f"unknown command {command} {args}")


def decode_up(packet):
    command, *args = decode(packet)
    command = int(integer(command))
    if command == 4 and len(args) == 1:
        return f"SyncWorkerReply worker={integer(args[0])}"
    if command == 7 and len(args) == 1:
        return f"DebugGetFromRemoteReply value={args[0]}"
    if command == 8 and not args:
        return "DebugSetRegisterReply"
    raise AssertionError(f"unknown reply {command} {args}")


# ---------------------------------------------------------------------------------------------
# Rows.

ROWS = []
REJECTED = []


def row(direction, name, expected, packet):
    """Add a row. The packet must decode to EXPECTED, which the case gives."""
    got = {"down": decode_down, "up": decode_up}[direction](packet)
    assert got == expected, f"{name}: expected {expected!r}, the packet says {got!r}"
    ROWS.append((direction, name, expected, packet.hex()))


def only(packets):
    assert len(packets) == 1, [p.hex() for p in packets]
    return packets[0]


# The C ABI, for argument types that the Python binding does not create.


class FFIAny(ctypes.Structure):
    _fields_ = [("type_index", ctypes.c_int32), ("pad", ctypes.c_uint32), ("value", ctypes.c_uint64)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


class ByteArray(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]


def call_with_c_abi(session, func, type_index, address):
    """`session.call_packed(func, x)` where x is the pointer ADDRESS with the given type index."""
    lib = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    callee = tvm_ffi.get_global_func("runtime.disco.SessionCallPacked")
    session_handle, func_handle = session.__chandle__(), func.__chandle__()

    def object_any(handle):
        # An object's header: u64 reference counts, i32 type index.
        return FFIAny(ctypes.cast(handle, ctypes.POINTER(ctypes.c_int32))[2], 0, handle)

    args = (FFIAny * 5)(
        object_any(session_handle),
        FFIAny(1, 0, 0),
        FFIAny(1, 0, 0),
        object_any(func_handle),
        FFIAny(type_index, 0, address),
    )
    result = FFIAny(0, 0, 0)
    status = lib.TVMFFIFunctionCall(
        ctypes.c_void_p(callee.__chandle__()), args, 5, ctypes.byref(result)
    )
    assert status == 0, "the call failed"
    return lambda: lib.TVMFFIObjectDecRef(ctypes.c_void_p(result.value))


# ---------------------------------------------------------------------------------------------
# Cases.


def commands():
    """The nine commands and the three replies."""
    rec = Recorder()
    session = rec.session

    func = session.get_global_func("tests.disco.add_one")  # register 1
    down, up = rec.flush()
    assert not up
    row(
        "down",
        "command.get_global_func",
        'GetGlobalFunc reg=1 name=raw_str "tests.disco.add_one"',
        only(down),
    )

    result = func(41)  # register 2
    down, up = rec.flush()
    assert not up
    row("down", "command.call_packed", "CallPacked reg=2 func=1 args=[int 41]", only(down))

    value = result.debug_get_from_remote(1)
    assert value == 42
    down, up = rec.flush()
    row(
        "down",
        "command.debug_get_from_remote",
        "DebugGetFromRemote reg=2 worker=1",
        only(down),
    )
    row("up", "reply.debug_get_from_remote", "DebugGetFromRemoteReply value=int 42", only(up))

    tvm.runtime.disco._ffi_api.DRefDebugCopyFrom(result, 1, 7)
    down, up = rec.flush()
    row(
        "down",
        "command.debug_set_register",
        "DebugSetRegister reg=2 worker=1 value=int 7",
        only(down),
    )
    row("up", "reply.debug_set_register", "DebugSetRegisterReply", only(up))
    assert result.debug_get_from_remote(1) == 7
    rec.flush()

    del result
    down, up = rec.flush()
    assert not up
    row("down", "command.kill_reg", "KillReg reg=2", only(down))

    make = session.get_global_func("golden.tensor")  # register 2 again
    tensor = make("float32", tvm_ffi.Shape((2, 3)))  # register 3
    rec.flush()
    host = _make_tensor("float32", (2, 3))
    session.copy_from_worker_0(host, tensor)
    down, up = rec.flush()
    assert not up
    row("down", "command.copy_from_worker0", "CopyFromWorker0 reg=3", only(down))
    session.copy_to_worker_0(host, tensor)
    down, up = rec.flush()
    assert not up
    row("down", "command.copy_to_worker0", "CopyToWorker0 reg=3", only(down))

    # All workers get the command; the named worker replies.
    session._sync_worker(0)
    session._sync_worker(1)
    packets, replies = rec.down.packets[:], rec.up.packets[:]
    assert len(packets) == 2
    row("down", "command.sync_worker.0", "SyncWorker worker=0", packets[0])
    row("down", "command.sync_worker", "SyncWorker worker=1", packets[1])
    row("up", "reply.sync_worker", "SyncWorkerReply worker=1", only(replies))
    del rec.down.packets[:], rec.up.packets[:]

    del tensor, make, func
    rec.flush()
    row("down", "command.shut_down", "ShutDown reg=0", only(rec.close()))


I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
DTYPES = [
    ("bool", 6, 8, 1),
    ("int8", 0, 8, 1),
    ("int32", 0, 32, 1),
    ("int64", 0, 64, 1),
    ("uint8", 1, 8, 1),
    ("uint64", 1, 64, 1),
    ("float16", 2, 16, 1),
    ("bfloat16", 4, 16, 1),
    ("float32", 2, 32, 1),
    ("float64", 2, 64, 1),
    ("float8_e4m3fn", 10, 8, 1),
    ("float8_e5m2", 12, 8, 1),
    ("float4_e2m1fn", 17, 4, 1),
    ("int4", 0, 4, 1),
    ("float32x4", 2, 32, 4),
    ("handle", 3, 64, 1),
    ("void", 3, 0, 0),
]
FLOATS = [
    ("half", "3fe0000000000000", "0.5"),
    ("zero", "0000000000000000", "0.0"),
    ("negative_zero", "8000000000000000", "-0.0"),
    ("infinity", "7ff0000000000000", "inf"),
    ("negative_infinity", "fff0000000000000", "-inf"),
    ("nan", "7ff8000000000000", "nan"),
    ("nan_payload", "fff8000000000001", "nan"),
    ("subnormal", "0000000000000001", "5e-324"),
]
STRINGS = [
    ("empty", "", "small_str"),
    ("short", "abc", "small_str"),
    ("seven", "1234567", "small_str"),
    ("eight", "12345678", "str"),
    ("long", "hello world", "str"),
    ("utf8_short", "h\u00e9", "small_str"),  # 3 bytes
    ("utf8_seven_chars", "gr\u00f6\u00dfer!", "str"),  # 7 characters, 9 bytes
    ("utf8_long", "\u8fea\u65af\u79d1 \U0001f57a", "str"),  # of 3 bytes and of 4
    ("nul", "a\0b", "small_str"),
    ("nul_long", "abcd\0efgh", "str"),
]
BYTE_STRINGS = [
    ("empty", b"", "small_bytes"),
    ("short", b"\x00\xff\x80", "small_bytes"),
    ("seven", bytes(range(1, 8)), "small_bytes"),
    ("eight", bytes(range(1, 9)), "bytes"),
    ("long", bytes(range(0xF0, 0x100)), "bytes"),
]
SHAPES = [
    ("scalar", ()),
    ("one", (1,)),
    ("three", (2, 3, 4)),
    ("zero", (0, 5)),
    ("negative", (-1, 7)),
    ("large", (1 << 40, I64_MAX, I64_MIN)),
]


def arguments():
    """(name, value, expected text) of every argument that Python can create."""
    yield "none", None, "none"
    for name, value in [
        ("zero", 0),
        ("one", 1),
        ("minus_one", -1),
        ("min", I64_MIN),
        ("max", I64_MAX),
        ("wide", 0x0102030405060708),
    ]:
        yield f"int.{name}", value, f"int {value}"
    yield "bool.true", True, "bool true"
    yield "bool.false", False, "bool false"
    for name, bits, shown in FLOATS:
        value = struct.unpack(">d", bytes.fromhex(bits))[0]
        yield f"float.{name}", value, f"float {shown} bits=0x{bits}"
    yield "ptr", ctypes.c_void_p(0x1122334455667788), "ptr 0x1122334455667788"
    yield "ptr.null", ctypes.c_void_p(0), "ptr 0x0000000000000000"
    for name, code, bits, lanes in DTYPES:
        shown = f"dtype {name} code={code} bits={bits} lanes={lanes}"
        yield f"dtype.{name}", tvm_ffi.dtype(name), shown
    for name, kind, index in [
        ("cpu", 1, 0),
        ("cuda", 2, 1),
        ("rocm", 10, 2),
        ("metal", 8, 0),
        ("vulkan", 7, 3),
        ("cuda_host", 3, 0),
    ]:
        shown = f"device {name}:{index} type={kind} id={index}"
        yield f"device.{name}", tvm_ffi.device(kind, index), shown
    for name, value, kind in STRINGS:
        yield f"str.{name}", value, f"{kind} {text(value)}"
    for name, value, kind in BYTE_STRINGS:
        yield f"bytes.{name}", value, f"{kind} 0x{value.hex()}"
    for name, dims in SHAPES:
        yield f"shape.{name}", tvm_ffi.Shape(dims), f"shape {show_shape(dims)}"


def call_arguments():
    """One call per argument type: register 2 = register 1 (argument)."""
    rec = Recorder()
    func = rec.session.get_global_func("golden.accept")
    rec.flush()

    func()
    down, _ = rec.flush()
    row("down", "call.no_args", "CallPacked reg=2 func=1 args=[]", down[0])
    assert decode_down(only(down[1:])) == "KillReg reg=2"

    for name, value, shown in arguments():
        func(value)
        down, up = rec.flush()
        assert not up
        row("down", f"call.arg.{name}", f"CallPacked reg=2 func=1 args=[{shown}]", down[0])
        assert decode_down(only(down[1:])) == "KillReg reg=2"

    # Types that only C or C++ callers create: const char*, TVMFFIByteArray*, DLTensor*.
    dims = (ctypes.c_int64 * 2)(2, 3)
    raw_str = ctypes.create_string_buffer(b"raw string")
    content = ByteArray(b"\x01\x02\x03", 3)
    dltensor = DLTensor(0x1122334455667780, 2, 1, 2, 2, 32, 1, dims, None, 64)
    for name, type_index, pointee, shown in [
        ("raw_str", 8, raw_str, 'raw_str "raw string"'),
        ("byte_array", 9, content, "byte_array 0x010203"),
        (
            "dltensor",
            7,
            dltensor,
            "dltensor data=0x1122334455667780 device cuda:1 type=2 id=1"
            " dtype float32 code=2 bits=32 lanes=1 shape=(2,3) byte_offset=64",
        ),
    ]:
        release = call_with_c_abi(rec.session, func, type_index, ctypes.addressof(pointee))
        down, up = rec.flush()
        assert not up
        row("down", f"call.arg.{name}", f"CallPacked reg=2 func=1 args=[{shown}]", only(down))
        release()
        down, up = rec.flush()
        assert decode_down(only(down)) == "KillReg reg=2"

    del func
    rec.close()


def call_mixed():
    """Register references, and calls with several arguments."""
    rec = Recorder()
    func = rec.session.get_global_func("golden.accept")  # register 1
    first = func()  # register 2
    second = func()  # register 3
    rec.flush()

    for name, args, shown in [
        ("call.arg.dref", (first,), "dref 2"),
        ("call.arg.dref.function", (func,), "dref 1"),
        ("call.arg.dref.two", (second, first), "dref 3, dref 2"),
        (
            "call.mixed.short",
            (7, 0.5, "hello world", first),
            'int 7, float 0.5 bits=0x3fe0000000000000, str "hello world", dref 2',
        ),
        (
            "call.mixed.all",
            (
                None,
                -2,
                True,
                1.5,
                tvm_ffi.dtype("bfloat16"),
                tvm_ffi.device("cuda", 1),
                "abc",
                "hello world",
                b"\x01",
                b"0123456789",
                tvm_ffi.Shape((2, 3)),
                second,
            ),
            "none, int -2, bool true, float 1.5 bits=0x3ff8000000000000,"
            " dtype bfloat16 code=4 bits=16 lanes=1, device cuda:1 type=2 id=1,"
            ' small_str "abc", str "hello world", small_bytes 0x01,'
            " bytes 0x30313233343536373839, shape (2,3), dref 3",
        ),
    ]:
        func(*args)  # register 4
        down, up = rec.flush()
        assert not up
        row("down", name, f"CallPacked reg=4 func=1 args=[{shown}]", down[0])
        assert decode_down(only(down[1:])) == "KillReg reg=4"

    del func, first, second, args
    rec.close()


def debug_values(outer):
    """(name, value, expected text, expected text after a transfer to the worker and back) of the
    values that are set in a register and fetched from it; the last is None if both are equal."""
    # None is not tested: TVM wraps it as a null tensor and crashes on a null pointer.
    yield "int", -42, "int -42", None
    yield "bool", True, "bool true", None
    yield "float", 0.5, "float 0.5 bits=0x3fe0000000000000", None
    yield "ptr", ctypes.c_void_p(0x1122334455667788), "ptr 0x1122334455667788", None
    yield "dtype", tvm_ffi.dtype("float16"), "dtype float16 code=2 bits=16 lanes=1", None
    yield "device", tvm_ffi.device("cuda", 1), "device cuda:1 type=2 id=1", None

    def graph(type_key, data):
        node = f'{{"type":"{type_key}","data":{data}}}'
        return f'debug outer={outer} json={{"root_index":0,"nodes":[{node}]}}'

    for name, value in [
        ("short", "abc"),
        ("seven", "1234567"),
        ("eight", "12345678"),
        ("long", 'hello "w\u00f6rld"\n\t\\/\x01 \U0001f57a'),
    ]:
        wrapped = graph("ffi.String", json_text(value))
        if len(value) <= 7:
            yield f"str.{name}", value, f"small_str {text(value)}", wrapped
        else:
            yield f"str.{name}", value, wrapped, None
    for name, value in [("short", b"\x01\xff"), ("long", bytes(range(10)))]:
        wrapped = graph("ffi.Bytes", f'"{base64.b64encode(value).decode()}"')
        if len(value) <= 7:
            yield f"bytes.{name}", value, f"small_bytes 0x{value.hex()}", wrapped
        else:
            yield f"bytes.{name}", value, wrapped, None
    yield "shape", tvm_ffi.Shape((2, 3, 4)), graph("ffi.Shape", "[2,3,4]"), None
    yield "shape.scalar", tvm_ffi.Shape(()), graph("ffi.Shape", "[]"), None


def json_text(value):
    """A string in JSON, escaped in TVM's way."""
    return tvm_ffi.get_global_func("ffi.json.Stringify")(value, None)


def debug_tensors(outer):
    """(name, dtype, shape, expected text); 1, 2 and 0 bytes over a multiple of three in base64."""
    head = f"debug outer={outer} tensor device cpu:0 type=1 id=0 dtype"
    for name, dtype, shape, shown in [
        (
            "f32",
            "float32",
            (2, 3),
            "float32 code=2 bits=32 lanes=1 shape=(2,3)"
            " data=0x0000803f0000004000004040000080400000a0400000c040",
        ),
        ("i64_scalar", "int64", (), "int64 code=0 bits=64 lanes=1 shape=() data=0x0100000000000000"),
        ("u8", "uint8", (5,), "uint8 code=1 bits=8 lanes=1 shape=(5) data=0x0102030405"),
        ("f16", "float16", (2,), "float16 code=2 bits=16 lanes=1 shape=(2) data=0x003c0040"),
        ("bool", "bool", (3,), "bool code=6 bits=8 lanes=1 shape=(3) data=0x010101"),
        ("empty", "float32", (0, 4), "float32 code=2 bits=32 lanes=1 shape=(0,4) data=0x"),
    ]:
        yield name, dtype, shape, f"{head} {shown}"


def debug_object_type_index():
    """The outer type index of the debug object: assigned at load time, not part of the ABI."""
    return tvm_ffi.core._object_type_key_to_index("runtime.disco.DiscoDebugObject")


def debug():
    """Values that are set in a register of worker 1, usually register 2, and fetched from it."""
    outer = debug_object_type_index()
    rec = Recorder()
    accept = rec.session.get_global_func("golden.accept")
    target = accept()
    echo = rec.session.get_global_func("golden.echo")
    rec.flush()
    set_register = tvm.runtime.disco._ffi_api.DRefDebugCopyFrom

    def get(reference, register, name, shown):
        try:
            reference.debug_get_from_remote(1)
        except TypeError as error:
            # A short string that was sent over the wire: see `case`.
            assert "Cannot convert from type `ffi.Small" in str(error)
        down, up = rec.flush()
        assert decode_down(only(down)) == f"DebugGetFromRemote reg={register} worker=1"
        row("up", f"debug.get.{name}", f"DebugGetFromRemoteReply value={shown}", only(up))

    def case(name, value, shown, received=None):
        set_register(target, 1, value)
        down, up = rec.flush()
        want = f"DebugSetRegister reg=2 worker=1 value={shown}"
        row("down", f"debug.set.{name}", want, only(down))
        assert decode_up(only(up)) == "DebugSetRegisterReply"
        if received:
            # TVM never stores a received string inline, even a short one, so the worker wraps it
            # for the reply; TVM's controller then refuses to read the reply.
            get(target, 2, f"{name}.received", received)
        else:
            get(target, 2, name, shown)

    for name, value, shown, received in debug_values(outer):
        case(name, value, shown, received)
        if received:
            result = echo(value)
            rec.flush()
            get(result, 4, name, shown)
            del result
            rec.flush()
    for name, dtype, shape, shown in debug_tensors(outer):
        set_register(target, 1, 0)  # a tensor set over a tensor would be copied into it
        rec.flush()
        case(f"tensor.{name}", _make_tensor(dtype, shape), shown)

    # Containers of several nodes in the JSON graph.
    del echo, target  # the register freed last is the first to be given out again
    rec.flush()
    for name, maker, args, nodes in [
        (
            "array",
            "golden.array",
            (1, "abc", 2.5, None, tvm_ffi.Shape((2,))),
            '{"type":"int","data":1},{"type":"ffi.String","data":"abc"},'
            '{"type":"float","data":2.5},{"type":"None"},{"type":"ffi.Shape","data":[2]},'
            '{"type":"ffi.Array","data":[0,1,2,3,4]}',
        ),
        (
            "map",
            "golden.map",
            ("key", "value"),
            '{"type":"ffi.String","data":"key"},{"type":"ffi.String","data":"value"},'
            '{"type":"ffi.Map","data":[0,1]}',
        ),
    ]:
        func = rec.session.get_global_func(maker)  # register 2
        result = func(*args)  # register 3
        rec.flush()
        root = nodes.count('"type"') - 1
        shown = f'debug outer={outer} json={{"root_index":{root},"nodes":[{nodes}]}}'
        get(result, 3, name, shown)
        del result, func
        rec.flush()

    del accept
    rec.close()


def rejected():
    """Arguments that TVM refuses to send. No byte of such a call reaches the wire."""
    for name, value in [
        ("tensor", _make_tensor("float32", (2,))),
        ("array", [1, 2]),
        ("map", {"a": 1}),
        ("function", tvm_ffi.get_global_func("golden.accept")),
        ("int.over", I64_MAX + 1),
    ]:
        rec = Recorder()
        func = rec.session.get_global_func("golden.accept")
        rec.flush()
        try:
            func(value)
        except Exception as error:
            message = str(error).strip().splitlines()[-1]
            REJECTED.append(f"call.arg.{name}: {type(error).__name__}: {message}")
        else:
            raise AssertionError(f"{name} was sent")
        down, up = rec.flush()
        assert not up and not down, (name, [p.hex() for p in down])
        del func
        rec.close()


def main():
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [os.path.dirname(os.path.abspath(__file__))]
        + [p for p in [os.environ.get("PYTHONPATH")] if p]
    )
    commands()
    call_arguments()
    call_mixed()
    debug()
    rejected()

    names = [name for _, name, _, _ in ROWS]
    assert len(set(names)) == len(names)
    print("# Golden packets of Disco's wire format, captured from the pipes of a ProcessSession of")
    print(
        f"# apache-tvm {importlib.metadata.version('apache-tvm')},"
        f" apache-tvm-ffi {importlib.metadata.version('apache-tvm-ffi')}, {sys.byteorder} endian."
    )
    print("# To capture again: pip install apache-tvm==0.27.0 &&")
    print("#   python testing/scripts/capture_tvm_golden.py > disco-core/tests/data/tvm-0.27.tsv")
    print("# Columns: direction (down: to the worker, up: its replies), name, value, hex of the")
    print("# whole packet with its u64 length.")
    print("# small_str, small_bytes: outer type index 11, 12 (up to 7 bytes); str, bytes: 65, 66.")
    print("# raw_str: 8; byte_array: 9. The inner type index of a string is always 65, of bytes 66.")
    print("# debug outer=N: N is given out when TVM is loaded and means nothing; inner index 0.")
    print("# debug.get.*.received: a short string that the worker had over the wire; TVM's worker")
    print("# wraps it, and TVM's controller then fails to read the reply.")
    print("# No debug.*.none: TVM takes none for a null tensor and dies of a null pointer.")
    print("# Refused by TVM as an argument, before any byte is written:")
    for line in REJECTED:
        print(f"#   {line}")
    for fields in ROWS:
        assert not any("\t" in field or "\n" in field for field in fields)
        print("\t".join(fields))


if __name__ == "__main__":
    if len(sys.argv) == 6:
        disco_worker.main()
    else:
        main()
