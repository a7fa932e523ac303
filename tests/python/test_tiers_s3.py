"""Training with a tier in an object store: the whole engine against real servers on loopback, and their faults."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slackwater as sw
from object_stores import (
    ACCESS_KEY,
    BUCKET,
    SECONDS,
    SECRET_KEY,
    Fault,
    Proxy,
    Request,
    Store,
    environment,
    first,
    free_port,
    rclone,
    run,
    self_signed,
    uploads,
)
from slackwater import tiers as places
from support import need, wait_until

SMALL = {"pool": "4MiB", "slab": "1MiB"}
PART = 64 << 20


@pytest.fixture
def there(request: pytest.FixtureRequest) -> str:
    """A prefix of this test's own."""
    return f"s3://{BUCKET}/{request.node.name.replace('[', '-').strip(']')}"


def values(step: int, rank: int = 0, size: int = 300_000) -> np.ndarray:
    return np.random.default_rng([step, rank]).integers(0, 255, size, dtype=np.uint8)


def save(ckpt: sw.Checkpointer, steps: range | list[int], size: int = 300_000) -> None:
    for step in steps:
        ckpt.save(step, {"w": values(step, size=size), "step": step})
        ckpt.wait()


def listed(location: str, env: dict[str, str]) -> list[int]:
    return [version["step"] for version in run("ls", location, env=env)["versions"]]


def good(location: str, env: dict[str, str]) -> bool:
    return bool(run("verify", location, env=env)["ok"])


def spoil(file: Path) -> None:
    """One byte in the middle of the file becomes another one."""
    with file.open("r+b") as stream:
        stream.seek(file.stat().st_size // 2)
        (byte,) = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 1]))


def test_training_goes_on_while_the_store_dies_comes_back_and_is_slow(tmp_path: Path, there: str) -> None:
    port = free_port()
    tier = sw.Tier(there, every=5, keep=0, backlog=8)
    with contextlib.ExitStack() as alive:
        first_life = contextlib.ExitStack()
        alive.enter_context(first_life)
        store = first_life.enter_context(rclone(tmp_path, port))
        proxy = alive.enter_context(Proxy(store))
        env = store.env(tmp_path, proxy.endpoint)
        with environment(env), sw.Checkpointer(tmp_path / "run", tiers=[tier], **SMALL) as ckpt:
            save(ckpt, range(1, 6))
            ckpt.wait_copied()
            first_life.close()  # killed
            save(ckpt, range(6, 16))
            wait_until(lambda: ckpt.tiers[0].errors > 0, "it is noticed that the store is gone")
            assert ckpt.tiers[0].newest_step == 5
            proxy.fault = lambda request: Fault(trickle=4) if request.size_bytes > 100_000 else None
            alive.enter_context(rclone(tmp_path, port))
            save(ckpt, range(16, 31))
            ckpt.wait_copied()
            status = ckpt.tiers[0]
            assert (status.newest_step, status.skipped, status.waiting, status.last_error) == (30, 0, [], "")
        proxy.fault = lambda request: None
        assert listed(there, env) == [5, 10, 15, 20, 25, 30]
        assert good(there, env)
        assert not uploads(store)


@pytest.mark.parametrize("name", ["rclone_store", "moto_store"])
def test_a_run_comes_back_from_the_store_alone(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, there: str
) -> None:
    store: Store = request.getfixturevalue(name)
    local = tmp_path / "run"
    with environment(store.env(tmp_path)):
        with sw.Checkpointer(local, tiers=[there], **SMALL) as ckpt:
            save(ckpt, [1, 2])
        shutil.rmtree(local)
        with sw.Checkpointer(local, tiers=[there], **SMALL) as ckpt:
            state = {"w": np.zeros(300_000, np.uint8), "step": 0}
            assert ckpt.restore(state) == 2
            assert np.array_equal(state["w"], values(2)) and state["step"] == 2
            save(ckpt, [3])
        assert good(there, store.env(tmp_path))
        assert listed(there, store.env(tmp_path)) == [2, 3]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_restore_takes_one_list_and_no_other_look(
    world: int, rclone_store: Store, tmp_path: Path, there: str
) -> None:
    local = tmp_path / "run"
    with Proxy(rclone_store) as proxy, environment(rclone_store.env(tmp_path, proxy.endpoint)):
        with ranks(local, there, world) as team:
            team.save(2)
        shutil.rmtree(local)
        with ranks(local, there, world) as team:
            # Whatever else looks at the store has looked by then: each rank once, when it starts.
            proxy.seen.clear()
            assert team.restore() == [2] * world
            seen = list(proxy.seen)
        assert sum(request.lists_all for request in seen) == 1, [request.target for request in seen]
        assert not [request.target for request in seen if request.method == "HEAD"]


