"""``prepare`` and ``restore`` make the pool before the first save needs it."""

import pytest
import slackwater as sw

torch = pytest.importorskip("torch")

MIB = 1 << 20


def state(mebibytes=3):
    return {"w": torch.arange(mebibytes * MIB // 4, dtype=torch.int32)}


def test_prepare_makes_the_pool_and_save_uses_it(tmp_path):
    with sw.Checkpointer(tmp_path / "run", slab="1MiB") as ckpt:
        assert ckpt.stats.pool_bytes == 0
        ckpt.prepare(state(), wait=True)
        prepared = ckpt.stats.pool_bytes
        assert prepared >= 3 * MIB
        ckpt.save(1, state())
        ckpt.wait()
        assert ckpt.stats.pool_bytes == prepared


def test_prepare_again_and_for_another_size_changes_nothing(tmp_path):
    with sw.Checkpointer(tmp_path / "run", slab="1MiB") as ckpt:
        ckpt.prepare(state())
        prepared = ckpt.stats.pool_bytes
        ckpt.prepare(state())
        ckpt.prepare(state(9))
        assert ckpt.stats.pool_bytes == prepared


def test_prepare_keeps_a_size_that_was_given(tmp_path):
    with sw.Checkpointer(tmp_path / "run", slab="1MiB", pool="2MiB") as ckpt:
        ckpt.prepare(state(9), wait=True)
        assert ckpt.stats.pool_bytes == 2 * MIB


def test_restore_prepares_the_pool(tmp_path):
    with sw.Checkpointer(tmp_path / "run", slab="1MiB") as ckpt:
        ckpt.save(1, state())
    with sw.Checkpointer(tmp_path / "run", slab="1MiB") as ckpt:
        assert ckpt.restore(state()) == 1
        assert ckpt.stats.pool_bytes >= 3 * MIB


@pytest.mark.parametrize("bad", [{"f": lambda: None}, [1, 2], 7])
def test_a_bad_state_raises_what_save_raises(tmp_path, bad):
    with sw.Checkpointer(tmp_path / "run") as ckpt:
        with pytest.raises(sw.Error) as by_save:
            ckpt.save(1, bad)
        with pytest.raises(type(by_save.value)) as by_prepare:
            ckpt.prepare(bad)
        assert str(by_prepare.value) == str(by_save.value)
        assert ckpt.stats.pool_bytes == 0


def test_prepare_after_close_raises(tmp_path):
    ckpt = sw.Checkpointer(tmp_path / "run")
    ckpt.close()
    with pytest.raises(sw.ClosedError):
        ckpt.prepare(state())
