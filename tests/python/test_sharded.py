"""Several ranks save one state; another number of ranks has it back, to the last bit."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from rank_processes import run_ranks
from support import SECONDS
from support import same as equal

TESTS = Path(__file__).parent

PRELUDE = f'''
sys.path.insert(0, {str(TESTS)!r})
import slackwater
from sharded_cases import *
from torch.nn.parallel import DistributedDataParallel

def turns(rank, *worlds):
    """The same processes as one number of ranks after the other; those that are too many stand aside."""
    base = client()
    for turn, ranks in enumerate(worlds):
        if rank < ranks:
            store = dist.PrefixStore(str(turn), base)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
            yield ranks
            dist.barrier()
            dist.destroy_process_group()

def checkpointer(name="run", **options):
    return sw.Checkpointer(f"{{path}}/{{name}}", keep=0, commit_timeout=120, **{{**SMALL, **options}})
'''


def run(program: str, world: int, path: Path) -> dict[str, Any]:
    result = run_ranks(PRELUDE + program, world, path)
    assert result["codes"] == [0] * world, result["errors"]
    return result


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(map(equal, a.values(), (b[name] for name in a)))


def on_disk(path: Path, step: int | None = None) -> dict[str, torch.Tensor]:
    with sw.open(path, step) as checkpoint:
        return {name: checkpoint[name] for name in checkpoint}


FSDP = """
def main(rank):
    for ranks in turns(rank, 4, 2, 3):
        net = fsdp(seed=ranks)
        optim = optimizer(net)
        state = {"model": net, "optim": optim, "epoch": 0}
        with checkpointer() as ckpt:
            start = ckpt.restore(state) or 0
            assert state["epoch"] == start
            keep(gathered(model=net, optim=optim), f"{path}/restored-{start}.pt")
            for step in (start + 1, start + 2):
                train(net, optim, step)
                state["epoch"] = step
                ckpt.save(step, state)
            keep(gathered(model=net, optim=optim), f"{path}/saved-{step}.pt")
"""


def test_fsdp_goes_from_four_ranks_to_two_to_three(tmp_path: Path) -> None:
    run(FSDP, 4, tmp_path)
    for step in (2, 4, 6):
        saved = torch.load(tmp_path / f"saved-{step}.pt")
        assert len(saved) == 9 * 4
        assert same(on_disk(tmp_path / "run", step), saved)
        assert step == 6 or same(torch.load(tmp_path / f"restored-{step}.pt"), saved)
    tree = sw.load(tmp_path / "run")
    assert tree["epoch"] == 6
    assert torch.equal(tree["optim"]["state"][0]["exp_avg"], saved["optim.state.0.exp_avg"])


MESHES = """
def main(rank):
    for turn, _ in enumerate(turns(rank, 4, 4)):
        net = fsdp(seed=2) if turn else tensor_parallel(seed=1, data=2, tensor=2)
        optim = optimizer(net)
        state = {"model": sw.Replicated(net), "optim": sw.Replicated(optim)}
        with checkpointer() as ckpt:
            assert ckpt.restore(state) == (2 if turn else None)
            for step in () if turn else (1, 2):
                train(net, optim, step)
                ckpt.save(step, state)
        keep(gathered(model=net, optim=optim), f"{path}/{turn}.pt")
        train(net, optim, 3)
