"""What torch's tests of back ends in Python check (its ``test_c10d_pypg.py``, and
``test_c10d_common.py`` with its extensions), written anew for four ranks and any back end.
"""

import os
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

CPU = torch.device("cpu")


def own(count=2):
    """This rank's tensor."""
    return torch.full((count,), float(dist.get_rank() + 1))


class Checks:
    """Methods of a ``TestCase``, each of which runs on all ranks of the default group."""

    # test_c10d_pypg.py

    def gradients(self, **options):
        torch.manual_seed(3)
        layer, x = nn.Linear(2, 2), torch.randn(4, 2)
        model = DistributedDataParallel(layer, **options)
        model(x[dist.get_rank()]).sum().backward()
        self.assertEqual(layer.weight.grad, x.mean(0).expand(2, 2))

    def test_pypg_ddp(self):
        self.gradients()

    def test_pypg_ddp_with_grad_views(self):
        self.gradients(gradient_as_bucket_view=True)

    def test_pypg_ddp_no_init_sync(self):
        layer = nn.Linear(1, 1)
        nn.init.constant_(layer.weight, dist.get_rank())
        DistributedDataParallel(layer, init_sync=False)
        self.assertEqual(layer.weight.item(), dist.get_rank())

    def test_pypg_attributes(self):
        group = dist.new_group(group_desc="desc")
        self.assertEqual((group.rank(), group.size()), (dist.get_rank(), 4))
        self.assertEqual(group.group_desc, "desc")
        self.assertEqual(c10d._resolve_process_group(group.group_name), group)

    def test_pypg_store(self):
        store = c10d._get_default_group().get_group_store()
        if dist.get_rank() == 0:
            store.set("key", "value")
        self.assertEqual(store.get("key"), b"value")

    def test_pypg_all_gather_single(self):
        out, name = torch.empty(8), c10d._get_default_group().group_name
        torch.ops._c10d_functional.all_gather_into_tensor_out(own(), 4, name, out=out)
        torch.ops._c10d_functional.wait_tensor(out)
        self.assertEqual(out, torch.tensor([1.0, 1, 2, 2, 3, 3, 4, 4]))

    def test_pypg_reduce_scatter_single(self):
        found = functional.reduce_scatter_tensor(own(8), "sum", 0, dist.group.WORLD)
        self.assertEqual(functional.wait_tensor(found), torch.tensor([10.0, 10.0]))

    def test_pypg_coalescing_manager(self):
        tensors = [own(), own(3)]
        with dist._coalescing_manager(device=CPU, async_ops=True) as works:
            for x in tensors:
                dist.all_reduce(x)
        works.wait()
        self.assertEqual(tensors, [torch.full((2,), 10.0), torch.full((3,), 10.0)])

    def test_pypg_abort_and_shutdown(self):
        group = dist.new_group()
        group.abort()
        group.shutdown()

    def test_pypg_batch_isend_irecv(self):
        rank, found = dist.get_rank(), torch.empty(2)
        sends = dist.P2POp(dist.isend, own(), (rank + 1) % 4)
        receives = dist.P2POp(dist.irecv, found, (rank - 1) % 4)
        for work in dist.batch_isend_irecv([sends, receives]):
            work.wait()
        self.assertEqual(found, torch.full((2,), float((rank - 1) % 4 + 1)))

    # The extensions of test_c10d_common.py

    def test_extension_backend_impl(self):
        backend, group = dist.get_backend_impl(), c10d._get_default_group()
        self.assertIs(group.get_backend(CPU), backend)
        self.assertEqual(dist.get_backend_impl(device=CPU), backend)

    def test_extension_ranks(self):
        group = dist.new_group([1, 3])
        if dist.get_rank() in (1, 3):
            rank = c10d._canonicalize_group_rank(group, group_rank=1, return_global=True)
            self.assertEqual(rank, 3)

    def test_extension_name(self):
        name = dist.get_backend()
        self.assertTrue(dist.is_backend_available(name))
        self.assertEqual(getattr(dist.Backend, name.upper()), name)
        self.assertIn(f"cpu:{name}", str(dist.BackendConfig(name.upper())))
        self.assertEqual(str(dist.BackendConfig(f"cpu:{name}")), f"cpu:{name}")

    def test_extension_of_a_device(self):
        group, x = dist.new_group(backend=f"cpu:{dist.get_backend()}"), own()
        dist.all_reduce(x, group=group)
        self.assertEqual(x, torch.full((2,), 10.0))

    def test_extension_collectives(self):
        parts = [torch.zeros(2) for _ in range(4)]
        dist.all_gather(parts, own())
        self.assertEqual(torch.stack(parts)[:, 0], torch.arange(1.0, 5))
        x = own()
        dist.all_reduce(x)
        self.assertEqual(x, torch.full((2,), 10.0))
        x = own()
        dist.broadcast(x, 2, async_op=True).wait()
        self.assertEqual(x, torch.full((2,), 3.0))
        dist.reduce_scatter(x, [own()] * 4)
        self.assertEqual(x, torch.full((2,), 10.0))

    def test_extension_send_recv(self):
        rank, x = dist.get_rank(), torch.zeros(2)
        for wrong in ({"dst": rank}, {"group_dst": rank}, {"dst": rank, "group_dst": rank}, {}):
            with self.assertRaises(ValueError):
                dist.send(x, **wrong)
        with self.assertRaises(ValueError):
            dist.recv(x, src=0, group_src=0)
        if rank % 2:
            dist.recv(x, rank - 1)
            self.assertEqual(x, torch.full((2,), float(rank)))
        else:
            dist.send(own(), rank + 1)

    def test_extension_abort(self):
        self._barrier()
        c10d._abort_process_group()
        self.assertFalse(dist.is_initialized())
        self._barrier(wait_for=4)
        # What calls this destroys a group afterwards.
        store = f"{os.environ['INIT_METHOD']}-2"
        dist.init_process_group("gloo", init_method=store, world_size=4, rank=self.rank)

    def test_extension_work(self):
        x = own()
        work = dist.all_reduce(x, async_op=True)
        self.assertTrue(work.wait(timedelta(seconds=30)))
        self.assertTrue(work.is_completed())
        y = own()
        self.assertEqual(dist.all_reduce(y, async_op=True).get_future().wait()[0], x)

    # test_c10d_common.py

    def test_common_sequence_numbers(self):
        group, numbers = dist.new_group(), []
        for _ in range(3):
            dist.all_reduce(own(), group=group)
            found = [None] * 4
            dist.all_gather_object(found, group._get_sequence_number_for_group())
            self.assertEqual(len(set(found)), 1)
            numbers.append(found[0])
        self.assertEqual(numbers, [numbers[0] + step for step in range(3)])

    def test_common_warning_of_other_ranks(self):
        group = dist.new_group([0, 2])
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            dist.all_reduce(own(), group=group)
            dist.barrier(group=group)
        said = [str(warning.message) for warning in found if "belong to" in str(warning.message)]
        self.assertEqual(len(said), 0 if dist.get_rank() in (0, 2) else 2)

    def test_common_ranks_of_a_group(self):
        group = dist.new_group([1])
        if dist.get_rank() == 1:
            self.assertEqual(dist.get_group_rank(group, 1), 0)
            self.assertEqual(dist.get_global_rank(group, 0), 1)
            self.assertEqual(dist.get_process_group_ranks(group), [1])
            with self.assertRaises(ValueError):
                dist.get_group_rank(group, 0)

    def test_common_mixed_dtypes(self):
        x, many = torch.ones(4), [torch.ones(4) for _ in range(3)] + [torch.ones(4).half()]
        calls = [
            lambda: dist.all_gather(many, x),
            lambda: dist.all_gather_coalesced([many], [x]),
            lambda: dist.all_reduce_coalesced(many),
            lambda: dist.reduce_scatter(x, many),
            lambda: dist.all_to_all_single(x, x.half()),
            lambda: dist.all_to_all(many, [x] * 4),
            lambda: dist.scatter(x, many),
            lambda: dist.gather(x, many),
        ]
        for call in calls:
            with self.assertRaisesRegex(ValueError, "dtypes"):
                call()

    def test_common_complex(self):
        rank = dist.get_rank()
        x = torch.complex(own(1), -own(1))
        for out in ([torch.empty(2) for _ in range(4)], [torch.empty_like(x) for _ in range(4)]):
            dist.all_gather(out, x)
            found = [y if y.is_complex() else torch.view_as_complex(y.view(1, 2)) for y in out]
            self.assertEqual(found[rank], x)

    def test_common_bool(self):
        expected = torch.tensor([True, False, False, True])
        x = expected.clone() if dist.get_rank() == 0 else torch.zeros(4, dtype=torch.bool)
        dist.broadcast(x, 0)
        self.assertEqual(x, expected)

    def test_common_group_that_its_ranks_make(self):
        rank = dist.get_rank()
        ranks = [rank % 2, rank % 2 + 2]
        for _ in range(2):
            x, group = own(), dist.new_group(ranks, use_local_synchronization=True)
            dist.all_reduce(x, group=group)
            self.assertEqual(x[0].item(), sum(ranks) + 2)

    def test_common_group_in_another_order(self):
        group = dist.new_group([3, 2, 1, 0], sort_ranks=False)
        self.assertEqual(dist.get_group_rank(group, dist.get_rank()), 3 - dist.get_rank())
        parts = [torch.empty(2) for _ in range(4)]
        dist.all_gather(parts, own(), group=group)
        self.assertEqual(torch.stack(parts)[:, 0], torch.arange(4.0, 0, -1))

    def test_common_debug_level(self):
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        group, x = dist.new_group(), own()
        dist.all_reduce(x, group=group)
        dist.set_debug_level(dist.DebugLevel.OFF)
        self.assertEqual(x, torch.full((2,), 10.0))

    def test_common_split_group(self):
        group, x = dist.split_group(split_ranks=[[0, 1], [2, 3]]), own()
        dist.all_reduce(x, group=group)
        self.assertEqual(x[0].item(), 3.0 if dist.get_rank() < 2 else 7.0)
