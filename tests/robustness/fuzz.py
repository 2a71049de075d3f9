"""Damage everything that is read, crash at everything that is written: `make fuzz`.

    python tests/robustness/fuzz.py --cases 1500 --seed 0

No traceback, no hang, no more than 2 GB, nothing silently wrong: what is protected by checksums or announces its own
size is refused, or read as it was; a run or a conversion that was crashed anywhere ends as if it had not been. The last
lines are counts; exit code 1 if any case failed, with what it takes to repeat it.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import damage  # noqa: E402
import harness  # noqa: E402
import sources  # noqa: E402
from harness import Outcome, command  # noqa: E402

Oracle = Callable[[Outcome, Path], str]


def anything(outcome: Outcome, folder: Path) -> str:
    """Who could know what is right."""
    return ""


@dataclass(frozen=True)
class Case:
    """Something to try: a fresh copy of `source` is given to `prepare`, which gives what is to be run."""

    name: str
    source: Path
    prepare: Callable[[Path, random.Random], Callable[[], object]]
    oracle: Oracle = anything


def refused_or(expected: str) -> Oracle:
    """Whatever was read is what was there before the damage."""

    def judge(outcome: Outcome, folder: Path) -> str:
        wrong = outcome.code == 0 and outcome.out != expected and not outcome.err.strip()
        return f"silently wrong: {outcome.out.strip()[:100]!r}" if wrong else ""

    return judge


def damaged(
    case: str,
    source: Path,
    file: str,
    hurt: damage.Damage,
    then: Callable[[Path], Callable[[], object]],
    oracle: Oracle = anything,
    repair: Callable[[Path], None] = lambda folder: None,
) -> Case:
    """Damage a file of a folder, and use the folder."""

    def prepare(folder: Path, rng: random.Random) -> Callable[[], object]:
        hurt(folder / file, rng)
        repair(folder)
        return then(folder)

    return Case(f"{case}: {file}, {hurt.__name__}", source, prepare, oracle)


def meshes(root: Path, number: int, rng: random.Random) -> Iterator[Case]:
    """Every format of meshes and clouds."""
    folder = sources.mesh_files(root / "meshes")
    digests = {file.name: harness.run(lambda f=file: sources.print_mesh(f), folder).out for file in folder.iterdir()}
    assert all(digests.values()), digests
    names = sorted(digests)
    for i in range(number):
        name = names[i % len(names)]
        hurt = rng.choice(damage.EVERY)
        announces = Path(name).suffix not in (".obj", ".xyz", ".csv") and not name.startswith("ascii.stl")
        oracle = refused_or(digests[name]) if hurt is damage.truncate and announces else anything
        yield damaged("mesh", folder, name, hurt, lambda f, n=name: lambda: sources.print_mesh(f / n), oracle)


def models(root: Path, number: int, rng: random.Random) -> Iterator[Case]:
    """A saved model, damaged by chance, and by somebody who keeps its checksums right."""
    folder = sources.model(root / "model")
    expected = harness.run(lambda: sources.print_logits(folder), root).out
    assert expected
    for i in range(number):
        file = ("config.json", "model.safetensors", "checksums.json")[i % 3]
        forged = file != "checksums.json" and rng.random() < 0.5
        repair = sources.forge_checksums if forged else lambda folder: None
        oracle = anything if forged else refused_or(expected)
        kind = "forged model" if forged else "model"
        yield damaged(kind, folder, file, rng.choice(damage.EVERY),
                      lambda f: lambda: sources.print_logits(f), oracle, repair)  # fmt: skip


def packs(root: Path, number: int, rng: random.Random) -> Iterator[Case]:
    """A pack, damaged by chance, and with wrong contents under a right checksum."""
    folder = sources.pack(root / "packs")
    check = ("data", "folder", "--to", "mine", "--data-root", ".", "--check")
    expected = harness.run(command(*check), folder).out
    assert "as written" in expected
    for _ in range(number):
        if rng.random() < 0.5:
            yield damaged("pack", folder, "mine.safetensors", rng.choice(damage.EVERY), lambda f: command(*check),
                          refused_or(expected))  # fmt: skip
        else:
            forge = rng.choice(sources.FORGERIES)
            yield damaged("forged pack", folder, "mine.safetensors", forge, lambda f: lambda: sources.use_pack(f),
                          lambda outcome, folder: "" if outcome.code == 2 else "was used")  # fmt: skip


def runs(root: Path, number: int, rng: random.Random) -> Iterator[Case]:
    """A run, tested or resumed."""
    folder = root / "run"
    made = harness.run(command(*sources.TRAIN, "--epochs", 2, "--out", folder), root)
    assert made.code == 0, made.err
    tested = harness.run(command("evaluate", folder), root).out
    straight = sources.metrics(folder, longer=True)
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())

    def as_straight(outcome: Outcome, folder: Path) -> str:
        wrong = outcome.code == 0 and not outcome.err.count("damaged") and sources.metrics(folder) != straight
        return "silently wrong: other metrics" if wrong else ""

    for i in range(number):
        file, hurt = files[i % len(files)], rng.choice(damage.EVERY)
        settings = file == "config.json"  # which no checksum protects: they may be changed
        if rng.random() < 0.5:
            yield damaged("evaluate", folder, file, hurt, lambda f: command("evaluate", f),
                          anything if settings else refused_or(tested))  # fmt: skip
        else:
            yield damaged("resume", folder, file, hurt, lambda f: command("train", "--resume", f, "--epochs", 3),
                          anything if settings else as_straight)  # fmt: skip


def checkpoints(root: Path, number: int, rng: random.Random) -> Iterator[Case]:
    """The authors' files."""
    folder = sources.authors_checkpoint(root / "authors")
    for i in range(number):
        if i % 2:
            yield damaged("convert", folder, "old.pth", rng.choice(damage.EVERY),
                          lambda f: command("convert", f / "old.pth", f / "new"))  # fmt: skip
        else:
            odd = rng.choice(sources.ODD_CHECKPOINTS)
            yield damaged("odd checkpoint", folder, "old.pth", odd,
                          lambda f: command("convert", f / "old.pth", f / "new"),
                          lambda outcome, folder: "" if outcome.code == 2 else "was converted")  # fmt: skip