"""


def test_tensor_and_data_parallel_go_to_data_parallel_alone(tmp_path: Path) -> None:
    run(MESHES, 4, tmp_path)
    saved = torch.load(tmp_path / "0.pt")
    assert same(on_disk(tmp_path / "run"), saved)
    assert same(torch.load(tmp_path / "1.pt"), saved)


UNEVEN = """
def main(rank):
    for ranks in turns(rank, 6, 4):
        net = uneven(seed=ranks, data=ranks // 2, tensor=2)
        with checkpointer() as ckpt:
            if ranks == 6:
                ckpt.save(1, {"model": net})
            else:
                assert ckpt.restore({"model": net}) == 1
        keep(gathered(model=net), f"{path}/{ranks}.pt")
"""


def test_uneven_rows_of_tensor_and_data_parallel(tmp_path: Path) -> None:
    run(UNEVEN, 6, tmp_path)
    saved = torch.load(tmp_path / "6.pt")
    torch.manual_seed(6)
    assert torch.equal(saved["model.seven.weight"], torch.nn.Linear(4, 7).weight)
    assert torch.equal(saved["model.thirteen.weight"], torch.nn.Linear(4, 13).weight)
    assert same(on_disk(tmp_path / "run"), saved)
    assert same(torch.load(tmp_path / "4.pt"), saved)


DDP = """
def main(rank):
    for ranks in turns(rank, 4, 2):
        torch.manual_seed(ranks)
        net = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(150, 150) for _ in range(12))))
        optim = optimizer(net)
        with checkpointer() as ckpt:
            if ranks == 4:
                net(torch.randn(4, 150)).sum().backward()
                optim.step()
                ckpt.save(1, {"model": net, "optim": optim})
            else:
                assert ckpt.restore({"model": net, "optim": optim}) == 1
        torch.save(gathered(model=net, optim=optim), f"{path}/{ranks}-{rank}.pt")
"""


def data_bytes(file: Path) -> int:
    """Of a safetensors file, without its header."""
    with file.open("rb") as stream:
        return file.stat().st_size - 8 - int.from_bytes(stream.read(8), "little")


def test_ddp_writes_every_byte_once_and_all_ranks_write_the_same_share(tmp_path: Path) -> None:
    run(DDP, 4, tmp_path)
    saved = torch.load(tmp_path / "4-0.pt")
    replica = sum(tensor.numel() * tensor.itemsize for tensor in saved.values())
    shares = [data_bytes(file) for file in sorted((tmp_path / "run").glob("step-*/rank-*.safetensors"))]
    assert len(shares) == 4 and sum(shares) == replica
    assert max(shares) <= 1.05 * replica / 4 and min(shares) >= 0.95 * replica / 4
    assert same(on_disk(tmp_path / "run"), saved)

    assert all(same(torch.load(tmp_path / f"2-{rank}.pt"), saved) for rank in range(2))
    model = torch.nn.Sequential(*(torch.nn.Linear(150, 150) for _ in range(12)))  # and one rank, without DDP
    optim = torch.optim.AdamW(model.parameters())
    with sw.Checkpointer(tmp_path / "run", pool="4MiB", slab="1MiB") as ckpt:
        assert ckpt.restore({"model": model, "optim": optim}) == 1
    assert torch.equal(model[3].weight, saved["model.3.weight"])
    assert torch.equal(optim.state[model[3].weight]["exp_avg_sq"], saved["optim.state.6.exp_avg_sq"])


DDP_BUFFERS = """
def model(**options):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    return DistributedDataParallel(net, **options)

def hooked(**options):
    net = model(**options)
    net.register_state_dict_pre_hook(lambda *_: None)  # goes through state_dict(), which hands out other tensors
    return net

def main(rank):
    for turn, ranks in enumerate(turns(rank, 3, 3, 2)):
        for name in ("plain", "hooked", "own"):
            torch.manual_seed(turn)
            net = (hooked if name == "hooked" else model)(forward_sync_buffers=name != "own")
            with checkpointer(name) as ckpt:
                if turn == 0:
                    net(torch.randn(8, 4) * (rank + 1))  # statistics of its own batch
                    ckpt.save(1, {"model": net})
                elif name == "own" and ranks == 2:
                    try:
                        ckpt.restore({"model": net})
                    except sw.MismatchError as error:
                        assert "'model.1.running_mean'" in str(error) and "model.1.weight" not in str(error), error
                    else:
                        raise AssertionError("buffers that each rank has its own of")
                else:
                    assert ckpt.restore({"model": net}) == 1
            torch.save(dict(net.module.state_dict()), f"{path}/{name}-{turn}-{rank}.pt")
