"""Checkpoints in object stores, end to end: the command line and the reader against real servers on loopback."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slackwater as sw
from object_stores import BUCKET, COMMAND, Fault, Proxy, Store, environment, first, run, uploads

PART = 64 << 20


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 1 and 2, some MiB each."""
    return write_run(tmp_path_factory.mktemp("small") / "run", 3 << 20, steps=(1, 2))


@pytest.fixture(scope="module")
def large_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One step whose file takes two parts."""
    return write_run(tmp_path_factory.mktemp("large") / "run", PART + (1 << 20), steps=(1,))


def write_run(path: Path, size: int, steps: tuple[int, ...]) -> Path:
    with sw.Checkpointer(path, pool="32MiB") as ckpt:
        for step in steps:
            values = np.random.default_rng(step).integers(0, 255, size, dtype=np.uint8)
            ckpt.save(step, {"w": values, "step": step})
            ckpt.wait()
    return path


@pytest.mark.parametrize("name", ["rclone_store", "moto_store"])
def test_a_run_goes_to_an_object_store_and_comes_back(
    name: str, request: pytest.FixtureRequest, small_run: Path, tmp_path: Path
) -> None:
    store: Store = request.getfixturevalue(name)
    env = store.env(tmp_path)
    there = f"s3://{BUCKET}/{name}/run"
    assert len(run("copy", str(small_run), there, "--all", "--verify", env=env)["copied"]) == 2
    assert run("copy", f"{small_run}@2", there, env=env)["copied"][0]["already"]
    assert run("ls", there, env=env)["versions"] == run("ls", str(small_run), env=env)["versions"]
    assert [one["ok"] for one in run("verify", there, env=env)["versions"]] == [True, True]
    assert run("show", f"{there}@1", env=env)["version"]["step"] == 1
    with environment(env):
        with sw.open(there, step=1) as remote, sw.open(small_run, step=1) as local:
            assert np.array_equal(np.asarray(remote["w"]), np.asarray(local["w"]))
        assert sw.load(there)["step"] == 2

    back = tmp_path / "back"
    run("copy", there, str(back), "--all", env=env)
    files = sorted(p.relative_to(small_run) for p in small_run.rglob("*") if p.is_file() and p.name != "lock")
    for file in files:
        assert (back / file).read_bytes() == (small_run / file).read_bytes(), file

    assert "--no-lock" in run("rm", there, "1", env=env, code=2), "an object store has no locks"
    run("rm", there, "1", "--no-lock", env=env)
    assert [one["step"] for one in run("ls", there, env=env)["versions"]] == [2]
    assert "no checkpoint of step 1" in run("show", f"{there}@1", env=env, code=2)


FAULTS = {
    "500": Fault(status=500, code="InternalError"),
    "slow-down": Fault(status=503, code="SlowDown"),
    "reset": Fault(reset_after=10 << 20),
    "wrong-etag": Fault(etag='"00000000000000000000000000000000"'),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_within_a_part_costs_a_retry_and_nothing_else(
    name: str, rclone_store: Store, large_run: Path, tmp_path: Path
) -> None:
    with Proxy(rclone_store) as proxy:
        proxy.fault = first(1, lambda request: request.is_part, FAULTS[name])
        env = rclone_store.env(tmp_path, proxy.endpoint)
        there = f"s3://{BUCKET}/fault-{name}"
        run("copy", str(large_run), there, env=env)
        assert sum(request.is_part for request in proxy.seen) == 3, "two parts, and one of them again"
    assert run("verify", there, env=rclone_store.env(tmp_path))["ok"]
    assert not uploads(rclone_store)


def test_expired_credentials_are_named(rclone_store: Store, small_run: Path, tmp_path: Path) -> None:
    with Proxy(rclone_store, fault=lambda _: Fault(status=400, code="ExpiredToken")) as proxy:
        said = run("copy", str(small_run), f"s3://{BUCKET}/x", env=rclone_store.env(tmp_path, proxy.endpoint), code=2)
    assert "ExpiredToken" in said and "renew" in said
    wrong = {**rclone_store.env(tmp_path), "AWS_SECRET_ACCESS_KEY": "not-the-secret"}
    assert "403" in run("ls", f"s3://{BUCKET}/x", env=wrong, code=2), "the server checks our signature"


def test_a_store_that_is_not_there_is_an_error_and_not_an_empty_place(tmp_path: Path, small_run: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S"}
    env["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9"  # nobody listens on the port of "discard"
    said = run("ls", f"s3://{BUCKET}/x", env=env, code=2)
    assert "could not be reached" in said
    del env["AWS_ACCESS_KEY_ID"]
    assert "AWS_ACCESS_KEY_ID" in run("ls", f"s3://{BUCKET}/x", env=env, code=2)
    assert "libcurl4" in run(
        "ls", f"s3://{BUCKET}/x", env={**env, "AWS_ACCESS_KEY_ID": "A", "SLACKWATER_LIBCURL": "none.so"}, code=2
    )


def test_a_copy_that_was_killed_goes_on(rclone_store: Store, large_run: Path, tmp_path: Path) -> None:
    there = f"s3://{BUCKET}/killed"
    held, go = threading.Event(), threading.Event()

    with Proxy(rclone_store) as proxy:

        def hold_the_second_part(request: Any) -> Fault | None:
            if not (request.is_part and "partNumber=2" in request.target):
                return None
            held.set()
            return Fault(wait=go)

        proxy.fault = hold_the_second_part
        env = rclone_store.env(tmp_path, proxy.endpoint)
        copy = subprocess.Popen([COMMAND, "copy", str(large_run), there, "--threads", "1"], env=env)
        while not held.wait(0.1):
            assert copy.poll() is None, "the copy ended before its second part"
        copy.kill()
        copy.wait()
        proxy.fault = lambda _: Fault(status=503, code="SlowDown")  # nothing of what was held gets through
        go.set()
        proxy.fault = lambda _: None
        assert not run("ls", there, env=env)["versions"], "half a version is not seen"
        proxy.seen.clear()
        run("copy", str(large_run), there, "--verify", env=env)
        sent = [request.target for request in proxy.seen if request.is_part]
        assert all("partNumber=1" not in target for target in sent), "the first part was there already"
    assert not uploads(rclone_store)


def test_gc_aborts_uploads_of_older_attempts_only(rclone_store: Store, small_run: Path, tmp_path: Path) -> None:
    env = rclone_store.env(tmp_path)
    there = f"s3://{BUCKET}/gc"
    two = tmp_path / "two"
    write_run(two, 1 << 20, (1,))
    write_run(two, 1 << 20, (2,))  # a second start: attempt 2
    run("copy", str(two), there, "--all", env=env)
    client = rclone_store.client()
    keys = [f"gc/step-0000000009.a{attempt}/rank-00000.safetensors" for attempt in (1, 2)] + ["gc/notes.txt"]
    for key in keys:
        client.create_multipart_upload(Bucket=BUCKET, Key=key)
    shown = run("gc", there, env=env)
    assert shown["dry_run"] and [one["path"] for one in shown["uploads"]] == [f"s3://{BUCKET}/{keys[0]}"]
    assert len(uploads(rclone_store)) == 3, "gc deletes only when it is told to"
    run("gc", there, "--delete", "--no-lock", env=env)
    assert sorted(one["Key"] for one in uploads(rclone_store)) == sorted(keys[1:])
    for one in uploads(rclone_store):
        client.abort_multipart_upload(Bucket=BUCKET, Key=one["Key"], UploadId=one["UploadId"])
