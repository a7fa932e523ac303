"""Writers that come before the fence: what the guard sees, what it cannot, and that paranoid=True sees it.

The tensor under test waits behind a large snapshot (support.Line), so that it is changed before its copy begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slackwater as sw
import torch
import torch.distributed as dist
from slackwater.integrations import torch_state
from support import Line
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

Make = Callable[..., sw.Checkpointer]
MIB = 1 << 20


@pytest.fixture
def line(make: Make) -> Line:
    return Line(make(pool="2MiB", keep=0))


@pytest.fixture
def known_line(make: Make) -> Line:
    """What is saved through it is of a structure that is known already, and read in the quick way."""
    return Line(make(pool="2MiB", keep=0), known=True)


@pytest.fixture
def paranoid_line(make: Make) -> Line:
    return Line(make(pool="2MiB", keep=0, paranoid=True))


def big(value: float = 0.0) -> torch.Tensor:
    return torch.full((MIB,), value)


def data_write(t: torch.Tensor) -> None:
    t.data.mul_(2).add_(1)


def foreach(t: torch.Tensor) -> None:
    torch._foreach_add_([t], 1.0)


def fused(t: torch.Tensor) -> None:
    """The kernel of AdamW(fused=True), called as a framework of one's own would: no hook, no version."""
    zeros = [torch.zeros_like(t) for _ in range(2)]
    torch._fused_adamw_(
        [t], [torch.ones_like(t)], [zeros[0]], [zeros[1]], [], [torch.tensor(1.0)], lr=0.1, beta1=0.9, beta2=0.999,
        weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip


def numpy_alias(t: torch.Tensor) -> None:
    t.numpy()[:] += 1


def dlpack_alias(t: torch.Tensor) -> None:
    torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t)).add_(1)


WRITERS = {
    "in place": lambda t: t.add_(1),
    "one element in place": lambda t: t[12_345:12_346].add_(1),
    ".data": data_write,
    "foreach": foreach,
    "fused": fused,
    "numpy alias": numpy_alias,
    "dlpack alias": dlpack_alias,
    "out=": lambda t: torch.add(t, 1, out=t),
    "copy_": lambda t: t.copy_(torch.ones_like(t)),
    "under no_grad": torch.no_grad()(lambda t: t.add_(1)),
    "under inference_mode": torch.inference_mode()(lambda t: t.add_(1)),
}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS.keys())
def test_writer_before_the_fence_is_noticed(writer: Callable[[torch.Tensor], Any], line: Line) -> None:
    tensor = big()
    error = line.torn({"model": {"w": tensor}}, lambda: writer(tensor))
    assert "'model.w'" in str(error)
    assert "fence" in str(error)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("local", [False, True], ids=["through the wrapper", "through the local tensor"])
def test_one_element_of_a_dtensor_in_place_is_noticed(mesh: Any, make: Make, known: bool, local: bool) -> None:
    """Each has a version of its own."""
    line = Line(make(pool="2MiB", keep=0), known=known)
    tensor = distribute_tensor(big(), mesh, [Shard(0)])
    written = tensor.to_local() if local else tensor
    error = line.torn({"model": {"w": tensor}}, lambda: written[12_345:12_346].add_(1))
    assert "'model.w'" in str(error)


def test_a_dtensor_of_inference_mode_has_no_version_and_is_saved(mesh: Any, make: Make) -> None:
    with torch.inference_mode():
        tensor = distribute_tensor(torch.ones(64), mesh, [Shard(0)])
    ckpt = make()
    for step in (1, 2):
        snapshot = ckpt.save(step, {"ema": tensor, "n": step})
        assert snapshot is not None
        snapshot.wait()