"""


def test_buffers_below_ddp_are_those_of_rank_0_on_any_number_of_ranks(tmp_path: Path) -> None:
    run(DDP_BUFFERS, 3, tmp_path)
    for name in ("plain", "hooked"):
        first, second = (torch.load(tmp_path / f"{name}-0-{rank}.pt") for rank in (0, 1))
        assert first["1.num_batches_tracked"] == 1
        assert not torch.equal(first["1.running_mean"], second["1.running_mean"])
        assert same(on_disk(tmp_path / name), {f"model.{key}": tensor for key, tensor in first.items()})
        for turn, ranks in ((1, 3), (2, 2)):
            assert all(same(torch.load(tmp_path / f"{name}-{turn}-{rank}.pt"), first) for rank in range(ranks))
    for rank in range(3):  # without the broadcast each rank's buffers are its own
        assert same(torch.load(tmp_path / f"own-1-{rank}.pt"), torch.load(tmp_path / f"own-0-{rank}.pt"))
    alone = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    with sw.Checkpointer(tmp_path / "plain", pool="2MiB", slab="1MiB") as ckpt:
        assert ckpt.restore({"model": alone}) == 1
    assert same(dict(alone.state_dict()), first)


RANK_LOCAL = """
def main(rank):
    for ranks in turns(rank, 2, 3):
        (save if ranks == 2 else restore)(rank)

def save(rank):
    net = fsdp(seed=1)
    torch.manual_seed(rank)
    state = {
        "model": net, "mine": torch.arange(3) + 10 * rank, "seat": rank, "epoch": 7,
        "data": sw.Replicated({"order": torch.arange(5), "place": 3}), "rng": sw.Rng(),
        "grid": [sw.Shard(torch.full((2, 3), float(rank)), (6, 3), (2 * rank, 0)),
                 sw.Shard(torch.full((1, 3), float(-rank)), (6, 3), (4 + rank, 0))],
    }
    with checkpointer() as ckpt:
        ckpt.save(1, state)

def restore(rank):
    net = fsdp(seed=2)
    before = gathered(model=net)
    rows = torch.zeros(2, 3)
    state = {
        "model": net, "mine": torch.zeros(3, dtype=torch.int64), "seat": -1, "epoch": 0,
        "data": sw.Replicated({"order": torch.zeros(5, dtype=torch.int64), "place": 0}), "rng": sw.Rng(),
        "grid": sw.Shard(rows, (6, 3), (2 * rank, 0)),
    }
    with checkpointer() as ckpt:
        try:
            ckpt.restore(state)
        except sw.MismatchError as error:
            assert "saved by 2 ranks and this run has 3" in str(error), error
            assert "'mine'" in str(error) and "'seat'" in str(error) and "'rng'" not in str(error), error
            assert "'epoch'" not in str(error) and "model" not in str(error) and "data" not in str(error), error
            assert "rank_local='drop'" in str(error), error
        else:
            raise AssertionError("nothing was refused")
        after = gathered(model=net)
        assert all(torch.equal(before[name], after[name]) for name in before) and state["epoch"] == 0
        assert ckpt.restore(state, rank_local="drop") == 1
    assert state["epoch"] == 7 and state["seat"] == -1 and torch.all(state["mine"] == 0)
    assert torch.equal(state["data"].value["order"], torch.arange(5)) and state["data"].value["place"] == 3
    assert rows[:, 0].tolist() == [[0, 0], [1, 1], [0, -1]][rank], rows
    assert torch.initial_seed() == 2
    print("good", flush=True)
"""


def test_what_belongs_to_single_ranks_is_named_or_dropped(tmp_path: Path) -> None:
    assert run(RANK_LOCAL, 3, tmp_path)["lines"] == ["good"] * 3
    with sw.open(tmp_path / "run") as checkpoint:
        assert checkpoint["rank-00001/mine"].tolist() == [10, 11, 12]
        assert checkpoint["grid"][:, 0].tolist() == [0, 0, 1, 1, 0, -1]
        assert checkpoint.tree()["mine"].tolist() == [0, 1, 2]


ODDS_AND_ENDS = """
import logging

