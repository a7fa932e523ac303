"""The demo: train, kill, resume, prove it, compare. About two minutes on two cores; no GPU needed.

1. A small GPT trains without checkpoints: the reference.
2. The same training, with a checkpoint at every iteration, in a child process that is killed with SIGKILL at a random
   step while a checkpoint is on its way, started again, and goes on from the newest committed step.
3. Both must agree bit by bit: every loss, the final weights, the optimizer's state. If they do not, the demo fails.
4. One table: what a checkpoint at every iteration costs with Slackwater, torch.save and
   torch.distributed.checkpoint.async_save.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEPS = 48
PRINT_EVERY = 6  # in a log file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--dir", type=Path, default=Path("runs/demo"), help="for checkpoints; emptied first (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="of training (%(default)s)")
    parser.add_argument("--seed", type=int, help="chooses the moment of the kill (another each time)")
    args = parser.parse_args()

    shutil.rmtree(args.dir, ignore_errors=True)
    args.dir.mkdir(parents=True)
    run = args.dir / "gpt"

    heading(f"1. The reference: {args.steps} steps without checkpoints")
    reference = Trainer(args.steps)
    reference.follow()

    heading("2. The same training, a checkpoint at every step, killed on the way")
    survivor = train_through_a_kill(args.steps, run, random.Random(args.seed))

    heading("3. Are they the same?")
    check_equal(reference, survivor, args.steps)
    slackwater("ls", run)
    slackwater("verify", run)

    heading("4. What a checkpoint at every step costs")
    show_comparison(args.dir, reference.state_bytes)


class Trainer:
    """A child that trains, and what it has reported so far."""

    def __init__(self, steps: int, run: Path | None = None, losses: dict[int, str] | None = None):
        self.steps = steps
        self.losses: dict[int, str] = losses if losses is not None else {}
        self.start = self.step = self.committed = self.state_bytes = 0
        self.digest = ""
        command = [sys.executable, str(HERE / "demo_trainer.py"), "--steps", str(steps)]
        self._checkpoints = run is not None
        if run:
            command += ["--run", str(run)]
        environment = os.environ | {"MKL_DYNAMIC": "FALSE", "OMP_DYNAMIC": "FALSE"}  # the same threads in every run
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def follow(self, until: int | None = None) -> None:
        """Shows the training; returns when the step has been reported, or else at its end."""
        assert self.process.stdout
        for line in self.process.stdout:
            event = json.loads(line)
            if "start" in event:
                self.start = event["start"]
                if self.start:
                    say(f"started again: goes on from step {self.start}, the newest that was committed")
            elif "step" in event:
                self._take_step(event)
                if event["step"] == until:
                    return
            else:
                self.digest, self.state_bytes = event["digest"], event["state_bytes"]
        LIVE.end()
        if self.process.wait() != 0:
            fail(f"the trainer ended with code {self.process.returncode} after step {self.step}")

    def _take_step(self, event: dict) -> None:
        self.step, self.committed = event["step"], event["committed"]
        loss = event["loss"]
        before = self.losses.setdefault(self.step, loss)
        if before != loss:
            LIVE.end()
            fail(f"step {self.step} was repeated with another loss: {before} before the kill, {loss} after it")
        text = f"step {self.step:3d}/{self.steps}   loss {float.fromhex(loss):.4f}"
        if self._checkpoints:
            stall_ms, flush = 1e3 * event["stall"], event["rate"] / 1e9
            text += f"   stall {stall_ms:5.1f} ms   flush {flush:4.2f} GB/s   {self.committed} checkpoints committed"
        LIVE.show(text, keep=self.step % PRINT_EVERY == 0 or self.step == self.steps)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        LIVE.end()


def train_through_a_kill(steps: int, run: Path, rng: random.Random) -> Trainer:
    first = Trainer(steps, run)
    first.follow(until=rng.randint(steps // 3, 2 * steps // 3))
    time.sleep(rng.uniform(0, 0.05))  # somewhere between the capture of this step and its commit, or just after
    first.kill()
    say(f"killed with SIGKILL after step {first.step}; it had said that steps up to {first.committed} are committed")

    second = Trainer(steps, run, first.losses)
    second.follow()
    repeated = first.step - second.start
    ending = ", with the same losses" if repeated else ": the last checkpoint had made it"
    say(f"{repeated} of {first.step} steps had to be repeated{ending}")
    if second.start < first.committed:
        fail(f"step {first.committed} had been committed, and the resume began at {second.start}")
    return second


def check_equal(reference: Trainer, survivor: Trainer, steps: int) -> None:
    wrong = [step for step in range(1, steps + 1) if reference.losses.get(step) != survivor.losses.get(step)]
    say(f"losses of all {steps} steps: {'equal, bit by bit' if not wrong else f'different from step {wrong[0]} on'}")
    say("weights and optimizer state, SHA-256:")
    say(f"  never interrupted   {reference.digest}")
    say(f"  killed and resumed  {survivor.digest}")
    if wrong or reference.digest != survivor.digest or not reference.digest:
        fail("the resumed training is not the one that was never interrupted")
    say("Yes, bit by bit.\n")


def show_comparison(folder: Path, state_bytes: int) -> None:
    from demo_compare import compare, table  # imports torch, which the parent of the trainers did not need until now

    measured = compare(folder, lambda text: LIVE.show(text, keep=False))
    LIVE.end()
    say(table(measured))
    say(f"""
State: {state_bytes / 1e6:.0f} MB (weights and AdamW moments). Stall: all the time the training thread is held up by a
checkpoint, over all steps, timed from outside. What the time buys differs: Slackwater checksums every byte, syncs, and
commits atomically; async_save syncs its files, without checksums; torch.save leaves the file in the page cache, where
a power cut finds it.""")


def slackwater(verb: str, run: Path) -> None:
    command = Path(sys.executable).parent / "slackwater"
    say(f"$ slackwater {verb} {run}")
    sys.stdout.flush()
    if subprocess.run([command, verb, run]).returncode != 0:
        fail(f"slackwater {verb} found something wrong")
    say("")


class LiveLine:
    """One line that is written over on a terminal; in a log file, every now and then a line that stays."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._open = False

    def show(self, text: str, keep: bool) -> None:
        if self._terminal:
            print(f"\r\033[K{text}", end="", flush=True)
            self._open = True
        elif keep:
            print(text, flush=True)

    def end(self) -> None:
        if self._open:
            print(flush=True)
        self._open = False


LIVE = LiveLine()


def heading(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def say(text: str) -> None:
    print(text, flush=True)


def fail(message: str) -> None:
    sys.exit(f"\ndemo: FAILED: {message}")


if __name__ == "__main__":
    main()
