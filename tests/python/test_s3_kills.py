"""SIGKILL while a run uploads to an object store, deletes there, or `slackwater gc --delete` works there.

A proxy in front of a real server counts the requests and kills the process at a random one: before the request gets
through, in the middle of its body, or when only its reply is lost. Each state takes an upload of two parts.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slackwater as sw
from object_stores import BUCKET, COMMAND, Fault, Proxy, Request, Store, environment, serve, uploads

KILLS = int(os.environ.get("SLACKWATER_S3_KILLS", "5"))
SEED = int(os.environ.get("SLACKWATER_SEED", "20261118"))
EVERY = 2
KEEP = 2

TRAINERS = f"""
import ctypes, os, signal, sys
import numpy as np, slackwater as sw

def train(path, location, steps):
    base = np.resize(np.arange(251, dtype=np.uint8), (64 << 20) + 4096)
    state = {{"w": base.copy(), "step": 0}}
    tier = sw.Tier(location, every={EVERY}, keep={KEEP})
    with sw.Checkpointer(path, pool="32MiB", keep=1, tiers=[tier]) as ckpt:
        start = ckpt.restore(state) or 0
        if start:
            assert state["step"] == start and np.array_equal(state["w"], base + np.uint8(start % 256)), "wrong bytes"
        print("from", start, os.getpid(), flush=True)
        for step in range(start + 1, start + steps + 1):
            np.add(base, np.uint8(step % 256), out=state["w"])
            state["step"] = step
            ckpt.save(step, state).wait("committed")
            print("committed", step, flush=True)
            ckpt.fence()
            if step % 4 == 0:
                ckpt.wait_copied()
    print("end", step, flush=True)

pid = None
for line in sys.stdin:  # each run is forked, with the libraries loaded
    if pid is not None:
        os.waitpid(pid, 0)
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent
        path, location, steps, endpoint = line.split()
        os.environ["AWS_ENDPOINT_URL"] = endpoint
        train(path, location, int(steps))
        os._exit(0)
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # its number stays its own until the next run
    print("over", ended.si_status, flush=True)