def releases(root: Path, number: int, rng: random.Random) -> Iterator[Case]:
    """Published data, as it is downloaded."""
    known, flags = sources.releases(root / "releases"), ("--data-root", "root", "--workers", 1)
    for i in range(number):
        name, (folder, arguments) = list(known.items())[i % len(known)]
        files = sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())
        yield damaged(f"release {name}", folder, rng.choice(files), rng.choice(damage.EVERY),
                      lambda f, a=arguments: command("data", *a, *flags))  # fmt: skip


def crashes(root: Path, every: int) -> Iterator[Case]:
    """A run and a conversion, stopped at each write in turn by a crash or a full disk, and then run again."""
    empty = root / "empty"
    empty.mkdir()
    files = sources.class_folders(root / "classes")
    train = (*sources.TRAIN, "--epochs", 2, "--out", "run")
    data = ("data", "folder", "--from", files, "--to", "mine", "--data-root", "root", "--workers", 1)
    for kind, arguments, again, result in (
        ("train", train, ("train", "--resume", "run"), lambda f: json.dumps(sources.metrics(f / "run"))),
        ("data", data, data, lambda f: sources.digest(f / "root" / "mine.safetensors")),
    ):
        whole = Path(tempfile.mkdtemp(dir=root))
        count = harness.run(lambda a=arguments, w=whole: sources.count_writes(command(*a), w), whole)
        assert count.code == 0, count.err
        expected, writes = result(whole), int(count.out.splitlines()[-1])
        for n in range(1, writes + 1, every):
            for act in (harness.crash, harness.no_space):
                yield _stopped(kind, empty, n, act, arguments, again, result, expected)
        for most in (0, 100, 1000, 5000, 20_000):
            yield _too_large(kind, empty, most, arguments, again, result, expected)


