"""States on the simulated CUDA device: arrays that speak DLPack, and the torch glue by a stub of torch.cuda."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slackwater as sw
import torch
from conftest import SMALL
from cuda_sim import LIBRARY, DeviceArray, OldDeviceArray, Sim, TorchCuda, TorchGraph, TorchStream
from slackwater.integrations import streams, torch_state
from slackwater.integrations.graph_fences import graph_fences
from support import python, same, unsettled

Make = Callable[..., sw.Checkpointer]
MIB = 1 << 20
WORDS = 3 * MIB // 4  # 32-bit words of an array that is captured lazily: three slabs
SLOW = 20 * MIB  # bytes a second


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> Iterator[None]:
    """Sim.close() collects garbage. Without this it would look through all of torch each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def tear(ckpt: sw.Checkpointer, sim: Sim, array: DeviceArray, stream: int) -> sw.Snapshot:
    """Saves the array and updates it while its copies are under way, without a fence: a snapshot that is torn.

    The update comes too late where the machine is busy. Then the snapshot is well, and the next step is tried.
    """
    sim.set_d2h_speed(SLOW)
    for step in itertools.count(1):
        looked = sim.begun() + 1
        snapshot = ckpt.save(step, {"w": array}, after=[(0, stream)])
        assert snapshot is not None
        sim.wait_begun(looked + 1)  # the copies have begun
        array.update(stream)
        sim.synchronize(stream)
        came_first = snapshot.progress.staged_bytes == 0
        try:
            snapshot.wait()
        except sw.TornError:
            return snapshot
        assert not came_first, "the update came before the copies had ended, and was not noticed"
    raise AssertionError


def save_until_well(ckpt: sw.Checkpointer, step: int, state: dict[str, Any]) -> int:
    """The step that was committed: with a short stall_timeout a busy machine may cost a few."""
    while True:
        try:
            ckpt.save(step, state)
            ckpt.wait()
            return step
        except sw.TimeoutError:
            step += 1


def saved(path: Path, step: int, name: str = "w") -> bytes:
    with sw.open(path, step) as checkpoint:
        return checkpoint[name].contiguous().view(torch.uint8).numpy().tobytes()


# What is saved and restored


def test_arrays_on_the_device_come_back_bit_for_bit(cuda: Make, sim: Sim) -> None:
    whole = DeviceArray(sim, (40, 2000))
    state = {
        **{name: DeviceArray(sim, (37, 500), name) for name in ("bool", "int64", "float16", "bfloat16", "complex64")},
        "fp8": [DeviceArray(sim, (5000,), "float8_e4m3fn"), DeviceArray(sim, (17,), "float8_e5m2")],
        "scalar": DeviceArray(sim, ()),
        "empty": DeviceArray(sim, (3, 0, 2)),
        "transposed": DeviceArray(sim, (2000, 40), strides=(1, 2000)),
        "columns": DeviceArray(sim, (300, 5), strides=(11, 2)),
        "older": OldDeviceArray(sim, (3000,)),
        "row": DeviceArray(sim, (2000,), base=whole),
    }
    flat = [array for value in state.values() for array in (value if isinstance(value, list) else [value])]
    ckpt = cuda()
    ckpt.save(1, state)
    ckpt.wait()
    before = [(array.values(), array.raw()) for array in flat]
    for array in flat:
        array.write(bytes(len(array.raw())))
    rest = whole.raw()
    assert ckpt.restore(state) == 1
    assert [array.values() for array in flat] == [values for values, _ in before]
    assert state["columns"].raw()[4:8] == bytes(4)  # between the columns: not ours
    assert whole.raw()[8000:] == rest[8000:]


def test_arrays_of_a_device_are_read_without_one(cuda: Make, sim: Sim, path: Path) -> None:
    state = {"w": DeviceArray(sim, (300,)), "b": DeviceArray(sim, (300,), "bfloat16")}
    ckpt = cuda()
    ckpt.save(1, state)
    ckpt.close()
    loaded = sw.load(path)
    assert isinstance(loaded["w"], np.ndarray)
    assert loaded["w"].tobytes() == state["w"].raw()
    assert loaded["b"].dtype == torch.bfloat16
    assert loaded["b"].view(torch.uint8).numpy().tobytes() == state["b"].raw()


