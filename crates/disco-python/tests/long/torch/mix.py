"""Random operations of torch.distributed over Disco, each beside gloo: the same bits."""

import random
import sys

import disco.torch  # noqa: F401
import torch
import torch.distributed as dist

steps, seed = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("disco")
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")
ends = dist.new_group([0, size - 1])
ends_gloo = dist.new_group([0, size - 1], backend="gloo")
choice = random.Random(seed)
# Small whole numbers, whose sums are exact in each type.
TYPES = [
    torch.float32,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bfloat16,
    torch.float16,
]
SHAPES = [(1,), (3,), (2, 3), (4, 5, 2), (700, 30)]
right, left = (rank + 1) % size, (rank - 1) % size


class Step:
    """One operation with arguments that all ranks have drawn alike."""

    def __init__(self, number):
        self.number, self.type, self.shape = number, choice.choice(TYPES), choice.choice(SHAPES)
        self.strided, self.root = choice.random() < 0.3, choice.randrange(size)
        names = ["SUM", "MAX", "MIN"]
        names += ["PRODUCT"] if self.type in (torch.float64, torch.int64) else []
        self.op = getattr(dist.ReduceOp, choice.choice(names))
        self.counts = [[choice.randrange(3) for _ in range(size)] for _ in range(size)]

    def x(self, group=gloo, shape=None, index=0):
        """This rank's tensor; over Disco with gaps between its elements, sometimes."""
        numbers = torch.Generator().manual_seed(self.number * 1000 + index * 10 + rank)
        shape = shape or self.shape
        x = torch.randint(0, 5, shape, generator=numbers).to(self.type)
        if not self.strided or group is gloo:
            return x
        wide = torch.zeros((*shape[:-1], shape[-1] * 2), dtype=self.type)
        wide[..., ::2] = x
        return wide[..., ::2]

    def empty(self, shape=None):
        return torch.zeros(shape or self.shape, dtype=self.type)

    def many(self):
        return [self.empty() for _ in range(size)]

    def all_reduce(self, group):
        x = self.x(group)
        dist.all_reduce(x, self.op, group=group)
        return [x]

    def several(self, group):
        xs = [self.x(group, index=index) for index in range(4)]
        works = [dist.all_reduce(x, self.op, group=group, async_op=True) for x in xs]
        for work in works:
            work.wait()
        return xs

    def future(self, group):
        x = self.x(group)
        dist.all_reduce(x, self.op, group=group, async_op=True).get_future().wait()
        return [x]

    def reduce(self, group):
        x = self.x(group)
        dist.reduce(x, self.root, self.op, group=group)
        return [x] if rank == self.root else []

    def broadcast(self, group):
        x = self.x(group)
        dist.broadcast(x, self.root, group=group)
        return [x]

    def all_gather(self, group):
        out = self.many()
        dist.all_gather(out, self.x(group), group=group)
        return out

    def gather(self, group):
        out = self.many() if rank == self.root else None
        dist.gather(self.x(), out, self.root, group=group)
        return out or []

    def scatter(self, group):
        out, parts = self.empty(), [self.x(index=index) for index in range(size)]
        dist.scatter(out, parts if rank == self.root else None, self.root, group=group)
        return [out]

    def reduce_scatter(self, group):
        parts = [self.x(index=index) for index in range(size)]
        if group is gloo:
            # Old versions lack it.
            for part in parts:
                dist.all_reduce(part, self.op, group=group)
            return [parts[rank]]
        out = self.empty()
        dist.reduce_scatter(out, parts, self.op)
        return [out]

    def all_to_all(self, group):
        parts, out = [self.x(index=index) for index in range(size)], self.many()
        if group is gloo:
            rows = []
            for part in parts:
                rows.append(self.many())
                dist.all_gather(rows[-1], part, group=group)
            return rows[rank]
        dist.all_to_all(out, parts)
        return out

    def all_to_all_single(self, group):
        send, receive = self.counts[rank], [counts[rank] for counts in self.counts]
        out = self.empty((sum(receive), 3))
        x = self.x(shape=(sum(send), 3))
        dist.all_to_all_single(out, x, receive, send, group=group)
        return [out]

    def ring(self, group):
        x, out = self.x(), self.empty()
        sent = dist.isend(x, right, group=group)
        dist.recv(out, left, group=group)
        sent.wait()
        return [out]

    def batch(self, group):
        x, out = self.x(), self.empty()
        ops = [
            dist.P2POp(dist.isend, x, right, group),
            dist.P2POp(dist.irecv, out, left, group),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return [out]

    def objects(self, group):
        every, one = [None] * size, [("x", self.number) if rank == self.root else None]
        dist.all_gather_object(every, {"rank": rank, "number": self.number}, group=group)
        dist.broadcast_object_list(one, self.root, group=group)
        return [
            torch.tensor([found["rank"] * 1000 + found["number"] for found in every]),
            *one[0][1:],
        ]

    def two_ranks(self, group):
        x = self.x(group)
        if rank in (0, size - 1):
            dist.all_reduce(x, self.op, group=ends_gloo if group is gloo else ends)
        return [x]

    def booleans(self, group):
        x = self.x().float() > 2
        x = x.to(torch.uint8) if group is gloo else x
        dist.all_reduce(x, dist.ReduceOp.MAX, group=group)
        return [x.bool()]

    def into_one(self, group):
        shape = (size * self.shape[0], *self.shape[1:])
        whole, x = self.empty(shape), self.x(shape=shape)
        if group is gloo:
            dist.all_gather(list(whole.chunk(size)), self.x(), group=group)
            dist.all_reduce(x, self.op, group=group)
            return [whole, x.chunk(size)[rank]]
        out = self.empty()
        dist.all_gather_into_tensor(whole, self.x())
        dist.reduce_scatter_tensor(out, x, self.op)
        return [whole, out]

    def barrier(self, group):
        dist.barrier(group=group)
        return []


KINDS = [name for name in vars(Step) if name[0] != "_" and name not in ("x", "empty", "many")]
if torch.__version__.startswith("1."):
    # Its gloo has not all operations of this type, and its objects need numpy before 2.
    TYPES.remove(torch.bfloat16)
    KINDS.remove("objects")
for number in range(steps):
    step, kind = Step(number), choice.choice(KINDS)
    found, expected = getattr(step, kind)(None), getattr(step, kind)(gloo)
    assert len(found) == len(expected), (number, kind)
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(ours, torch.Tensor):
            alike = ours.shape == theirs.shape and ours.dtype == theirs.dtype
            assert alike and torch.equal(ours, theirs), (number, kind, vars(step), ours, theirs)
        else:
            assert ours == theirs, (number, kind)
dist.barrier()
print("equal", flush=True)
dist.destroy_process_group()