def test_only_the_damaged_file_comes_from_the_store(rclone_store: Store, tmp_path: Path, there: str) -> None:
    local = tmp_path / "run"
    with Proxy(rclone_store) as proxy, environment(rclone_store.env(tmp_path, proxy.endpoint)):
        with ranks(local, there, 2) as team:
            team.save(2)
        (file,) = local.glob("step-0000000002.a1/rank-00001.safetensors")
        intact = file.read_bytes()
        spoil(file)
        with ranks(local, there, 2) as team:
            proxy.seen.clear()
            assert team.restore() == [2, 2]
            read = {request.key.rpartition("/")[2] for request in proxy.seen if request.method == "GET"}
            wait_until(lambda: file.read_bytes() == intact, "it is repaired")
        assert {name for name in read if name.endswith(".safetensors")} == {"rank-00001.safetensors"}


def test_if_both_copies_are_damaged_the_version_before_is_used_and_the_log_says_so(
    tmp_path: Path, there: str, caplog: pytest.LogCaptureFixture
) -> None:
    local = tmp_path / "run"
    with rclone(tmp_path) as store, environment(store.env(tmp_path)):
        with sw.Checkpointer(local, tiers=[there], **SMALL) as ckpt:
            save(ckpt, [1, 2])
        key = there.removeprefix("s3://")
        for root in (local, tmp_path / "data" / key):
            (file,) = root.glob("step-0000000002.a1/rank-00000.safetensors")
            spoil(file)
        with sw.Checkpointer(local, tiers=[there], **SMALL) as ckpt:
            state = {"w": np.zeros(300_000, np.uint8), "step": 0}
            with caplog.at_level(logging.WARNING):
                assert ckpt.restore(state) == 1
            assert np.array_equal(state["w"], values(1))
    assert "no tier has it intact" in caplog.text and there in caplog.text and str(local) in caplog.text


def test_an_object_store_alone_is_enough(
    rclone_store: Store,
    tmp_path: Path,
    there: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places.tempfile, "gettempdir", lambda: str(tmp_path))
    env = rclone_store.env(tmp_path)
    env.pop("SLACKWATER_STAGING", None)
    with environment(env):
        with sw.Checkpointer(there, keep=3, **SMALL) as ckpt:
            save(ckpt, range(1, 6))
            ckpt.wait_copied()
            staging = Path(ckpt.path)
        assert str(staging) in caplog.text and there in caplog.text, "users see which disk it takes"
        assert stat.S_IMODE(staging.parent.stat().st_mode) == 0o700
        assert staging.parent.parent == tmp_path
        assert listed(there, env) == [3, 4, 5]
        caplog.clear()
        shutil.rmtree(staging)
        state = {"w": np.zeros(300_000, np.uint8), "step": 0}
        # The same, by a Tier, which can also say how to reach the store.
        named = sw.Tier(there, keep=3, endpoint=rclone_store.endpoint, path_style=True, region="us-east-1")
        with sw.Checkpointer(tiers=[named], **SMALL) as ckpt:
            assert ckpt.path == str(staging)
            assert ckpt.restore(state) == 5
            save(ckpt, [6])
        assert str(staging) not in caplog.text, "it is said once"
        assert np.array_equal(state["w"], values(5))
        assert sw.load(there)["step"] == 6
        assert good(there, env)