def test_tied_arrays_are_stored_once(cuda: Make, sim: Sim, path: Path) -> None:
    first = DeviceArray(sim, (5000,))
    ckpt = cuda()
    ckpt.save(1, {"a": first, "b": DeviceArray(sim, (5000,), base=first)})
    ckpt.wait()
    with sw.open(path) as checkpoint:
        assert checkpoint.info("b").alias_of == "a"
        assert saved(path, 1, "b") == first.raw()


def test_host_and_device_in_one_state(cuda: Make, sim: Sim) -> None:
    stream = sim.stream()
    device = DeviceArray(sim, (WORDS,))
    state = {"device": device, "numpy": np.arange(2000.0), "torch": torch.randn(2000), "epoch": 3}
    ckpt = cuda()
    before = device.raw(), state["numpy"].copy(), state["torch"].clone()
    with sim.copies_stalled():
        ckpt.save(1, state)
        ckpt.fence([(0, stream)])
        device.update(stream)
        state["numpy"] += 1
        state["torch"] += 1
    ckpt.wait()
    sim.synchronize(stream)
    state["epoch"] = 4
    assert ckpt.restore(state) == 1
    assert device.raw() == before[0]
    assert np.array_equal(state["numpy"], before[1])
    assert same(state["torch"], before[2])
    assert state["epoch"] == 3


