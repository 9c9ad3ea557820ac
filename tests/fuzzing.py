"""What is fuzzed: every parser with valid inputs to begin from, and how inputs are made of them.

``tests/hostile/test_fuzz.py`` tries a few hundred of each, ``benchmarks/fuzz.py`` 100,000 and more.
A parser may return, or raise ValueError with a sentence; anything else is a finding.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

NUMBERS = (
    *("0", "-0", "-1", "1", "2", "1e3", "1e308", "1e309", "-1e999", "5e-324", "nan", "inf", "NaN"),
    *("Infinity", "-Infinity", "0x10", "1_000", "9" * 19, "9" * 400, "1.5", "٣", "²", "½", "true"),
    *("null", "None", "1e", "+", "--1", "1000000000000", "9223372036854775808", "0" * 300 + "1"),
)
TEXTS = (
    *("", " ", "\0", "\n", "\x1b[31m", "\x1b]0;x\x07", "\u202e", "\ufeff", "\ud800", "é", "😀"),
    *("[red]", "[/]", "[link=http://x]y", "<script>alert(1)</script>", "'", '"', "\\", "%s", "{0}"),
    *("../../etc/passwd", "/dev/null", "~", "$HOME", "`id`", ";", "A" * 5000, "__import__('os')"),
)
BRACKETS = ("[" * 3000, "{" * 3000, "]", "}", '{"a":' * 2000, "(", "[[", "a." * 3000)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A parser and what it is given."""

    name: str
    parse: Callable[[bytes], object]
    seeds: Sequence[bytes]
    tokens: Sequence[str] = ()
    """What its grammar is made of."""
    is_text: bool = True
    allowed: tuple[type[Exception], ...] = field(default=(ValueError,))

    def outcome(self, data: bytes) -> str:
        """Read, or refused; what must not happen is raised."""
        try:
            self.parse(data)
        except self.allowed as problem:
            assert str(problem).strip(), f"{type(problem).__name__} without a word"
            return "refused"
        return "read"


def mutated(chance: random.Random, target: Target) -> bytes:
    """An input that is like a valid one, in places."""
    data = bytearray(chance.choice(target.seeds))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        place = chance.randrange(len(data) + 1)
        stop = min(len(data), place + chance.choice((0, 0, 1, 2, 4, 16, 200)))
        data[place:stop] = _splice(chance, target, bytes(data[place:stop]))
    if chance.random() < 0.05:
        del data[chance.randrange(len(data) + 1) :]
    return bytes(data)


def _splice(chance: random.Random, target: Target, old: bytes) -> bytes:
    kind = chance.randrange(8)
    if kind == 0:
        return chance.randbytes(chance.choice((1, 1, 2, 8)))
    if kind == 1 and old:
        return old * chance.choice((2, 3, 50))
    if kind == 2 and target.is_text:
        return "".join(map(chr, chance.choices(range(32, 0x2100), k=3))).encode()
    if kind == 3:
        return b""
    pools = (NUMBERS, TEXTS, target.tokens or TEXTS, NUMBERS)
    pool = BRACKETS if chance.random() < 0.05 else pools[kind % 4]
    return chance.choice(pool).encode("utf-8", "surrogatepass")


def of_text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    """A parser of texts, given bytes; also lone surrogates, as a shell's arguments have them."""
    return lambda data: parse(data.decode("utf-8", "surrogateescape"))


def targets(folder: Path) -> list[Target]:
    """Every parser; ``folder`` is for files that are read.

    Args:
        folder: An empty one.
    """
    from fuzz_files import targets_of_files

    return [*_of_units(), *targets_of_files(folder), *_of_options(), *_of_surroundings()]