@pytest.mark.parametrize("state_dict", [False, True], ids=["model", "state_dict"])
def test_one_element_of_a_sharded_parameter_in_place_is_noticed(mesh: Any, make: Make, state_dict: bool) -> None:
    """What state_dict() returns is detached, and has the version of the parameter."""
    line = Line(make(pool="2MiB", keep=0))
    model = nn.Linear(MIB // 1024, 1024)
    fully_shard(model, mesh=mesh)
    write = torch.no_grad()(lambda: model.weight[5:6, 7:8].add_(1))
    error = line.torn({"model": model.state_dict() if state_dict else model}, write)
    assert "'model.weight'" in str(error)


def free_when_read(line: Line, state: dict[str, Any], free: Callable[[], None]) -> sw.TornError | None:
    """The error, if memory goes away after the last byte was read, where this can crash nothing, and before the fence.

    The copies wait behind the blocker; the lock keeps the settler thread from sealing the snapshot as soon as they end.
    """
    while True:
        snapshot = line.save(state)
        with snapshot._settling:
            if snapshot._capture is None:
                continue  # it came too late
            assert isinstance(snapshot._capture.held[0], torch.UntypedStorage if line.known else torch.Tensor)
            assert snapshot._core.wait_released(60)
            free()
        try:
            snapshot.wait(timeout=60)
        except sw.TornError as error:
            assert snapshot.step not in line.ckpt.steps()
            return error
        return None


@pytest.mark.parametrize("size", [0, 32 * MIB], ids=["to nothing", "to more"])
def test_storage_that_is_resized_before_the_fence_fails_the_snapshot_by_name(line: Line, size: int) -> None:
    tensor = big()
    view = tensor[MIB // 2 :]  # its address is not that of the storage
    state = {"model": {"w": tensor, "v": view}, "other": big()}
    error = free_when_read(line, state, lambda: tensor.untyped_storage().resize_(size))
    assert "the memory of tensor 'model." in str(error)
    assert "and of 1 more was freed or moved" in str(error)
    assert "call fence(host=True) before freeing, resizing or offloading them" in str(error)


def test_storage_of_another_size_at_the_same_address_fails_the_snapshot_by_name(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a caching allocator gives the block back that was freed."""
    tensor = big()
    address = tensor.data_ptr()

    def free_and_come_back() -> None:
        tensor.untyped_storage().resize_(0)
        tensor.untyped_storage().resize_(32 * MIB)
        monkeypatch.setattr(torch_state, "addresses_now", lambda tensors: [address] * len(tensors))

    error = free_when_read(line, {"model": {"w": tensor}}, free_and_come_back)
    assert "the memory of tensor 'model.w' was freed or moved between save() and the fence" in str(error)


def test_parameter_that_is_given_other_memory_is_saved_as_it_was(line: Line) -> None:
    parameter = nn.Parameter(big(3.0))

    def give_other_memory() -> None:
        parameter.data = big(4.0)

    assert free_when_read(line, {"w": parameter}, give_other_memory) is None
    target = {"w": torch.zeros(MIB)}
    assert line.ckpt.restore(target) == line.step
    assert torch.equal(target["w"], big(3.0))


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS.keys())
def test_writer_before_the_fence_is_noticed_with_a_known_structure(
    writer: Callable[[torch.Tensor], Any], known_line: Line
) -> None:
    tensor = big()
    error = known_line.torn({"model": {"w": tensor}, "other": big()}, lambda: writer(tensor))
    assert "'model.w'" in str(error)


@pytest.mark.parametrize("size", [0, 32 * MIB], ids=["to nothing", "to more"])
def test_storage_of_a_known_structure_that_is_resized_before_the_fence_is_named(known_line: Line, size: int) -> None:
    tensor = big()
    state = {"model": {"w": tensor, "v": tensor[MIB // 2 :]}, "other": big()}
    error = free_when_read(known_line, state, lambda: tensor.untyped_storage().resize_(size))
    assert "the memory of tensor 'model." in str(error)


def test_parameter_of_a_known_structure_that_is_given_other_memory_is_saved_as_it_was(
    known_line: Line, path: Path
) -> None:
    parameter = nn.Parameter(big(3.0))

    def give_other_memory() -> None:
        parameter.data = big(4.0)

    assert free_when_read(known_line, {"w": parameter}, give_other_memory) is None
    assert torch.equal(sw.load(path, known_line.step)["w"], big(3.0))


def test_swapped_tensor_fails_the_snapshot_of_a_known_structure(known_line: Line) -> None:
    """Its version is that of another tensor now: nothing tells whether the old one is written to."""
    tensor = big(3.0)

    def swap() -> None:
        torch.utils.swap_tensors(tensor, tensor.data.clone())

    assert "'w'" in str(known_line.torn({"w": tensor}, swap))


def test_storage_may_be_freed_behind_a_host_fence(line: Line) -> None:
    tensor = big(5.0)
    snapshot = line.save_and_change({"w": tensor}, lambda: line.ckpt.fence(host=True))
    tensor.untyped_storage().resize_(0)
    snapshot.wait(timeout=60)
    assert snapshot.error is None


def test_change_of_the_local_part_of_a_dtensor_is_noticed(line: Line) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        tensor = distribute_tensor(big(), init_device_mesh("cpu", (1,)), [Shard(0)])
        assert "'w'" in str(line.torn({"w": tensor}, lambda: tensor.add_(1)))
        again = distribute_tensor(big(), init_device_mesh("cpu", (1,)), [Shard(0)])
        assert "'x'" in str(line.torn({"x": again}, lambda: again.to_local().data.add_(1)))
    finally:
        dist.destroy_process_group()


def test_statistics_of_batch_norm_may_change_and_are_saved_as_they_were(line: Line, make: Make, path: Path) -> None:
    model = nn.BatchNorm1d(100_000)
    snapshot = line.save_and_change({"m": model}, lambda: model(torch.randn(4, 100_000)))
    snapshot.wait(timeout=60)
    saved = sw.load(path, snapshot.step)["m"]
    assert saved["running_mean"].abs().sum() == 0
    assert saved["num_batches_tracked"] == 0
    assert model.num_batches_tracked == 1


# Rows of the table "who calls the fence" that say "you": what happens without it.


class Sam(torch.optim.SGD):
    @torch.no_grad()
    def first_step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(1)


class ScheduleFree(torch.optim.SGD):
    @torch.no_grad()
    def eval(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.lerp_(torch.ones_like(parameter), 0.5)


class NoInit(torch.optim.Optimizer):
    """Skips Optimizer.__init__, so that torch never wraps its step()."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        self.parameters = list(parameters)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for parameter in self.parameters:
            parameter.add_(1)


def model_of(value: float = 0.0) -> nn.Module:
    model = nn.Linear(1024, 1024)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


FORGOTTEN = {
    "first_step of SAM": lambda model: Sam(model.parameters(), lr=0.1).first_step,
    "eval of ScheduleFree": lambda model: ScheduleFree(model.parameters(), lr=0.1).eval,
    "own update": lambda model: lambda: [p.data.add_(1) for p in model.parameters()],
    "load_state_dict": lambda model: lambda: model.load_state_dict(model_of(1).state_dict()),
}


@pytest.mark.parametrize("prepare", FORGOTTEN.values(), ids=FORGOTTEN.keys())
def test_forgotten_fence_is_noticed(prepare: Callable[[nn.Module], Callable[[], Any]], line: Line) -> None:
    model = model_of()
    assert "tensor 'm." in str(line.torn({"m": model}, prepare(model)))


@pytest.mark.parametrize("prepare", FORGOTTEN.values(), ids=FORGOTTEN.keys())
def test_fence_by_hand_saves_what_was_there_before(
    prepare: Callable[[nn.Module], Callable[[], Any]], line: Line, path: Path
) -> None:
    model = model_of()
    update = prepare(model)

    def fence_and_update() -> None:
        line.ckpt.fence()
        update()

    snapshot = line.save_and_change({"m": model}, fence_and_update)
    snapshot.wait(timeout=60)
    assert sw.load(path, snapshot.step)["m"]["weight"].abs().max() == 0
    assert model.weight.abs().max() > 0


def test_optimizer_that_skips_the_constructor_is_fenced_by_fence_on(line: Line, path: Path) -> None:
    model = model_of()
    optimizer = NoInit(model.parameters())
    line.ckpt.fence_on(optimizer, "step")
    snapshot = line.save_and_change({"m": model}, lambda: optimizer.step())
    snapshot.wait(timeout=60)
    assert sw.load(path, snapshot.step)["m"]["weight"].abs().max() == 0
    assert model.weight.min() == 1


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}], ids=["foreach", "fused"])
def test_optimizer_steps_wait_behind_a_full_pool(options: dict[str, bool], line: Line, path: Path) -> None:
    """The hook holds the step back until the last copy is done, however long the line is."""
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    snapshot = line.save_and_change({"m": model, "o": optimizer}, optimizer.step)
    snapshot.wait(timeout=60)
    assert sw.load(path, snapshot.step)["m"]["weight"].abs().max() == 0
    assert model.weight.max() < 0


