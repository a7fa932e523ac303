"""Lower tiers from Python: sw.Tier, tiers=, ckpt.tiers, wait_copied, options files."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
import torch
from slackwater import _core
from slackwater.tiers import find_places, staging_directory


def test_checkpoints_reach_the_lower_tier(tmp_path: Path) -> None:
    state = {"t": torch.arange(1000), "n": 0}
    with sw.Checkpointer(tmp_path / "run", tiers=[sw.Tier(tmp_path / "lower", every=5, keep=2)]) as ckpt:
        for step in range(1, 16):
            state["n"] = step
            ckpt.save(step, state)
            ckpt.fence()
            if step % 5 == 0:
                ckpt.wait_copied()
        (tier,) = ckpt.tiers
        assert (tier.location, tier.newest_step, tier.waiting, tier.skipped) == (str(tmp_path / "lower"), 15, [], 0)
        assert tier.sent_bytes > 0 and tier.last_error == ""
    assert sw.load(tmp_path / "lower", step=15)["n"] == 15
    assert sw.load(tmp_path / "lower", step=10)["n"] == 10
    assert sorted(path.name[:15] for path in (tmp_path / "lower").glob("step-*")) == [
        "step-0000000010",
        "step-0000000015",
    ]


def test_without_a_path_the_first_tier_is_tier_0(tmp_path: Path) -> None:
    with sw.Checkpointer(tiers=[sw.Tier(tmp_path / "a", keep=1), tmp_path / "b"]) as ckpt:
        assert ckpt.path == str(tmp_path / "a")
        for step in (1, 2, 3):
            ckpt.save(step, {"n": step})
            ckpt.wait_copied()
        assert ckpt.steps() == [3]
    assert sw.load(tmp_path / "b")["n"] == 3


def test_the_first_tier_gives_every_and_keep_of_the_run(tmp_path: Path) -> None:
    with sw.Checkpointer(tiers=[sw.Tier(tmp_path / "a", every=2, keep=3, keep_every=4)]) as ckpt:
        saved = [step for step in range(1, 15) if ckpt.save(step, {"n": step})]
        ckpt.wait()
    assert saved == [2, 4, 6, 8, 10, 12, 14]
    assert ckpt.path == str(tmp_path / "a")
    with sw.Checkpointer(tmp_path / "a") as again:
        assert again.steps() == [4, 8, 10, 12, 14]


@pytest.mark.parametrize(
    ("options", "tier", "message"),
    [
        ({}, {"bandwidth": "1MiB", "backlog": 2}, "does not have these options: bandwidth, backlog"),
        ({"keep": 5}, {"keep": 3}, "keep is given twice: 5, and 3 of the first tier"),
        ({"every": 5}, {"every": 3}, "every is given twice"),
        ({}, {"every": "often"}, "every is 'often'; it is a whole number, 1 or more"),
        ({}, {"keep": object()}, "keep of a tier is an object; expected a number, text or bool"),
    ],
)
def test_what_a_first_tier_cannot_have_is_refused(
    options: dict[str, Any], tier: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(sw.UsageError, match=message):
        sw.Checkpointer(tiers=[sw.Tier(**{"location": tmp_path / "a", **tier})], **options)
    assert not (tmp_path / "a").exists()


def test_an_object_store_as_the_first_tier_keeps_what_the_run_keeps() -> None:
    def places(**given: Any) -> list[tuple[int, int | None]]:
        options = {"every": 1, "keep": 2, "keep_every": None, "node_local": False, **given}
        found = find_places(None, [sw.Tier("s3://bucket/run", keep_every=100)], **options)
        return [(tier.keep, tier.keep_every) for tier in found.lower]

    assert places() == [(2, 100)]
    assert places(keep=10) == [(10, 100)]
    with pytest.raises(sw.UsageError, match="keep_every is given twice: 7, and 100 of the first tier"):
        places(keep_every=7)


@pytest.mark.parametrize("location", ["s3:/bucket/run", "s3:/", "s3://", "s3:///run"])
def test_a_misspelt_object_store_does_not_become_a_directory(location: str, tmp_path: Path) -> None:
    with pytest.raises((sw.UsageError, sw.Error), match=re.escape(location)):
        sw.Checkpointer(location)
    with pytest.raises((sw.UsageError, sw.Error), match="s3:/"):
        sw.Checkpointer(tmp_path / "run", tiers=[location])


def test_time_outs_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(sw.UsageError, match="stall_timeout"):
        sw.Checkpointer(tmp_path / "run", stall_timeout="5m")  # type: ignore[arg-type]


@pytest.mark.parametrize("exists", [False, True])
def test_one_directory_under_two_names_is_refused_when_the_run_starts(exists: bool, tmp_path: Path) -> None:
    if exists:
        (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    with pytest.raises(sw.UsageError, match=r"two tiers have the same location: .*run under another name"):
        sw.Checkpointer(tmp_path / "run", tiers=[tmp_path / "lower", tmp_path / "link"])
    with pytest.raises(sw.UsageError, match="two tiers have the same location"):
        sw.Checkpointer(tmp_path / "run", tiers=[tmp_path / "run"])
    with sw.Checkpointer(tmp_path / "run", tiers=[tmp_path / "lower", tmp_path / "run" / "below"]):
        pass


def test_a_bind_mount_of_another_tier_is_refused_when_the_run_starts(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "mount").mkdir()
    made = subprocess.run(["mount", "--bind", tmp_path / "run", tmp_path / "mount"], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("a bind mount needs root")
    try:
        with pytest.raises(sw.UsageError, match="two tiers have the same location"):
            sw.Checkpointer(tmp_path / "run", tiers=[tmp_path / "mount"])
    finally:
        subprocess.run(["umount", "-l", tmp_path / "mount"], check=True)


def test_an_options_file_has_arguments_of_python_too(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    options = {"tiers": [{"location": str(tmp_path / "run"), "keep": 0}], "every": 2, "keep_best": "max:1:score"}
    file.write_text(json.dumps({**options, "direct_io": "no", "stall_timeout": "30"}))
    with sw.Checkpointer.from_file(file) as ckpt:
        for step in range(1, 5):
            ckpt.save(step, {"n": step}, metadata={"score": step})
        ckpt.wait()
        assert ckpt.steps() == [2, 4]


def test_a_dead_tier_does_not_stop_training_and_close_names_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    ckpt = sw.Checkpointer(tmp_path / "run", tiers=[tmp_path / "file" / "run"], copy_timeout=0.2)
    for step in (1, 2):
        ckpt.save(step, {"n": step})
    ckpt.wait()
    with pytest.raises(sw.TimeoutError, match=r"steps 1, 2 were not copied to .*file/run"):
        ckpt.close()
    assert sw.load(tmp_path / "run")["n"] == 2


def test_a_delete_that_a_tier_has_missed_is_done_by_the_next_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, lower, away = tmp_path / "run", tmp_path / "mount" / "lower", tmp_path / "away"
    lower.parent.mkdir()
    with sw.Checkpointer(run, tiers=[sw.Tier(lower, keep=0)]) as ckpt:
        for step in (1, 2):
            ckpt.save(step, {"n": step})
            ckpt.wait_copied()

    lower.parent.rename(away)  # the mount is gone
    ckpt = sw.Checkpointer(run, tiers=[sw.Tier(lower, keep=0)], copy_timeout=0.2)
    ckpt.delete(2)
    assert ckpt.steps() == [1]
    with pytest.raises(sw.TimeoutError, match=r"steps 2 were deleted, but not on .* yet; the next run deletes them"):
        ckpt.close()
    away.rename(lower.parent)
    assert sw.load(lower)["n"] == 2  # it is still there

    state = {"n": 0}
    with sw.Checkpointer(run, tiers=[sw.Tier(lower, keep=0)]) as ckpt:
        with caplog.at_level("WARNING"):
            assert ckpt.restore(state) == 1
        assert state["n"] == 1
        assert "step 2 (attempt 1) is not used: it was deleted, and is still to be deleted on" in caplog.text
        with pytest.raises(sw.Error, match="there is no checkpoint of step 2"):
            ckpt.restore(state, step=2)
        ckpt.save(3, state)
        ckpt.wait_copied()
    assert not list(lower.glob("step-0000000002.*"))
    assert not list((run / ".slackwater").glob("delete-*"))
    assert sw.load(lower)["n"] == 1


def test_an_options_file_makes_the_same_checkpointer(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    tiers = [{"location": str(tmp_path / "lower"), "every": 2, "keep": 0, "bandwidth": "1GiB"}]
    file.write_text(json.dumps({"path": str(tmp_path / "run"), "keep": 1, "direct_io": False, "tiers": tiers}))
    with sw.Checkpointer.from_file(file, run_name="again") as ckpt:
        for step in (1, 2, 3, 4):
            ckpt.save(step, {"n": step})
            ckpt.wait_copied()
        assert ckpt.steps() == [4]
    assert [sw.load(tmp_path / "lower", step=step)["n"] for step in (2, 4)] == [2, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "is not a JSON object"),
        ("{", "is not JSON"),
        ('{"tiers": 3}', "takes a list of objects for 'tiers'"),
        ('{"path": "x", "tiers": [{"place": "/a"}]}', "there is no tier option 'place'"),
        ('{"path": "x", "evry": 2}', "there is no option 'evry'; there are: .*every"),
        ('{"path": "x", "keep": "many"}', "option 'keep' was given 'many'"),
    ],
)
def test_a_wrong_options_file_says_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    with pytest.raises(sw.UsageError, match=message):
        sw.Checkpointer.from_file(file)
    with pytest.raises(sw.UsageError, match="cannot be read"):
        sw.Checkpointer.from_file(tmp_path / "none.json")


def test_a_tier_has_every_option_of_the_table_and_its_defaults() -> None:
    table = {row["name"]: row["default"] for row in _core.tier_option_table()}
    assert {field.name for field in fields(sw.Tier)} == set(table)
    for field in fields(sw.Tier):
        if field.name != "location" and field.default is not None:
            assert str(field.default).lower() == table[field.name], field.name


def test_the_page_describes_every_option_of_a_tier() -> None:
    text = (Path(__file__).parents[2] / "docs" / "tiers.md").read_text()
    for row in _core.tier_option_table():
        assert f"`{row['name']}`" in text, row["name"]


def test_an_object_store_is_staged_in_the_same_directory_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_STAGING", "/staging")
    assert staging_directory("s3://b/run") == staging_directory("s3://b/run")
    assert staging_directory("s3://b/run").startswith("/staging/b-run-")
    assert staging_directory("s3://b/run") != staging_directory("s3://b-run")