def _of_units() -> list[Target]:
    from paceline.cluster import units
    from paceline.studies.wishes import parse_time

    texts = ("100 Mbit/s", "1gbit", "25 GB/s", "5 us", "0.2 ms", "80 GB", "512 MiB", "19.5 TFLOP/s")
    seeds = [text.encode() for text in texts]
    marks = ("bit", "B", "/s", "µ", "Ki", "G", "e", ".", "FLOP", "s", "h", "min", "d")
    parsers: dict[str, Callable[[str], object]] = {
        "bandwidth": units.parse_bandwidth,
        "duration": units.parse_duration,
        "size": units.parse_size,
        "speed": units.parse_speed,
        "time of a run": parse_time,
    }
    return [
        Target(name=name, parse=of_text(parse), seeds=[*seeds, b"1h30m", b"2d"], tokens=marks)
        for name, parse in parsers.items()
    ]


def _of_options() -> list[Target]:
    from paceline.cli.frame import parse_shape
    from paceline.cli.options import parse_options
    from paceline.cluster import load_cluster
    from paceline.lab.layout import lay_out, parse_slow
    from paceline.lab.timetable import parse_changes
    from paceline.steps import load_step
    from paceline.studies.axes import make_axes

    base, lab = load_cluster("dgx-h200"), load_cluster("lab-2x2")

    def axes(text: str) -> object:
        name, _, values = text.partition("=")
        known = ("batches", "arithmetic", "memory_bandwidth", "link", "workers")
        return make_axes(base, 32, **{name if name in known else "workers": values})

    def spec(text: str) -> object:
        # What is named is imported and called, as the user asks: only names that nobody has.
        where, colon, name = text.partition(":")
        module = re.sub(r"\w+", "no_such_module", where, count=1)
        return load_step(f"{module or 'no_such_module'}{colon}{name}")

    seeds = {
        "option": ("daso.period=8", "period=8", "daso.wire=int8", 'daso.late="wait"'),
        "study's axes": (
            "workers=1:4096",
            "link=1gbit:800gbit",
            "batches=8:512",
            "arithmetic=0.5:4",
        ),
        "slow workers": ("0:1=2.0", "1:0=3,0:0=1"),
        "changes of links": ("link=50mbit at 20s", "link 1=50mbit at 2 ms"),
        "workers of nodes": ("2,1", "4"),
        "shape": ("3x224x224", "128"),
        "model": ("my_model.py:make", "package.module:make", "resnet50"),
    }
    parsers: dict[str, Callable[[str], object]] = {
        "option": lambda text: parse_options([text], ["daso"]),
        "study's axes": axes,
        "slow workers": lambda text: parse_slow([text], lab),
        "changes of links": lambda text: parse_changes([text], lab),
        "workers of nodes": lambda text: lay_out(workers_per_node=text),
        "shape": parse_shape,
        "model": spec,
    }
    marks = (":", "=", ",", ".", "x", " at ", "link", "daso", "period", "gbit", "s")
    return [
        Target(
            name=name,
            parse=of_text(parse),
            seeds=[each.encode() for each in seeds[name]],
            tokens=marks,
        )
        for name, parse in parsers.items()
    ]


def _of_surroundings() -> list[Target]:
    from urllib.parse import parse_qsl

    from paceline.studies.explorer.question import Question
    from paceline.teams.launcher import find_place

    def environment(text: str) -> object:
        pairs = (line.partition("=") for line in text.split("\n"))
        found = find_place({name: value for name, _, value in pairs})
        return found.rank, found.gpu_index

    launchers = (
        "RANK=1\nWORLD_SIZE=4\nLOCAL_RANK=1\nGROUP_RANK=0",
        "SLURM_PROCID=1\nSLURM_NTASKS=4\nSLURM_LOCALID=1\nSLURM_NODEID=0\n"
        "SLURM_JOB_NODELIST=gpu[01-04,7]\nSLURM_TASKS_PER_NODE=2(x3),1",
        "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=4\nOMPI_COMM_WORLD_LOCAL_RANK=1",
    )
    query = b"cluster=dgx-h200&device=&strategy=sync&batch=1&arithmetic=2&memory_bandwidth=0"
    return [
        Target(
            name="launcher's environment",
            parse=of_text(environment),
            seeds=[each.encode() for each in launchers],
            tokens=("RANK=", "WORLD_SIZE=", "SLURM_NTASKS=", "(x3)", "[1-3]", "\n"),
        ),
        Target(
            name="explorer's question",
            parse=of_text(lambda text: Question.from_query(dict(parse_qsl(text)))),
            seeds=[query, query + b"&link=3&workers=4"],
            tokens=("&", "=", "workers", "%00", "%ff"),
        ),
        Target(
            name="command line",
            parse=_command_line,
            seeds=[line.encode() for line in COMMANDS],
            tokens=(
                *("\n", "--json", "--", "--debug", "--batch", "--cluster", "--option", "-h"),
                *("--nodes", "--device", "--strategy", "--samples", "--precision", "--jitter"),
                *("resnet50", "lab-2x2", "daso", "h200", "fp16", "1:8", "🚲", "\x1b[31m"),
            ),
        ),
    ]