class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []
    def emit(self, record):
        self.lines.append(record.getMessage())

def main(rank):
    join(rank)
    heard = Lines()
    logging.getLogger("slackwater").addHandler(heard)

    # A plain module of every rank: a hint, once, and by rank 0.
    plain = torch.nn.Linear(600, 600)
    with checkpointer("plain") as ckpt:
        ckpt.save(1, {"model": plain})
        ckpt.save(2, {"model": plain})
    hints = [line for line in heard.lines if "sw.Replicated" in line]
    assert len(hints) == (1 if rank == 0 else 0), hints
    assert all("'model'" in line and "1.4 MiB" in line for line in hints)

    # Replicas that are none.
    with checkpointer("differs") as ckpt:
        snapshot = ckpt.save(1, {"w": sw.Replicated(torch.full((10,), float(rank)))})
        try:
            snapshot.wait()
        except sw.Error as error:
            assert "'w'" in str(error) or " w " in str(error), error
        else:
            raise AssertionError("ranks differ")
        try:
            ckpt.wait()
        except sw.Error:
            pass

    # Another dtype.
    net = fsdp(seed=1)
    with checkpointer("cast") as ckpt:
        ckpt.save(1, {"model": net})
    wide = fsdp(seed=2).double()
    with checkpointer("cast") as ckpt:
        try:
            ckpt.restore({"model": wide})
        except sw.MismatchError as error:
            assert "cast=True" in str(error), error
        assert ckpt.restore({"model": wide}, cast=True) == 1
    narrow, given = gathered(model=net), gathered(model=wide)
    assert all(torch.equal(narrow[name].double(), given[name]) for name in narrow)

    # Names that do not match.
    with checkpointer("cast") as ckpt:
        for wrong in ({"model": fsdp(seed=1), "more": torch.zeros(2)}, {"other": fsdp(seed=1)}):
            try:
                ckpt.restore(wrong)
            except sw.MismatchError as error:
                assert "lacks" in str(error), error
            else:
                raise AssertionError("fits")
    print("good", flush=True)
"""


DRIFT = """
def main(rank):
    join(rank)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 4)))
    average = [torch.zeros(5), torch.zeros(200, 200)]
    loader = {"place": 0, "order": [1, 2, 3]}
    state = {"model": model, "ema": sw.Replicated(average), "deep": [{"data": sw.Replicated(loader)}], "seat": rank}
    step = 0

    def save():
        nonlocal step
        step += 1
        try:
            ckpt.save(step, state).wait()
        except sw.AbortedError as error:
            return str(error)

    def aborted(*words):
        error = save()
        assert error is not None, (step, words)
        assert all(word in error for word in (*words, "is not the same on ranks 0, 2 and rank 1")), error

    def change(tensor, difference):
        if rank == 1:
            with torch.no_grad():
                tensor += difference

    with checkpointer() as ckpt:
        for _ in range(3):
            assert save() is None
        small = model.module[1].bias
        change(small[3:], 1.0)
        aborted("tensor 'model.1.bias'")
        change(small[3:], -1.0)
        small.data.copy_(torch.zeros(4))
        assert save() is None

        change(average[0], 1.0)
        aborted("tensor 'ema.0'")
        average[0].zero_()
        assert save() is None

        change(average[1], 1.0)  # every element of a large one
        aborted("tensor 'ema.1'")
        average[1].zero_()
        assert save() is None

        change(average[1][100:110], 1.0)  # a piece of it
        for _ in range(60):
            error = save()
            if error is not None:
                break
        assert error is not None and "tensor 'ema.1'" in error, error
        average[1].zero_()
        assert save() is None

        loader["place"] = 7
        assert save() is None
        loader["place"] += rank == 1
        aborted("replicated value 'deep.0.data.place'")
        loader["place"] = 8
        assert save() is None
        last = step
        try:
            ckpt.wait()
        except sw.AbortedError:
            pass
    with checkpointer() as ckpt:
        state["seat"] = -1
        assert ckpt.restore(state) == last
        assert state["seat"] == rank and loader == {"place": 8, "order": [1, 2, 3]}
    print("good", flush=True)