def test_restore_of_more_than_the_pool_waits_for_what_is_queued(
    cuda: Make, sim: Sim, torch_on: Callable[[dict[int, int]], TorchCuda]
) -> None:
    stream = sim.stream()
    torch_on({0: stream})
    array = DeviceArray(sim, (9 * MIB // 4 + 3,))  # the pool has 4 MiB
    ckpt = cuda()
    ckpt.save(1, {"w": array})
    ckpt.wait()
    before = array.raw()
    array.update(stream, seconds=0.03)  # would spoil what was restored meanwhile
    assert ckpt.restore({"w": array}) == 1
    assert array.raw() == before


def test_restore_refuses_an_array_of_another_kind(cuda: Make, sim: Sim) -> None:
    ckpt = cuda()
    ckpt.save(1, {"w": DeviceArray(sim, (300,))})
    ckpt.wait()
    other = DeviceArray(sim, (300,), "int64")
    with pytest.raises(sw.MismatchError, match=r"'w' is int64\[300\] here and float32\[300\] in the checkpoint"):
        ckpt.restore({"w": other})
    with pytest.raises(sw.MismatchError, match="'w' cannot be written in place: it is read-only"):
        ckpt.restore({"w": DeviceArray(sim, (300,), read_only=True)})
    with pytest.raises(sw.MismatchError, match="'w' cannot be written in place"):
        ckpt.restore({"w": DeviceArray(sim, (300,), strides=(0,))})


def test_what_cannot_be_lent_is_refused_by_name(cuda: Make, sim: Sim) -> None:
    class Donated(DeviceArray):
        def __dlpack__(self, **options: Any) -> Any:
            raise RuntimeError("this buffer was donated")

    ckpt = cuda()
    array = DeviceArray(sim, (300,))
    with pytest.raises(sw.UnsupportedError, match="'w' is a Donated .*: this buffer was donated"):
        ckpt.save(1, {"w": Donated(sim, (3,))})
    with pytest.raises(sw.UnsupportedError, match="'w' has dtype float128"):
        ckpt.save(1, {"w": DeviceArray(sim, (3,), "float128")})
    with pytest.raises(sw.UnsupportedError, match="'w' is a view with reversed strides"):
        ckpt.save(1, {"w": DeviceArray(sim, (3,), strides=(-1,), base=array)})
    with pytest.raises(sw.UnsupportedError, match="there is no device cuda:7"):
        ckpt.save(1, {"w": DeviceArray(sim, (300,), base=array, device=7)})
    ckpt.save(1, {"w": DeviceArray(sim, (300,), read_only=True)})
    ckpt.wait()
    assert ckpt.steps() == [1]


def test_memory_is_held_while_it_is_read_and_given_back(cuda: Make, sim: Sim) -> None:
    array = DeviceArray(sim, (WORDS,))
    ckpt = cuda()
    with sim.copies_stalled():
        ckpt.save(1, {"w": array})
        ckpt.wait("fenced")
        assert array.lent == 1
    ckpt.close()
    assert array.lent == 0


# Streams and the fence


def test_update_queued_behind_the_fence_does_not_reach_the_snapshot(cuda: Make, sim: Sim, path: Path) -> None:
    stream = sim.stream()
    array = DeviceArray(sim, (WORDS,))
    before, after = array.raw(), array.updated()
    ckpt = cuda()
    with sim.copies_stalled():
        snapshot = ckpt.save(1, {"w": array}, after=[(0, stream)])
        ckpt.fence(streams=[(0, stream)])
        array.update(stream)
        assert snapshot.progress.level == "fenced"  # the CPU has gone on, and no byte has left
        assert array.raw() == before
    ckpt.wait()
    assert saved(path, 1) == before
    sim.synchronize(stream)
    assert array.raw() == after
    assert (snapshot.stats.device_fences, snapshot.stats.host_fences) == (1, 0)


def test_each_stream_may_be_fenced(cuda: Make, sim: Sim, path: Path) -> None:
    first, second = sim.stream(), sim.stream()
    array = DeviceArray(sim, (WORDS,))
    before = array.raw()
    ckpt = cuda()
    with sim.copies_stalled():
        snapshot = ckpt.save(1, {"w": array})
        ckpt.fence([(0, first)])
        ckpt.fence([TorchStream(0, second)])
        array.update(second)
        assert snapshot.stats.device_fences == 2
    ckpt.wait()
    assert saved(path, 1) == before


def test_update_without_a_fence_tears_the_snapshot(cuda: Make, sim: Sim) -> None:
    stream = sim.stream()
    ckpt = cuda(keep=0)
    snapshot = tear(ckpt, sim, DeviceArray(sim, (WORDS,)), stream)
    with pytest.raises(sw.TornError, match="tensor 'w' was written to between save\\(\\) and the fence"):
        snapshot.wait()
    with pytest.raises(sw.TornError):
        ckpt.wait()
    assert ckpt.steps() == list(range(1, snapshot.step))  # none, unless the machine is busy


def test_torn_array_is_captured_at_once_from_then_on(cuda: Make, sim: Sim, path: Path) -> None:
    stream = sim.stream()
    array = DeviceArray(sim, (WORDS,))
    ckpt = cuda()
    torn = tear(ckpt, sim, array, stream)
    with pytest.raises(sw.TornError):
        ckpt.wait()
    before = array.raw()
    snapshot = ckpt.save(torn.step + 1, {"w": array}, after=[(0, stream)])
    array.update(stream)
    ckpt.wait()
    assert saved(path, torn.step + 1) == before
    assert snapshot.stats.at_once_bytes == 4 * WORDS


def test_host_fence_returns_when_the_bytes_have_left(cuda: Make, sim: Sim, path: Path) -> None:
    array = DeviceArray(sim, (WORDS,))
    before = array.raw()
    sim.set_d2h_speed(SLOW)
    ckpt = cuda()
    with unsettled():  # nobody else comes before this fence
        snapshot = ckpt.save(1, {"w": array})
        ckpt.fence(host=True)
        array.write(bytes(4 * WORDS))  # at once, on no stream
    ckpt.wait()
    assert saved(path, 1) == before
    assert (snapshot.stats.device_fences, snapshot.stats.host_fences) == (0, 1)


def test_fence_that_knows_no_stream_waits_on_the_host(cuda: Make, sim: Sim, path: Path) -> None:
    """Nobody can tell on which stream a library other than torch will write."""
    array = DeviceArray(sim, (WORDS,))
    before = array.raw()
    sim.set_d2h_speed(SLOW)
    ckpt = cuda()
    with unsettled():
        snapshot = ckpt.save(1, {"w": array})
        ckpt.fence()
        array.write(bytes(4 * WORDS))
    ckpt.wait()
    assert saved(path, 1) == before
    assert (snapshot.stats.device_fences, snapshot.stats.host_fences) == (0, 1)


def test_copies_wait_for_the_streams_named(cuda: Make, sim: Sim, path: Path) -> None:
    stream = sim.stream()
    array = DeviceArray(sim, (WORDS,))
    produced = array.updated()
    ckpt = cuda()
    array.update(stream, seconds=0.05)
    ckpt.save(1, {"w": array}, after=[(0, stream)])
    ckpt.wait()
    assert saved(path, 1) == produced


def test_copies_wait_for_what_the_exporter_makes_ready(cuda: Make, sim: Sim, path: Path) -> None:
    """An array is asked for on the legacy default stream, and captured behind it."""
    array = DeviceArray(sim, (WORDS,))
    produced = array.updated()
    ckpt = cuda()
    array.update(0, seconds=0.05)
    ckpt.save(1, {"w": array})
    ckpt.wait()
    assert array.exported_for == 1
    assert saved(path, 1) == produced


def test_wait_for_fenced_returns_before_a_byte_has_left(cuda: Make, sim: Sim) -> None:
    ckpt = cuda()
    with sim.copies_stalled():
        snapshot = ckpt.save(1, {"w": DeviceArray(sim, (WORDS,))})
        snapshot.wait("fenced", timeout=30)
        assert snapshot.progress.level == "fenced"
        with pytest.raises(sw.TimeoutError, match="step 1 is not staged"):
            snapshot.wait("staged", timeout=0.01)
    ckpt.wait()
    stats = snapshot.stats
    assert 0 < stats.fenced_seconds < stats.staged_seconds < stats.committed_seconds


def test_small_arrays_are_copied_in_stream_order_inside_save(cuda: Make, sim: Sim, path: Path) -> None:
    stream = sim.stream()
    counter = DeviceArray(sim, (256,))
    before = counter.updated()
    ckpt = cuda()
    counter.update(stream, seconds=0.02)
    with sim.copies_stalled():
        snapshot = ckpt.save(1, {"w": counter}, after=[(0, stream)])
        counter.update(stream)  # no fence: forward changes it, on the device behind the copy; the CPU goes on
    sim.synchronize(stream)
    ckpt.wait()
    assert saved(path, 1) == before
    assert snapshot.stats.at_once_bytes == 1024


def test_small_arrays_are_copied_behind_whichever_stream_produces_them(cuda: Make, sim: Sim, path: Path) -> None:
    first, second = sim.stream(), sim.stream()
    counter = DeviceArray(sim, (256,))
    before = counter.updated()
    ckpt = cuda()
    counter.update(second, seconds=0.02)
    ckpt.save(1, {"w": counter}, after=[(0, first), (0, second)])
    counter.update(second)
    ckpt.wait()
    assert saved(path, 1) == before


def test_stalled_device_lets_training_go_after_the_stall_timeout(cuda: Make, sim: Sim) -> None:
    array = DeviceArray(sim, (WORDS,))
    ckpt = cuda(stall_timeout=0.2, keep=0)
    first = save_until_well(ckpt, 1, {"w": array})
    with sim.copies_stalled():
        snapshot = ckpt.save(first + 1, {"w": array})
        ckpt.fence(host=True)
        fences = snapshot.stats.host_fences
        ckpt.fence(host=True)  # the next step is not held up again
        assert snapshot.stats.host_fences == fences
    with pytest.raises(sw.TimeoutError, match="no progress"):
        ckpt.wait()
    last = save_until_well(ckpt, first + 2, {"w": array})
    assert ckpt.steps() == [first, last]


# CUDA graphs


def test_save_during_a_graph_capture_is_an_error(cuda: Make, sim: Sim) -> None:
    stream = sim.stream()
    state = {"w": DeviceArray(sim, (WORDS,))}
    ckpt = cuda()
    with (
        sim.capture(stream),
        pytest.raises(sw.UsageError, match="save\\(\\) was called while a CUDA graph is being captured"),
    ):
        ckpt.save(1, state, after=[(0, stream)])
    ckpt.save(1, state, after=[(0, stream)])
    ckpt.wait()
    assert ckpt.steps() == [1]


def test_a_step_inside_a_graph_capture_is_left_alone(
    cuda: Make, sim: Sim, path: Path, torch_on: Callable[[dict[int, int]], TorchCuda]
) -> None:
    stream = sim.stream()
    torch_on({0: stream})
    array = DeviceArray(sim, (WORDS,))
    before = array.raw()
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optim = torch.optim.SGD([parameter], lr=0.1)
    ckpt = cuda()
    with sim.copies_stalled():
        snapshot = ckpt.save(1, {"w": array, "p": parameter})
        snapshot.wait("fenced")
        waits = sim.calls("cuStreamWaitEvent")
        with sim.capture(stream):  # which fails at its end if anybody broke it
            optim.step()
        assert sim.calls("cuStreamWaitEvent") == waits
        ckpt.fence([(0, stream)])  # before the replay, as docs/python.md says; named, because the array is lent
        assert sim.calls("cuStreamWaitEvent") == waits + 1
        array.update(stream)  # the replay
    ckpt.wait()
    assert saved(path, 1) == before
    assert snapshot.stats.host_fences == 0


class Graphs:
    """torch works with CUDA on one stream, on which graphs are captured and replayed."""

    def __init__(self, sim: Sim, torch_on: Callable[[dict[int, int]], TorchCuda], patch: pytest.MonkeyPatch) -> None:
        self.stream = sim.stream()
        self.recording = False
        self.graph_class = type("CUDAGraph", (TorchGraph,), {"sim": sim, "stream": self.stream})
        torch_on({0: self.stream})
        patch.setattr(torch.cuda, "CUDAGraph", self.graph_class)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.recording)
        parameter = torch.nn.Parameter(torch.ones(3))
        parameter.grad = torch.ones(3)
        self.optim = torch.optim.SGD([parameter], lr=0.1)

    def capture(self, *updated: DeviceArray, step: bool = True) -> Any:
        """A graph that updates these arrays, with an optimizer step or without."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        self.recording = True
        if step:
            self.optim.step()
        graph.recorded = list(updated)  # type: ignore[attr-defined]
        self.recording = False
        graph.capture_end()
        return graph


@pytest.fixture
def graphs(
    sim: Sim, torch_on: Callable[[dict[int, int]], TorchCuda], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Graphs]:
    monkeypatch.setattr(graph_fences, "_warned", False)
    yield Graphs(sim, torch_on, monkeypatch)


def test_replay_of_a_captured_step_is_fenced(cuda: Make, sim: Sim, path: Path, graphs: Graphs) -> None:
    array = DeviceArray(sim, (WORDS,))
    ckpt = cuda()
    graph = graphs.capture(array)  # before the first save
    for step in (1, 2):
        before = array.raw()
        with sim.copies_stalled():
            snapshot = ckpt.save(step, {"w": array})
            graph.replay()
        ckpt.wait()
        sim.synchronize(graphs.stream)
        assert saved(path, step) == before
        assert array.raw() != before
        assert (snapshot.stats.device_fences, snapshot.stats.host_fences) == (1, 0)
    assert graph.replays == 2


def test_graph_without_a_step_is_not_fenced(cuda: Make, sim: Sim, graphs: Graphs) -> None:
    array = DeviceArray(sim, (WORDS,))
    ckpt = cuda()
    forward = graphs.capture(step=False)
    with sim.copies_stalled():
        snapshot = ckpt.save(1, {"w": array})
        forward.replay()
    ckpt.wait()
    assert forward.replays == 1
    assert (snapshot.stats.device_fences, snapshot.stats.host_fences) == (0, 0)


def test_graph_that_is_captured_again_without_its_step_is_not_fenced(cuda: Make, sim: Sim, graphs: Graphs) -> None:
    array = DeviceArray(sim, (WORDS,))
    ckpt = cuda()
    graph = graphs.capture()
    graph.capture_begin()
    graph.capture_end()
    snapshot = ckpt.save(1, {"w": array})
    graph.replay()
    ckpt.wait()
    assert snapshot.stats.device_fences == 0


def test_captured_step_is_warned_about_once(
    cuda: Make, graphs: Graphs, caplog: pytest.LogCaptureFixture, sim: Sim
) -> None:
    cuda()
    graphs.capture()
    graphs.capture()
    warnings = [record.message for record in caplog.records if "CUDA graph" in record.message]
    assert len(warnings) == 1
    assert "captured in a CUDA graph: CUDAGraph.replay() waits for the copies" in warnings[0]


def test_capture_that_began_before_the_checkpointer_asks_for_a_fence(
    cuda: Make, graphs: Graphs, caplog: pytest.LogCaptureFixture, sim: Sim
) -> None:
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    cuda()
    graphs.recording = True
    graphs.optim.step()
    graphs.recording = False
    graph.capture_end()
    assert "so its replays are not fenced: call fence() on the checkpointer before each replay" in caplog.text


def test_graphs_are_left_alone_once_the_last_checkpointer_is_closed(sim: Sim, path: Path, graphs: Graphs) -> None:
    methods = ("capture_begin", "capture_end", "replay")
    before = [getattr(graphs.graph_class, name) for name in methods]
    first = sw.Checkpointer(path / "a", **SMALL, cuda_driver=LIBRARY)
    second = sw.Checkpointer(path / "b", **SMALL, cuda_driver=LIBRARY)
    first.close()
    assert all(getattr(graphs.graph_class, name) is not was for name, was in zip(methods, before, strict=True))
    second.close()
    assert [getattr(graphs.graph_class, name) for name in methods] == before


# Trouble


def test_amd_gpus_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    on_device = OnCuda(torch.ones(3))
    for call in (lambda: torch_state.capture([on_device], ["w"]), lambda: torch_state.memory_of(on_device, "w")):
        with pytest.raises(sw.UnsupportedError, match="'w' is on an AMD GPU .* AMD GPUs are not supported yet"):
            call()  # type: ignore[no-untyped-call]


def test_arrays_on_amd_gpus_are_refused_by_name(make: Make) -> None:
    class OnRocm:
        def __dlpack__(self, **options: Any) -> Any:
            raise AssertionError("nobody asked what it is on")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 10, 0

    with pytest.raises(sw.UnsupportedError, match="'w' is an OnRocm on an AMD GPU, and AMD GPUs are not supported yet"):
        make().save(1, {"w": OnRocm()})


def test_missing_driver_is_an_error_only_for_a_state_on_a_device(cuda: Make, sim: Sim) -> None:
    ckpt = cuda(cuda_driver="libnowhere.so")
    ckpt.save(1, {"w": np.ones(2000)})
    ckpt.wait()
    with pytest.raises(sw.UnsupportedError, match="'w' cannot be captured: cannot load the CUDA driver .*libnowhere"):
        ckpt.save(2, {"w": DeviceArray(sim, (2000,))})
    ckpt.save(2, {"w": np.ones(2000)})
    ckpt.wait()
    assert ckpt.steps() == [1, 2]


def test_lost_device_fails_its_snapshots_and_nothing_else(cuda: Make, sim: Sim, path: Path) -> None:
    array = DeviceArray(sim, (WORDS,))
    before = array.raw()
    ckpt = cuda()
    ckpt.save(1, {"w": array})
    ckpt.wait()
    with sim.copies_stalled():
        lost = ckpt.save(2, {"w": array})
        lost.wait("fenced")
        sim.lose_device()
    ckpt.fence()  # returns
    with pytest.raises(sw.DeviceError, match="cuda:0"):
        lost.wait()
    later = ckpt.save(3, {"w": array})  # does not raise: training hears of it from the device itself
    assert isinstance(later.error, sw.DeviceError)
    with pytest.raises(sw.DeviceError):
        ckpt.wait()
    ckpt.save(4, {"w": np.zeros(2000)})
    ckpt.close(timeout=60)
    with sw.Checkpointer(path) as again:
        assert again.steps() == [1, 4]
    assert saved(path, 1) == before


def test_two_devices_in_one_process(sim: Sim, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWSIM_DEVICES", "2")
    code = """
        import sys
        sys.path.insert(0, sys.argv[2])
        import slackwater as sw
        from cuda_sim import LIBRARY, DeviceArray, Sim

        sim = Sim()
        with sw.Checkpointer(sys.argv[1], pool="4MiB", slab="1MiB", cuda_driver=LIBRARY) as ckpt:
            streams = [(device, sim.stream(device)) for device in (0, 1)]
            arrays = [DeviceArray(sim, (300_000,), device=device) for device in (0, 1)]
            moved = DeviceArray(sim, (3000,), device=0)
            before = [array.raw() for array in arrays]
            with sim.copies_stalled(0), sim.copies_stalled(1):
                snapshot = ckpt.save(1, {"arrays": arrays, "moved": moved}, after=streams)
                ckpt.fence(streams)
                for array, (_, stream) in zip(arrays, streams):
                    array.update(stream)
                assert snapshot.progress.level == "fenced"
            ckpt.wait()
            assert (snapshot.stats.device_fences, snapshot.stats.host_fences) == (1, 0)
            for _, stream in streams:
                sim.synchronize(stream)
            ckpt.restore({"arrays": arrays, "moved": moved})
            assert [array.raw() for array in arrays] == before

            settle, sw.Snapshot._settle = sw.Snapshot._settle, lambda self: None  # nobody else comes before this fence
            snapshot = ckpt.save(2, {"arrays": arrays, "moved": moved})
            ckpt.fence(streams[:1])  # no stream of device 1: on the host
            sw.Snapshot._settle = settle
            settle(snapshot)
            assert (snapshot.stats.device_fences, snapshot.stats.host_fences) == (0, 1)

            moved = DeviceArray(sim, (3000,), device=1)  # alike, but for its device
            ckpt.save(3, {"arrays": arrays, "moved": moved})
            ckpt.wait()
        assert sw.load(sys.argv[1])["moved"].tobytes() == moved.raw()
        del ckpt, snapshot
        sim.close()
    """
    python(code, path, Path(__file__).parent)


# torch: its streams, and what is made of its tensors


def test_streams_of_torch_are_used_where_it_works_with_cuda(
    cuda: Make, sim: Sim, path: Path, torch_on: Callable[[dict[int, int]], TorchCuda]
) -> None:
    stream = sim.stream()
    torch_on({0: stream})
    array = DeviceArray(sim, (WORDS,))
    produced = array.updated()
    ckpt = cuda()
    array.update(stream, seconds=0.03)
    with sim.copies_stalled():
        snapshot = ckpt.save(1, {"w": array})
        ckpt.fence([TorchStream(0, stream)])  # without it, one for arrays that are lent waits on the host
        array.update(stream)
        assert snapshot.progress.level == "fenced"
    ckpt.wait()
    assert saved(path, 1) == produced
    assert (snapshot.stats.device_fences, snapshot.stats.host_fences) == (1, 0)


def test_optimizer_step_orders_the_current_stream(
    cuda: Make, sim: Sim, path: Path, torch_on: Callable[[dict[int, int]], TorchCuda]
) -> None:
    stream = sim.stream()
    torch_on({0: stream})
    array = DeviceArray(sim, (WORDS,))
    before = array.raw()
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    ckpt = cuda()
    with sim.copies_stalled():
        snapshot = ckpt.save(1, {"w": array, "p": parameter})
        torch.optim.SGD([parameter], lr=0.1).step()
        array.update(stream)
        assert snapshot.progress.level == "fenced"
    ckpt.wait()
    assert saved(path, 1) == before
    assert snapshot.stats.device_fences == 1


def test_exported_arrays_are_waited_for_beside_the_streams_of_torch(
    cuda: Make, sim: Sim, path: Path, torch_on: Callable[[dict[int, int]], TorchCuda]
) -> None:
    torch_on({0: sim.stream()})
    array = DeviceArray(sim, (WORDS,))
    produced = array.updated()
    ckpt = cuda()
    array.update(0, seconds=0.05)  # the exporter's work, which it orders before the default stream
    ckpt.save(1, {"w": array})
    ckpt.wait()
    assert saved(path, 1) == produced


def test_producers_are_the_current_streams_and_the_default_one_where_arrays_are_lent(
    torch_on: Callable[[dict[int, int]], TorchCuda],
) -> None:
    torch_on({0: 11, 1: 0, 2: 13})
    assert streams.producers([0, 1], []) == [(0, 11), (1, 0)]
    assert streams.producers([0, 1], [0, 1]) == [(0, 11), (1, 0), (0, 0)]
    assert streams.producers([], []) == [(0, 11)]  # it may be filling pinned host tensors
    assert streams.all_producers() == [(0, 11), (1, 0), (2, 13), (0, 0), (2, 0)]


def test_torch_without_cuda_is_not_asked_for_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("torch was asked to use CUDA")

    for name in ("current_stream", "current_device", "device_count", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    assert streams.current_streams([0]) == []
    assert streams.producers([0], [0]) == [(0, 0)]
    assert streams.all_producers() == []


def test_host_states_leave_torch_cuda_alone(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("torch was asked to use CUDA")

    for name in ("current_stream", "current_device", "device_count", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    model = torch.nn.Linear(30, 30)
    optim = torch.optim.Adam(model.parameters())
    state = {"model": model, "optim": optim}
    ckpt = make(cuda_driver="libnowhere.so")
    for step in (1, 2):
        model(torch.ones(1, 30)).sum().backward()
        optim.step()
        ckpt.save(step, state)
    ckpt.fence()
    ckpt.wait()
    assert ckpt.restore(state) == 2
    assert not torch.cuda.is_initialized()


def test_streams_may_be_named_in_several_ways() -> None:
    class CupyStream:
        ptr, device_id = 7, 1

    assert streams.stream_pairs([(0, 5), TorchStream(2, 6), CupyStream()]) == [(0, 5), (2, 6), (1, 7)]
    assert streams.stream_pairs([]) == []


@pytest.mark.parametrize("wrong", [(0, 5), 5, [5], [(0, -1)], [(-1, 5)], [("cuda", 5)], [(0, 5, 6)], [None]])
def test_what_is_no_stream_is_refused(make: Make, wrong: Any) -> None:
    ckpt = make()
    with pytest.raises(sw.UsageError, match="stream"):
        ckpt.fence(wrong)
    with pytest.raises(sw.UsageError, match="stream"):
        ckpt.save(1, {"w": np.ones(3)}, after=wrong)


class OnCuda:
    """A tensor that says it is on a CUDA device; its bytes, and all that is worked out of them, are on the host."""

    is_cuda = True
    device = torch.device("cuda", 0)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def detach(self) -> OnCuda:
        return self

    def get_device(self) -> int:
        return 0


def test_tensors_are_scattered_if_their_rows_are_short() -> None:
    assert torch_state._is_scattered(torch.ones(64, 64).t())
    assert torch_state._is_scattered(torch.ones(64, 64)[:, :32])  # rows of 128 bytes
    assert torch_state._is_scattered(torch.ones(1000)[::2])
    assert not torch_state._is_scattered(torch.ones(64, 64))
    assert not torch_state._is_scattered(torch.ones(4, 1024)[:, :128])
    assert not torch_state._is_scattered(torch.ones(4, 8, 16, 4)[:, :4])  # inner dimensions lie side by side
    assert not torch_state._is_scattered(torch.ones(0, 5).t())


def test_scattered_tensors_on_a_device_are_packed_there_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_state, "_PACKED_BYTES", 20_000)
    columns = torch.randn(64, 64)
    scattered, tied, other = OnCuda(columns.t()), OnCuda(columns.t()), OnCuda(torch.randn(50, 50).t())
    plain, host = OnCuda(torch.randn(64, 64)), torch.randn(64, 64).t()
    packed = torch_state._pack_scattered([scattered, tied, other, plain, host])  # type: ignore[list-item]
    assert packed[0].is_contiguous()
    assert torch.equal(packed[0], columns.t())
    assert packed[1] is packed[0]
    assert packed[2] is other  # no room left
    assert packed[3] is plain
    assert packed[4] is host


def test_scattered_tensors_stay_as_they_are_where_the_device_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(OnCuda, "contiguous", refuse, raising=False)
    scattered = OnCuda(torch.randn(64, 64).t())
    packed = torch_state._pack_scattered([scattered])  # type: ignore[list-item]
    assert packed[0] is scattered


def test_nothing_is_computed_on_the_current_stream_when_others_are_named() -> None:
    scattered = OnCuda(torch.randn(64, 64).t())
    held, *_, devices, _ = torch_state.capture([scattered], ["w"], compute=True)  # type: ignore[list-item]
    assert held[0].is_contiguous()
    held, *_, devices, addresses = torch_state.capture([scattered], ["w"], compute=False)  # type: ignore[list-item]
    assert held == [scattered]
    assert (devices, addresses) == ([0], [scattered.data_ptr()])
    conjugated = OnCuda(torch.randn(3, dtype=torch.complex64).conj())
    with pytest.raises(sw.UnsupportedError, match="'w' is a conjugated or negated view"):
        torch_state.capture([conjugated], ["w"], compute=False)  # type: ignore[list-item]