NO_BUCKET = Fault(status=404, code="NoSuchBucket")
A_PROXY = Fault(status=404, page="<html><body>default backend - 404</body></html>")


@pytest.mark.parametrize(
    ("fault", "said"),
    [(NO_BUCKET, f"the bucket '{BUCKET}' does not exist at 127.0.0.1"), (A_PROXY, "is the store running")],
    ids=["bucket", "proxy"],
)
def test_a_store_that_answers_404_is_never_taken_for_an_empty_one(
    fault: Fault, said: str, rclone_store: Store, tmp_path: Path, there: str
) -> None:
    local = tmp_path / "run"
    tier = sw.Tier(there, keep=0)
    with Proxy(rclone_store) as proxy:
        env = rclone_store.env(tmp_path, proxy.endpoint)
        with environment(env):
            with sw.Checkpointer(local, tiers=[tier], **SMALL) as ckpt:
                save(ckpt, [1, 2])
                ckpt.wait_copied()
                proxy.fault = lambda request: fault
                ckpt.delete(1)
                wait_until(lambda: said in ckpt.tiers[0].last_error, "the delete was forgotten")
                proxy.fault = lambda request: None
                wait_until(lambda: listed(there, env) == [2], "the delete was not tried again")
            shutil.rmtree(local)
            proxy.fault = lambda request: fault
            with sw.Checkpointer(local, tiers=[tier], **SMALL) as ckpt:
                with pytest.raises(sw.Error, match=said):
                    ckpt.restore({"w": np.zeros(300_000, np.uint8), "step": 0})
                proxy.fault = lambda request: None
                assert ckpt.restore({"w": np.zeros(300_000, np.uint8), "step": 0}) == 2
        proxy.fault = lambda request: fault
        assert said in run("ls", there, env=env, code=2)


