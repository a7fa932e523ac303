"""Loop x optimizer x loader x parallelism: each run, killed at a random moment, ends with the bits of one left alone.

`tests/python/resume_matrix.py` does the same by hand, and at length in `make soak`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import resume_matrix
from resume_cases import Case
from resume_server import Server
from support import need

SEED = int(os.environ.get("SLACKWATER_SEED", time.time()))


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Of the table, which is printed at the end."""
    rows = [resume_matrix.HEADER]
    yield rows
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join(rows))


@pytest.mark.parametrize("case", resume_matrix.SHORT, ids=lambda case: "-".join(case))
def test_killed_run_ends_with_the_bits_of_one_left_alone(case: Case, resume_server: Server, rows: list[str]) -> None:
    need(*resume_matrix.libraries(case))
    answer = resume_server.ask(matrix=case._asdict(), seed=SEED)
    rows.append(answer["row"])
    assert not answer["trouble"], f"seed {SEED}: {answer['trouble']}"