# One argument per line. None of them begins any work: each names something that is not there.
COMMANDS = (
    "cluster\nshow\nno-such.toml\n--json",
    "cluster\ncheck\nno-such.toml",
    "device\nshow\nno-such",
    "strategies\nno-such\n--json",
    "predict\nno-such\n--batch\n8\n--nodes\n2\n--jitter\n0.1\n--price\n2\n--epochs\n1",
    "study\nno-such\n--cluster\nlab-2x2\n--batch\n8:64\n--map\nworkers,link\n--scaling\nweak",
    "advise\nno-such\n--cluster\nlab-2x2\n--deadline\n8h\n--budget\n500",
    "explore\nno-such\n--port\n0\n--no-browser",
    "race\n--strategies\nno-such\n--epochs\n3\n--lr\n0.1\n--target\n0.9",
    "lab\nrun\n--cluster\nno-such\n--slow\n0:0=2\n--\ntrue",
    "measure\nkernels\n--out\nno-such\n--budget\n5 s",
    "fit\nno-such.kernels.gz\n--steps\n20",
    "trace\ncompare\nno-such.json\nno-such.json.gz",
    "predict\nno-such.py:make\n--cluster\nlab-2x2\n--strategy\ndaso\n--option\ndaso.period=8",
    "predict\nno-such\n--device\na100,h100\n--samples\n1000000\n--input\n3x224x224\n--classes\n9",
    "predict\nno-such\n--precision\nbf16\n--optimizer\nadamw\n--shares\nbalanced\n--compare",
    "study\nno-such\n--workers\n1:64\n--arithmetic\n0.5:2\n--link\n0.1:10\n--out\nno-such/x.html",
    "race\n--model\nno-such\n--nodes\n2\n--workers\n2\n--link\n100mbit\n--seed\n1",
    "doctor\nno-such\n--json",
    "device\nlist\nno-such\n--json",
    "cluster\nlist\n--json\nno-such",
)


@cache
def _whole_app() -> Any:
    """All commands, put together once: typer would do so for every input."""
    import typer

    from paceline.cli.main import app

    return typer.main.get_command(app)


def _command_line(data: bytes) -> object:
    """Run a command in this process: its exit code is 0 or 2, and 2 comes with one sentence."""
    from paceline.cli import frame

    arguments = data.decode("utf-8", "surrogateescape").split("\n")
    if "no-such" not in data.decode("utf-8", "replace"):
        arguments.append("no-such")  # an argument too many: nothing begins
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = frame.run(_whole_app(), [each for each in arguments if each != "--debug"])
    said = err.getvalue()
    if code == frame.BAD_INPUT and not said:  # a group without a command shows its help
        return out.getvalue()
    if code not in (0, frame.BAD_INPUT):
        raise AssertionError(f"exit code {code}: {said[:500]}")
    if code == frame.BAD_INPUT:
        if not said.startswith("Error: ") or said.count("\n") != 1:
            raise AssertionError(f"not one sentence: {said[:500]}")
        if not said[:-1].isprintable():
            raise AssertionError(f"not to be seen: {said[:500]!r}")
        raise ValueError(said)
    return json.dumps(out.getvalue())
