"""Which streams save() and fence() use on the simulated CUDA device, and how long a fence holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from cuda_sim import DeviceArray, Sim, TorchCuda, TorchStream
from slackwater.integrations import streams
from support import SECONDS, python, unsettled

Make = Callable[..., sw.Checkpointer]
TorchOn = Callable[[dict[int, int]], TorchCuda]
MIB = 1 << 20
WORDS = 3 * MIB // 4  # 32-bit words of an array that is captured lazily: three slabs
SLOW = 20 * MIB  # bytes a second


def saved(path: Path, step: int, name: str = "w") -> bytes:
    with sw.open(path, step) as checkpoint:
        return checkpoint[name].contiguous().view(torch.uint8).numpy().tobytes()


# The streams that save() waits for


def test_arrays_that_are_lent_are_waited_for_beside_the_streams_named(
    cuda: Make, sim: Sim, path: Path, torch_on: TorchOn
) -> None:
    """Whoever lends an array has it ready on the default stream. The streams named are those of other tensors."""
    stream = sim.stream()
    torch_on({0: stream})
    array = DeviceArray(sim, (WORDS,))
    produced = array.updated()
    ckpt = cuda()
    array.update(0, seconds=0.05)
    ckpt.save(1, {"w": array}, after=[TorchStream(0, stream)])
    ckpt.wait()
    assert saved(path, 1) == produced


def test_producers_beside_the_streams_named(torch_on: TorchOn) -> None:
    torch_on({0: 11, 1: 12})
    assert streams.producers([0], [], [(0, 5)]) == [(0, 5)]
    assert streams.producers([0, 1], [], [(0, 5)]) == [(0, 5), (1, 12)]  # torch works on the other device, too
    assert streams.producers([0, 1], [1], [(0, 5)]) == [(0, 5), (1, 12), (1, 0)]
    assert streams.producers([0], [0], [(0, 0)]) == [(0, 0)]
    assert streams.producers([], [], [(0, 5)]) == [(0, 5)]


# Fences


def test_fence_without_streams_waits_on_the_host_for_arrays_of_other_libraries(
    cuda: Make, sim: Sim, path: Path, torch_on: TorchOn
) -> None:
    """They are written to on streams that torch does not know."""
    torch_on({0: sim.stream()})
    array = DeviceArray(sim, (WORDS,))
    before = array.raw()
    sim.set_d2h_speed(SLOW)
    ckpt = cuda()
    with unsettled():
        snapshot = ckpt.save(1, {"w": array})
        ckpt.fence()
        array.write(bytes(4 * WORDS))  # at once, on no stream
    ckpt.wait()
    assert saved(path, 1) == before
    assert (snapshot.stats.device_fences, snapshot.stats.host_fences) == (0, 1)


class FailsWhenFenced:
    """The engine's snapshot, which fails right after wait_fenced()."""

    def __init__(self, core: Any) -> None:
        self.core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def wait_fenced(self, timeout: float) -> bool:
        fenced: bool = self.core.wait_fenced(timeout)
        self.core.seal(["w"])
        return fenced


def test_host_fence_waits_for_the_copies_of_a_snapshot_that_failed_at_an_earlier_fence(cuda: Make, sim: Sim) -> None:
    """The caller is about to unmap the memory."""
    stream = sim.stream()
    ckpt = cuda()
    array = DeviceArray(sim, (WORDS,))
    with sim.copies_stalled():
        snapshot = ckpt.save(1, {"w": array}, after=[(0, stream)])
        snapshot._arrived[0] = FailsWhenFenced(snapshot._core)
        ckpt.fence([(0, stream)])
        assert snapshot.error is not None
        assert not snapshot._core.wait_released(0.0)
        sim.set_d2h_speed(SLOW)
    ckpt.fence(host=True)
    assert snapshot._core.wait_released(0.0), "copies were still under way"
    with pytest.raises(sw.TornError):
        ckpt.wait()


def test_host_fence_has_the_rest_queued(cuda: Make, sim: Sim) -> None:
    """It must not wait for copies that leave in turns, a few at a time."""
    ckpt = cuda(pool="16MiB", copies_ahead="1MiB", batched_copies=False)
    array = DeviceArray(sim, (8 * MIB // 4,))
    fence = threading.Thread(target=lambda: ckpt.fence(host=True))
    with unsettled(), sim.copies_stalled():
        earlier = sim.calls("cuMemcpyDtoHAsync_v2")
        ckpt.save(1, {"w": array})
        fence.start()
        deadline = time.monotonic() + SECONDS / 2
        while (queued := sim.calls("cuMemcpyDtoHAsync_v2") - earlier) < 8 and time.monotonic() < deadline:
            time.sleep(0.001)
    fence.join()
    assert queued >= 8, "some copies were held back"
    ckpt.wait()


# Memory that goes away


def test_memory_may_be_unmapped_behind_a_host_fence(cuda: Make, sim: Sim, path: Path) -> None:
    array = DeviceArray(sim, (WORDS,))
    before = array.raw()
    sim.set_d2h_speed(SLOW)
    ckpt = cuda()
    ckpt.save(1, {"w": array})
    ckpt.fence(host=True)
    sim.unmap(array.address)
    ckpt.wait()
    assert saved(path, 1) == before
    sim.map(array.address)
    ckpt.restore({"w": array})
    assert array.raw() == before


def test_memory_unmapped_under_its_copies_fails_the_snapshot_and_no_earlier_one(path: Path, sim: Sim) -> None:
    code = """
        import sys
        sys.path.insert(0, sys.argv[2])
        import slackwater as sw
        from cuda_sim import LIBRARY, DeviceArray, Sim

        sim = Sim()
        array = DeviceArray(sim, (3 << 18,))
        before = array.raw()
        ckpt = sw.Checkpointer(sys.argv[1], pool="4MiB", slab="1MiB", cuda_driver=LIBRARY)
        ckpt.save(1, {"w": array})
        ckpt.wait()
        with sim.copies_stalled():
            snapshot = ckpt.save(2, {"w": array})
            snapshot.wait("fenced")
            sim.unmap(array.address)
        try:
            ckpt.wait()
            raise AssertionError("step 2 was committed")
        except sw.DeviceError as error:
            assert "cuda:0" in str(error), error
        ckpt.fence()  # returns
        try:
            ckpt.close()
        except sw.Error:
            pass
        with sw.open(sys.argv[1]) as checkpoint:
            assert checkpoint.step == 1
            assert checkpoint["w"].tobytes() == before
    """
    python(code, path, Path(__file__).parent)