# What the guard cannot see


def change_one_element_unseen(tensor: torch.Tensor) -> None:
    tensor.data[700_001] += 1  # no version; one of a million elements, of which 16 are sampled


def test_small_change_behind_the_back_of_autograd_is_not_seen(line: Line, path: Path) -> None:
    """A limit that docs/python.md states. Were it gone, the docs would be wrong."""
    came_first = False
    while not came_first:  # else it came too late to be in the snapshot: the machine is busy
        tensor = big()
        snapshot = line.save_and_change({"w": tensor}, lambda tensor=tensor: change_one_element_unseen(tensor))
        came_first = snapshot.progress.staged_bytes == 0
        snapshot.wait(timeout=60)
    assert snapshot.error is None
    assert sw.load(path, snapshot.step)["w"].sum() == 1


def test_small_change_behind_the_back_of_autograd_is_seen_in_paranoid_mode(paranoid_line: Line) -> None:
    tensor = big()
    error = paranoid_line.torn({"w": tensor}, lambda: change_one_element_unseen(tensor))
    assert "'w'" in str(error)


def test_small_change_of_an_array_is_seen_in_paranoid_mode(paranoid_line: Line) -> None:
    array = np.zeros(MIB)

    def change() -> None:
        array[500_000] += 1

    assert "'a'" in str(paranoid_line.torn({"a": array}, change))


def test_change_that_is_taken_back_is_noticed_by_its_version(line: Line) -> None:
    tensor = big(3.0)
    line.torn({"w": tensor}, lambda: (tensor.add_(1), tensor.sub_(1)))


def test_parameter_swapped_out_keeps_its_bytes(line: Line, path: Path) -> None:
    """EMA swaps that exchange .data change no byte of what was saved."""
    parameter = nn.Parameter(big())

    def swap() -> None:
        parameter.data = big(9.0)

    snapshot = line.save_and_change({"w": parameter}, swap)
    snapshot.wait(timeout=60)
    assert sw.load(path, snapshot.step)["w"].abs().max() == 0
