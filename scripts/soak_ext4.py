"""Power cuts of a real file system: ext4 with and without a journal, cut while the kill harness's trainer writes to it.

The file system lies in an image. A cut is a copy of it behind the file system's back: the trainer is stopped, the
requests in flight end, and what the kernel still holds in memory is not in the copy, as after a power cut. The copy is
then checked (e2fsck), mounted, and the trainer is started on it: it must find the last step that had been reported, bit
for bit, and be able to go on. Needs root and loop devices.
"""

import os
import random
import re
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

# Far more than the checkpoints need. Without a journal, deleted files come back if their deletion had not reached the
# disk. e2fsck then gives each file its own blocks. If there is no space for that, it deletes files, good ones too.
IMAGE_BYTES = 1 << 30
STATE_MIB = "4"
EVERYTHING = "1000000"
WRONG_BYTES = 3


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _unmount(directory: Path) -> None:
    """The kernel ends the rings of a killed process in its own time, and lets go of their files only then."""
    deadline = time.monotonic() + 30
    while subprocess.run(["umount", str(directory)], capture_output=True, check=False).returncode != 0:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{directory} stays busy")
        time.sleep(0.05)


@contextmanager
def _mounted(image: Path, directory: Path):
    """Mounts the image; yields its loop device."""
    with ExitStack() as stack:
        device = _run("losetup", "--find", "--show", str(image))
        stack.callback(_run, "losetup", "--detach", device)
        directory.mkdir(exist_ok=True)
        _run("mount", device, str(directory))
        stack.callback(_unmount, directory)
        yield device


def _writes(device: str) -> tuple[int, int]:
    """Writes so far, and requests in flight."""
    fields = Path(f"/sys/block/{Path(device).name}/stat").read_text().split()
    return int(fields[4]), int(fields[8])


class _Trainer:
    """The trainer in the background; what it reports is collected in a file, which no stopped process can block."""

    def __init__(self, program: Path, directory: Path, words: Path, when: str) -> None:
        self.words = words
        with words.open("w") as out:
            self.process = subprocess.Popen([program, directory, STATE_MIB, EVERYTHING, when], stdout=out)

    def reported(self) -> int:
        numbers = re.findall(r"^committed (\d+)$", self.words.read_text(), re.MULTILINE)
        return int(numbers[-1]) if numbers else 0

    def end(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def _cut(trainer: _Trainer, device: str, image: Path, copy: Path) -> int:
    """Copies the image as of one moment; returns the step that had been reported before."""
    trainer.process.send_signal(signal.SIGSTOP)
    reported = trainer.reported()
    # A copy counts if not a single write came between its beginning and its end.
    while True:
        before = _writes(device)
        if before[1] == 0:
            _run("cp", "--sparse=always", str(image), str(copy))
            if _writes(device) == before:
                break
    trainer.process.send_signal(signal.SIGCONT)
    return reported


def _inspect(program: Path, copy: Path, directory: Path, reported: int, tally: dict[str, int]) -> str:
    """What is wrong; empty if nothing is."""
    # 0: clean, 1: errors corrected (as the boot after a power cut does it).
    checked = subprocess.run(["e2fsck", "-f", "-y", str(copy)], capture_output=True, text=True, check=False)
    if checked.returncode > 1:
        tally["unreadable"] += 1
        return f"the file system cannot be repaired: {checked.stdout}"
    tally["repaired"] += checked.returncode
    with _mounted(copy, directory):
        answer = subprocess.run(
            [program, directory / "run", STATE_MIB, "1", "committed"], capture_output=True, text=True, check=False
        )
    found = re.search(r"^restored (\d+)$", answer.stdout, re.MULTILINE)
    if answer.returncode == WRONG_BYTES:
        tally["wrong"] += 1
    elif answer.returncode != 0 or found is None:
        tally["failed"] += 1
    elif int(found[1]) < reported:
        tally["behind"] += 1
    else:
        return ""
    return f"step {reported} was reported; the restart said: {answer.stdout} {answer.stderr}"


def _soak(program: Path, journal: bool, when: str, cuts: int, rng: random.Random, directory: Path) -> dict[str, int]:
    image, copy = directory / "disk.img", directory / "cut.img"
    image.write_bytes(b"")
    os.truncate(image, IMAGE_BYTES)
    _run("mkfs.ext4", "-q", "-F", "-O", "has_journal" if journal else "^has_journal", str(image))
    tally = dict.fromkeys(("cuts", "steps", "repaired", "behind", "wrong", "failed", "unreadable"), 0)
    with _mounted(image, directory / "disk") as device:
        trainer = _Trainer(program, directory / "disk/run", directory / "words", when)
        try:
            for _ in range(cuts):
                time.sleep(rng.uniform(0, 0.15))
                reported = _cut(trainer, device, image, copy)
                wrong = _inspect(program, copy, directory / "cut", reported, tally)
                if wrong and when == "committed":
                    print(wrong)
                tally["cuts"] += 1
            tally["steps"] = trainer.reported()
            if trainer.process.poll() is not None:
                tally["failed"] += 1
                print(f"the trainer ended by itself with code {trainer.process.returncode}")
        finally:
            trainer.end()
    return tally


def run(program: Path, cuts: int, seed: int) -> bool | None:
    """True: nothing lost; None: not permitted here."""
    try:
        with tempfile.TemporaryDirectory() as directory:
            probe = Path(directory) / "probe.img"
            probe.write_bytes(bytes(1 << 20))
            _run("losetup", "--detach", _run("losetup", "--find", "--show", str(probe)))
    except (OSError, subprocess.CalledProcessError) as trouble:
        print(f"not run: loop devices are not permitted here ({trouble})")
        return None

    rng = random.Random(seed)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    head = ("file system", "cuts", "steps reported", "repaired", "gone back", "wrong bytes", "failed", "lost")
    print(" | ".join((f"{head[0]:<20}", *(f"{word:>{max(6, len(word))}}" for word in head[1:]))))
    passed = True
    # The last proves the harness: steps reported before they are safe must be missed.
    for name, journal, when in (
        ("ext4", True, "committed"),
        ("ext4 without journal", False, "committed"),
        ("ext4, reported early", True, "captured"),
    ):
        with tempfile.TemporaryDirectory(dir=base) as directory:
            tally = _soak(program, journal, when, cuts, rng, Path(directory))
        lost = tally["behind"] + tally["wrong"] + tally["failed"] + tally["unreadable"]
        row = (tally[key] for key in ("cuts", "steps", "repaired", "behind", "wrong", "failed"))
        cells = (f"{number:>{max(6, len(word))}}" for number, word in zip((*row, lost), head[1:], strict=True))
        print(" | ".join((f"{name:<20}", *cells)), flush=True)
        passed = passed and tally["steps"] > 0 and (lost == 0) == (when == "committed")
    return passed