"""


@pytest.fixture(params=["rclone", "moto"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with serve(request.param, tmp_path) as made:
        yield made


@dataclass
class Killer:
    """Kills a process at the n-th request that it sends. Most requests read: it may be told not to count them."""

    at: int
    chance: random.Random
    counts_reads: bool = True
    process: int = 0
    seen: int = 0
    where: list[str] = field(default_factory=list)

    def __call__(self, request: Request) -> Fault | None:
        if request.method in ("GET", "HEAD") and not self.counts_reads:
            return None
        self.seen += 1
        if self.seen != self.at or not self.process:
            return None
        os.kill(self.process, signal.SIGKILL)
        self.where.append(f"{request.method} {request.target}")
        if self.chance.random() < 0.3:
            return None  # only the reply is lost
        return Fault(reset_after=self.chance.randrange(request.size_bytes + 1))


@dataclass
class Run:
    """A run on a local directory with one tier in the store, and what was promised so far."""

    store: Store
    directory: Path
    chance: random.Random
    committed: int = 0
    copied: int = 0
    killed_at: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.location = f"s3://{BUCKET}/run"
        self.path = self.directory / "run"
        self.env = self.store.env(self.directory)
        self.trainers = subprocess.Popen(
            [sys.executable, "-c", TRAINERS],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.trainers.stdout is not None and self.trainers.stderr is not None
        line = self.trainers.stdout.readline()
        assert line, self.trainers.stderr.read()
        return line.rstrip("\n")

    def begin(self, steps: int, endpoint: str) -> None:
        assert self.trainers.stdin is not None
        self.trainers.stdin.write(f"{self.path} {self.location} {steps} {endpoint}\n")
        self.trainers.stdin.flush()

    def hear_out(self, on_start: Callable[[int], None] = lambda _: None) -> int:
        """Until it is over: its exit code or signal."""
        while True:
            word, *rest = self.line().split()
            if word == "from":
                assert int(rest[0]) >= self.committed, "it went back behind a step that was reported committed"
                on_start(int(rest[1]))
            elif word == "committed":
                self.committed = int(rest[0])
            elif word == "over":
                return int(rest[0])

    def train_and_kill(self) -> None:
        with Proxy(self.store) as proxy:
            reads = self.chance.random() < 0.3
            killer = Killer(1 + self.chance.randrange(120 if reads else 40), self.chance, reads)
            proxy.fault = killer
            self.begin(10_000, proxy.endpoint)

            def began(process: int) -> None:
                killer.process = process
                killer.at += killer.seen  # from the restore's last request on

            assert self.hear_out(began) == signal.SIGKILL
        self.killed_at += killer.where
        self.check()

    def collect_and_kill(self) -> None:
        """`slackwater gc --delete`, killed; what is live stays."""
        before = self.live()
        with Proxy(self.store) as proxy:
            reads = self.chance.random() < 0.5
            killer = Killer(1 + self.chance.randrange(30 if reads else 8), self.chance, reads)
            proxy.fault = killer
            words = [COMMAND, "gc", self.location, "--delete", "--no-lock"]
            env = self.store.env(self.directory, proxy.endpoint)
            gc = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            killer.process = gc.pid
            gc.communicate()
        self.killed_at += [f"gc: {where}" for where in killer.where]
        assert self.live() == before
        self.check()

    def command(self, *words: str) -> Any:
        done = subprocess.run([COMMAND, *words, "--json"], env=self.env, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}\nkilled at {self.killed_at}"
        return json.loads(done.stdout)

    def keys(self) -> list[str]:
        pages = self.store.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="run/")
        return [item["Key"] for page in pages for item in page.get("Contents") or []]

    def live(self) -> list[int]:
        return [one["step"] for one in self.command("ls", self.location)["versions"]] if self.keys() else []

    def check(self) -> None:
        """Whatever is live in the store is whole, and nothing that was there is lost."""
        steps = self.live()
        if steps:
            assert self.command("verify", self.location)["ok"]
        newest = max(steps, default=0)
        assert newest >= self.copied, f"step {self.copied} was there and is gone; killed at {self.killed_at}"
        self.copied = newest

    def finish(self) -> None:
        """A run that is left alone leaves no debris and no part of an upload."""
        self.begin(4, self.store.endpoint)
        assert self.hear_out() == 0
        self.check()
        assert self.copied == self.committed // EVERY * EVERY
        assert not uploads(self.store), f"orphaned parts; killed at {self.killed_at}"
        garbage = self.command("gc", self.location)
        assert not garbage["removed"] and not garbage["uploads"], f"{garbage}; killed at {self.killed_at}"
        directories = {one["directory"] for one in self.command("ls", self.location)["versions"]}
        strange = [key for key in self.keys() if key.split("/")[1] not in directories | {".slackwater"}]
        assert not strange, f"{strange}; killed at {self.killed_at}"

    def lose_the_disk(self) -> None:
        shutil.rmtree(self.path)
        self.committed = self.copied
        self.begin(1, self.store.endpoint)
        assert self.hear_out() == 0, "it does not restore from the store alone"


def test_kills_during_upload_deletion_and_gc_lose_nothing_and_leave_nothing(store: Store, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    run = Run(store, tmp_path, chance)
    try:
        # moto is slow: it gets the smaller part.
        kills = max(1, KILLS - KILLS // 3 if "rclone" in str(store.process.args) else KILLS // 3)
        for number in range(kills):
            run.train_and_kill()
            if number % 2 == 0:
                run.collect_and_kill()
        run.finish()
        run.lose_the_disk()
    finally:
        run.trainers.kill()
        run.trainers.communicate()
    print(f"killed at: {run.killed_at}")


def test_a_run_and_slackwater_copy_to_the_same_place_do_not_harm_each_other(tmp_path: Path) -> None:
    """There is no lock in an object store. The run's clean-ups must leave alone what it did not begin."""
    location = f"s3://{BUCKET}/run"
    values = np.resize(np.arange(251, dtype=np.uint8), (64 << 20) + 4096)
    with serve("rclone", tmp_path) as made, Proxy(made) as proxy:
        env = made.env(tmp_path)
        with (
            environment(env),
            sw.Checkpointer(tmp_path / "run", pool="32MiB", keep=0, tiers=[sw.Tier(location, every=2, keep=0)]) as ckpt,
        ):
            for step in (1, 2):
                ckpt.save(step, {"w": values, "step": step})
                ckpt.wait_copied()

            def hold_the_second_part(request: Request) -> Fault | None:
                if not (request.is_part and "partNumber=2" in request.target):
                    return None
                for step in (3, 4, 5, 6):  # the run copies, and cleans up behind each copy
                    ckpt.save(step, {"w": values[:1000], "step": step})
                    ckpt.wait_copied()
                proxy.fault = lambda _: None
                return None

            proxy.fault = hold_the_second_part
            words = [COMMAND, "copy", f"{tmp_path / 'run'}@1", location, "--verify", "--threads", "1", "--json"]
            done = subprocess.run(words, env=made.env(tmp_path, proxy.endpoint), capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert not json.loads(done.stdout)["copied"][0]["already"]
            ckpt.save(8, {"w": values[:1000], "step": 8})
        listed = subprocess.run([COMMAND, "verify", location, "--json"], env=env, capture_output=True, text=True)
        assert listed.returncode == 0, listed.stdout + listed.stderr
        with environment(env):
            assert [sw.load(location, step=step)["step"] for step in (1, 2, 4, 6, 8)] == [1, 2, 4, 6, 8]


def test_gc_that_is_killed_in_a_directory_takes_nothing_along_and_can_be_repeated(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    source = tmp_path / "source"
    with sw.Checkpointer(source, pool="4MiB", slab="1MiB", keep=0) as ckpt:
        for step in range(1, 9):
            ckpt.save(step, {"w": np.full(100_000, step), "step": step})
            ckpt.fence()
    for directory in sorted(source.glob("step-*"))[2:7]:  # as if their run had been killed before it decided
        (directory / "manifest.json").unlink()

    def gc(path: Path) -> subprocess.Popen[bytes]:
        words = [COMMAND, "gc", str(path), "--delete"]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def expect_all_live(path: Path) -> None:
        done = subprocess.run([COMMAND, "verify", str(path), "--json"], capture_output=True, text=True, check=True)
        assert [one["step"] for one in json.loads(done.stdout)["versions"]] == [1, 2, 8]

    began = time.monotonic()
    shutil.copytree(source, tmp_path / "whole")
    gc(tmp_path / "whole").wait()
    usual = time.monotonic() - began
    for number in range(KILLS):
        path = tmp_path / str(number)
        shutil.copytree(source, path)
        process = gc(path)
        time.sleep(chance.uniform(0, usual))  # the moment is what is random here: nothing is waited for
        process.kill()
        process.wait()
        expect_all_live(path)
        assert gc(path).wait() == 0
        expect_all_live(path)
        assert len(list(path.glob("step-*"))) == 3
        shutil.rmtree(path)