def _then_again(folder: Path, kind: str, arguments: tuple, again: tuple, result: Callable, expected: str) -> str:
    if kind == "train" and not (folder / "run" / "config.json").exists():
        again = arguments
    outcome = harness.run(command(*again), folder)
    if outcome.code or outcome.trouble:
        return f"the second try fails: {outcome.trouble or outcome.err.strip().splitlines()[-1]}"
    return "" if result(folder) == expected else "the second try ends elsewhere"


def _stopped(kind, source, number, act, arguments, again, result, expected) -> Case:
    def prepare(folder: Path, rng: random.Random) -> Callable[[], object]:
        def stopped() -> None:
            harness.at_write(number, act, folder)
            command(*arguments)()

        return stopped

    def judge(outcome: Outcome, folder: Path) -> str:
        return _then_again(folder, kind, arguments, again, result, expected)

    return Case(f"{kind}: {act.__name__} at write {number}", source, prepare, judge)


def _too_large(kind, source, most, arguments, again, result, expected) -> Case:
    def prepare(folder: Path, rng: random.Random) -> Callable[[], object]:
        def stopped() -> None:
            harness.small_files(most)()
            command(*arguments)()

        return stopped

    def judge(outcome: Outcome, folder: Path) -> str:
        return _then_again(folder, kind, arguments, again, result, expected)

    return Case(f"{kind}: files of at most {most} bytes", source, prepare, judge)


SHARES = {meshes: 0.45, models: 0.12, packs: 0.13, runs: 0.14, checkpoints: 0.08, releases: 0.08}


CASES: list[Case] = []


@dataclass(frozen=True)
class Attempt:
    """Try one of the cases."""

    root: Path
    seed: int

    def __call__(self, number: int) -> tuple[int, str, Outcome]:
        case, folder = CASES[number], self.root / f"case{number}"
        shutil.copytree(case.source, folder, symlinks=True)
        outcome = harness.run(case.prepare(folder, random.Random(f"{self.seed} {number}")), folder)
        trouble = outcome.trouble or case.oracle(outcome, folder)
        shutil.rmtree(folder, ignore_errors=True)
        return number, trouble, outcome


def main() -> int:
    """Try all cases, and count."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cases", type=int, default=1500, help="damaged inputs")
    options.add_argument("--every", type=int, default=1, help="stop at every n-th write only")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options.add_argument("--only", help="cases whose name contains this")
    given = options.parse_args()
    os.environ |= {"VN_KERNELS": "eager", "OMP_NUM_THREADS": "1"}  # nothing to build or load in the many processes
    sources.preload()
    started = time.monotonic()
    counts: Counter[str] = Counter()
    failures = []
    with tempfile.TemporaryDirectory(prefix="fuzz") as top:
        root, rng = Path(top), random.Random(given.seed)
        for kind, share in SHARES.items():
            CASES.extend(kind(root, round(share * given.cases), rng))
        CASES.extend(crashes(root, given.every))
        chosen = [i for i, case in enumerate(CASES) if not given.only or given.only in case.name]
        # Forked: they have all that was imported and prepared here.
        with get_context("fork").Pool(given.jobs) as pool:
            for number, trouble, outcome in pool.imap(Attempt(root, given.seed), chosen):
                name = CASES[number].name
                counts[name.partition(":")[0]] += 1
                counts["refused" if outcome.code else "accepted"] += 1
                counts["slowest"] = max(counts["slowest"], round(outcome.seconds))
                counts["most MB"] = max(counts["most MB"], outcome.memory_kb // 1024)
                if trouble:
                    failures.append(number)
                    print(f"FAILED case {number}, {name}: {trouble}", flush=True)
    kinds = ", ".join(f"{k} {n}" for k, n in counts.items() if k not in ("refused", "accepted", "slowest", "most MB"))
    print(f"{len(chosen)} cases in {time.monotonic() - started:.0f} s: {kinds}")
    print(f"{counts['refused']} refused or stopped, {counts['accepted']} accepted;"
          f" slowest {counts['slowest']} s, most memory {counts['most MB']} MB")  # fmt: skip
    print(f"{len(chosen) - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
