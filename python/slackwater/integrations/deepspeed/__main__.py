"""Writes an ordinary DeepSpeed checkpoint.

    python -m slackwater.integrations.deepspeed export SAVE_DIR OUT [--tag T]

Any DeepSpeed loads it without Slackwater, and so do its tools. One file at a time is in memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from ...errors import Error, NotFoundError, UsageError
from .loading import load_file
from .tag_directory import LATEST, TagDirectory, write_latest


def export(save_dir: str, out: str, tag: str | None = None, *, allow_pickle: bool = False) -> list[str]:
    """The paths of the files that were written."""
    import torch

    save_dir, out = os.path.abspath(save_dir), os.path.abspath(out)
    if tag is None:
        try:
            with open(os.path.join(save_dir, LATEST)) as file:
                tag = file.read().strip()
        except FileNotFoundError:
            raise NotFoundError(f"there is no file 'latest' in '{save_dir}'; name a tag") from None
    if not tag or os.path.basename(tag) != tag:
        raise UsageError(f"'{tag}' is no tag")
    source = TagDirectory(os.path.join(save_dir, tag))
    manifest = source.manifest()
    if manifest is None:
        raise NotFoundError(f"'{source.path}' is no complete checkpoint of Slackwater")
    target = os.path.join(out, tag)
    if os.path.exists(target):
        raise UsageError(f"'{target}' exists already; choose another place")
    os.makedirs(target)
    written = []
    for file in sorted(manifest.files):
        state = load_file(os.path.join(source.path, file), allow_pickle=allow_pickle)
        written.append(os.path.join(target, file))
        torch.save(state, written[-1])
    script = os.path.join(save_dir, "zero_to_fp32.py")
    if os.path.exists(script):
        shutil.copy(script, out)
    write_latest(out, tag)
    return written


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m slackwater.integrations.deepspeed")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("export", help="write an ordinary DeepSpeed checkpoint")
    verb.add_argument("save_dir", help="what save_checkpoint() was given")
    verb.add_argument("out", help="the new directory")
    verb.add_argument("--tag", help="by default the one that 'latest' names")
    verb.add_argument("--allow-pickle", action="store_true", help="also load values that were saved as pickles")
    given = parser.parse_args(arguments)
    try:
        written = export(given.save_dir, given.out, given.tag, allow_pickle=given.allow_pickle)
    except (Error, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
