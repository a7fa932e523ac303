"""Make patches of tests/mutations apply again after the code around them has changed: scripts/refresh_mutations.py

Each patch that no longer applies is applied with fuzz (patch -F3) to a copy, and rewritten as the diff that results. A
patch that cannot be placed even so is named and left as it is. Somebody has to look at it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mutate import PATCHES, ROOT, HarnessError, git_apply


def files_of(diff: str) -> list[str]:
    return [line[len("--- a/") :].strip() for line in diff.splitlines() if line.startswith("--- a/")]


def refresh(path: Path) -> bool:
    """True: the diff was written anew."""
    header, rule, diff = path.read_text().partition("\n---\n")
    files = files_of(diff)
    with tempfile.TemporaryDirectory() as directory:
        for side in ("a", "b"):
            for file in files:
                target = Path(directory, side, file)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / file, target)
        command = ["patch", "-p1", "-F3", "--no-backup-if-mismatch", "--silent", "--reject-file=-"]
        patched = subprocess.run(
            command, cwd=Path(directory, "b"), input=diff, text=True, capture_output=True, check=False
        )
        if patched.returncode != 0:
            return False
        parts = []
        for file in files:
            old, new = f"a/{file}", f"b/{file}"
            made = subprocess.run(["diff", "-u", "--label", old, "--label", new, old, new],
                                  cwd=directory, text=True, capture_output=True, check=False).stdout  # fmt: skip
            parts.append(f"diff --git a/{file} b/{file}\n{made}")
        path.write_text(header + rule + "".join(parts))
        return True


def main() -> int:
    left = 0
    for path in sorted(PATCHES.glob("*/*.patch")):
        try:
            git_apply(ROOT, path, "--check")
        except HarnessError:
            done = refresh(path)
            left += not done
            print(f"{path.relative_to(PATCHES)}: {'written anew' if done else 'CANNOT BE PLACED'}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