@pytest.mark.parametrize("name", ["rclone_store", "moto_store"])
def test_a_bucket_that_does_not_exist_is_named_by_everything_that_asks_for_it(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store: Store = request.getfixturevalue(name)
    env = store.env(tmp_path)
    said = "the bucket 'buckte' does not exist at 127.0.0.1"
    with environment(env):
        ckpt = sw.Checkpointer(tmp_path / "run", tiers=["s3://buckte/run"], copy_timeout=0.1, **SMALL)
        with pytest.raises(sw.Error, match=said):
            ckpt.restore({"w": np.zeros(300_000, np.uint8), "step": 0})
        save(ckpt, [1])
        wait_until(lambda: said in ckpt.tiers[0].last_error, "the status says nothing")
        assert said in caplog.text
        with pytest.raises(sw.Error, match=said):
            ckpt.close()
        with pytest.raises(sw.Error, match=said):
            sw.load("s3://buckte/run")
    assert said in run("ls", "s3://buckte/run", env=env, code=2)
    assert said in run("copy", str(tmp_path / "run"), "s3://buckte/run", env=env, code=2)


def test_a_staging_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLACKWATER_STAGING", raising=False)
    monkeypatch.setattr(places.tempfile, "gettempdir", lambda: str(tmp_path))
    base = Path(places.staging_directory("s3://b/x")).parent
    (tmp_path / "elsewhere").mkdir()
    base.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(sw.PermissionDeniedError, match="SLACKWATER_STAGING"):
        sw.Checkpointer("s3://b/x")
    base.unlink()
    base.mkdir()
    mine = os.geteuid()
    monkeypatch.setattr(places.os, "geteuid", lambda: mine + 1)
    with pytest.raises(sw.PermissionDeniedError, match="belongs to somebody else"):
        sw.Checkpointer("s3://b/x")
    assert not list((tmp_path / "elsewhere").iterdir()) and not list(base.iterdir())


def test_credentials_that_expire_are_read_again_and_nothing_is_lost(
    rclone_store: Store, tmp_path: Path, there: str
) -> None:
    file = tmp_path / "credentials"

    def write(token: str) -> None:
        new = tmp_path / "new"
        new.write_text(
            f"[run]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
            f"aws_session_token = {token}\n"
        )
        new.replace(file)

    valid = ["one"]

    def expired(request: Request) -> Fault | None:
        if request.headers.get("x-amz-security-token") in valid:
            return None
        return Fault(status=400, code="ExpiredToken")

    write("one")
    with Proxy(rclone_store, fault=expired) as proxy:
        env = rclone_store.env(tmp_path, proxy.endpoint)
        env["AWS_SHARED_CREDENTIALS_FILE"] = str(file)
        tier = sw.Tier(there, keep=0, profile="run")
        with environment(env), sw.Checkpointer(tmp_path / "run", tiers=[tier], **SMALL) as ckpt:
            save(ckpt, [1])
            ckpt.wait_copied()
            valid[:] = ["two"]
            save(ckpt, [2, 3])
            wait_until(lambda: "ExpiredToken" in ckpt.tiers[0].last_error, "it is noticed that they have expired")
            write("two")
            save(ckpt, [4])
            ckpt.wait_copied()
            assert ckpt.tiers[0].newest_step == 4
            # Many readers with old credentials: all of them go on with the new ones.
            shutil.rmtree(tmp_path / "run")
            valid[:] = ["three"]
            write("three")
        with environment(env), sw.open(tier, step=4) as reader:
            assert np.array_equal(np.asarray(reader["w"]), values(4))
        assert [one["step"] for one in run("ls", there, "--profile", "run", env=env)["versions"]] == [1, 2, 3, 4]


def test_readers_whose_credentials_expire_together_all_go_on(rclone_store: Store, tmp_path: Path, there: str) -> None:
    env = rclone_store.env(tmp_path)
    with environment(env), sw.Checkpointer(tmp_path / "run", tiers=[there], pool="64MiB") as ckpt:
        save(ckpt, [1], size=40 << 20)
    gone = []

    def expired(request: Request) -> Fault | None:
        token = request.headers.get("x-amz-security-token")
        if token == "new" or not request.key.endswith(".safetensors"):
            return None
        gone.append(token)
        os.environ["AWS_SESSION_TOKEN"] = "new"
        return Fault(status=400, code="ExpiredToken")

    with Proxy(rclone_store, fault=expired) as proxy:
        env = rclone_store.env(tmp_path, proxy.endpoint)
        with environment({**env, "AWS_SESSION_TOKEN": "old"}):
            assert np.array_equal(np.asarray(sw.load(there)["w"]), values(1, size=40 << 20))
    assert gone, "no reader was turned away"


def test_a_slow_store_is_waited_for(rclone_store: Store, tmp_path: Path, there: str) -> None:
    def slow(request: Request) -> Fault | None:
        return Fault(trickle=10) if request.key.endswith(".safetensors") else None

    with Proxy(rclone_store, fault=slow) as proxy:
        env = rclone_store.env(tmp_path, proxy.endpoint)
        with environment(env):
            with sw.Checkpointer(tmp_path / "run", tiers=[there], **SMALL) as ckpt:
                save(ckpt, [1])
            assert sw.load(there)["step"] == 1
    assert good(there, rclone_store.env(tmp_path))


def test_large_files_go_in_parts_that_are_sent_again_after_a_reset(
    rclone_store: Store, tmp_path: Path, there: str
) -> None:
    with Proxy(rclone_store) as proxy:
        proxy.fault = first(1, lambda request: request.is_part, Fault(reset_after=10 << 20))
        env = rclone_store.env(tmp_path, proxy.endpoint)
        with environment(env), sw.Checkpointer(tmp_path / "run", tiers=[there], pool="64MiB") as ckpt:
            save(ckpt, [1], size=PART + (1 << 20))
        assert sum(request.is_part for request in proxy.seen) == 3, "two parts, and one of them again"
    assert good(there, rclone_store.env(tmp_path))
    assert not uploads(rclone_store)


def test_tls_certificates_are_verified(rclone_store: Store, tmp_path: Path, there: str) -> None:
    need("cryptography")
    certificate = self_signed(tmp_path)
    with environment(rclone_store.env(tmp_path)), sw.Checkpointer(tmp_path / "run", tiers=[there], **SMALL) as ckpt:
        save(ckpt, [1])
    with Proxy(rclone_store, certificate=certificate) as proxy:
        env = rclone_store.env(tmp_path, proxy.endpoint)
        said = run("ls", there, env=env, code=2)
        assert "certificate" in said and "AWS_CA_BUNDLE" in said
        assert not proxy.seen, "nothing was sent to a server that nobody vouches for"
        trusted = {**env, "AWS_CA_BUNDLE": str(certificate)}
        assert listed(there, trusted) == [1]
        with environment(env), pytest.raises(sw.Error, match="AWS_CA_BUNDLE"):
            sw.load(there)
        with environment(trusted):
            assert sw.load(there)["step"] == 1


def test_every_way_in_can_be_told_where_the_store_is(rclone_store: Store, tmp_path: Path, there: str) -> None:
    env = rclone_store.env(tmp_path)
    del env["AWS_ENDPOINT_URL"], env["AWS_REGION"], env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        f"[mine]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    tier = sw.Tier(there, endpoint=rclone_store.endpoint, region="eu-x", profile="mine", path_style=True)
    flags = ["--endpoint", rclone_store.endpoint, "--region", "eu-x", "--profile", "mine", "--path-style"]
    with environment(env):
        with sw.Checkpointer(tmp_path / "run", tiers=[tier], **SMALL) as ckpt:
            save(ckpt, [1, 2])
        assert sw.load(tier)["step"] == 2
        with sw.open(tier, step=1) as reader:
            assert reader.step == 1
    assert [one["step"] for one in run("ls", there, *flags, env=env)["versions"]] == [1, 2]
    assert run("verify", there, *flags, env=env)["ok"]
    assert run("show", f"{there}@1", *flags, env=env)["version"]["step"] == 1
    assert run("pin", there, "1", *flags, env=env)
    assert run("gc", there, *flags, env=env)["dry_run"]
    run("copy", there, str(tmp_path / "back"), *flags, env=env)
    assert listed(str(tmp_path / "back"), env) == [2]
    run("rm", there, "2", "--no-lock", *flags, env=env)
    assert "credentials" in run("ls", there, env=env, code=2)


class Team:
    """Several ranks in this process: a checkpointer each, on a thread of its own."""

    def __init__(self, path: Path, location: str, world: int) -> None:
        self._threads = [ThreadPoolExecutor(1) for _ in range(world)]
        options: dict[str, Any] = {**SMALL, "world": world, "coordinator": "directory", "tiers": [location]}
        self._ranks: list[sw.Checkpointer] = self.all(lambda rank: sw.Checkpointer(path, rank=rank, **options))

    def all(self, call: Callable[[int], Any]) -> list[Any]:
        started = [thread.submit(call, rank) for rank, thread in enumerate(self._threads)]
        return [one.result(SECONDS) for one in started]

    def save(self, step: int) -> None:
        def one(rank: int) -> None:
            self._ranks[rank].save(step, {"w": values(step, rank), "step": step})
            self._ranks[rank].wait()

        self.all(one)

    def restore(self) -> list[int | None]:
        def one(rank: int) -> int | None:
            state = {"w": np.zeros(300_000, np.uint8), "step": 0}
            found = self._ranks[rank].restore(state)
            assert np.array_equal(state["w"], values(found or 0, rank))
            return found

        return self.all(one)

    def close(self) -> None:
        self.all(lambda rank: self._ranks[rank].close())
        for thread in self._threads:
            thread.shutdown()


@contextlib.contextmanager
def ranks(path: Path, location: str, world: int) -> Iterator[Team]:
    team = Team(path, location, world)
    yield team
    team.close()