"""


def test_replicas_that_come_apart_after_the_first_commit_abort_the_step(tmp_path: Path) -> None:
    assert run(DRIFT, 3, tmp_path)["lines"] == ["good"] * 3


def test_hints_and_refusals(tmp_path: Path) -> None:
    assert run(ODDS_AND_ENDS, 2, tmp_path)["lines"] == ["good"] * 2


VERIFY = """
def main(rank):
    for ranks in turns(rank, 2, 3, 4):
        net = fsdp(seed=ranks)
        optim = optimizer(net)
        with checkpointer() as ckpt:
            step = ckpt.restore({"model": net, "optim": optim})
        found = digest(gathered(model=net, optim=optim))
        if rank == 0:
            print(f"{ranks} {step} {found}", flush=True)
"""


class Run:
    """Four ranks, of which one is killed; what they have said is kept."""

    def __init__(self, path: Path, *, torchrun: bool) -> None:
        self.digests: dict[int, str] = {}
        self.committed = 0
        self.pids: dict[int, int] = {}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [str(TESTS / "sharded_trainer.py"), str(path), "100000"]
        if torchrun:
            agent = ["-m", "torch.distributed.run", "--nproc-per-node=4", "--monitor-interval=0.1"]
            command = [*agent, "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", *command]
        else:
            command.append("4")  # it forks them itself, which spares each the loading of torch
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.errors: list[str] = []
        self._drain = threading.Thread(target=lambda: self.errors.extend(self.process.stderr or ()))
        self._drain.start()

    def kill_one(self, moment: random.Random) -> None:
        steps = moment.randint(2, 12)
        while len(self.pids) < 4 or len(self.digests) < steps or not self.committed:
            self._take(self._line())
        time.sleep(moment.uniform(0, 0.2))  # the moment is what is random here: nothing is waited for
        os.kill(self.pids[moment.randrange(4)], signal.SIGKILL)
        for line in self.process.stdout or ():
            self._take(line)
        assert self.process.wait(timeout=SECONDS) != 0
        self._drain.join()

    def _line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "".join(self.errors)
        return line

    def _take(self, line: str) -> None:
        kind, *words = line.split()
        if kind == "pid":
            self.pids[int(words[0])] = int(words[1])
        elif kind == "step":
            self.digests[int(words[0])] = words[1]
        elif kind == "committed":
            self.committed = max(self.committed, int(words[0]))

    def end(self) -> None:
        if self.process.poll() is not None:
            return  # and its ranks with it
        self.process.kill()
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


KILLS = os.environ.get("SLACKWATER_TORCHRUN_KILLS")  # of runs by torchrun; else one, and two that are started faster


@pytest.mark.parametrize("kill", range(int(KILLS or 3)))
def test_a_run_killed_at_any_moment_goes_on_with_any_number_of_ranks(kill: int, tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    moment = random.Random(seed)  # another one each time
    trainer = Run(tmp_path / "run", torchrun=KILLS is not None or kill == 0)
    try:
        trainer.kill_one(moment)
    finally:
        trainer.end()
    lines = run(VERIFY, 4, tmp_path)["lines"]
    assert [line.split()[0] for line in lines] == ["2", "3", "4"]
    for line in lines:
        ranks, step, found = line.split()
        assert int(step) >= trainer.committed, f"{ranks} ranks lost a committed step (seed {seed})"
        assert found == trainer.digests.get(int(step)), f"step {step} on {ranks} ranks (seed {seed})"
