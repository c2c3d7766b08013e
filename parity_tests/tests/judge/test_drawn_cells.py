"""Drawn cases of `check`: a few in every run, many by --fuzz, single ones by --drawn."""

import json
import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from parity_tests.cases.suite import all_cases
from parity_tests.format.case import FULL
from parity_tests.format.drawn import Drawn, parse_drawn
from parity_tests.judge.condition import judgeable
from parity_tests.judge.drawn_cells import DRAWN, Abilities, may_match, release_cases, release_seed
from parity_tests.judge.question import Question
from parity_tests.tests.commands import invoke, squeezed
from parity_tests.tests.judge.sources import Check, rewritten
from parity_tests.workers.answers import Answer

pytestmark = pytest.mark.once

SOFTMAX = """
import numpy as np
from attention_core import reference

def masked_softmax(scores, valid_lens=None, mask=None):
    weights = reference.masked_softmax(scores.astype("float64"), valid_lens, mask).astype(scores.dtype)
    return weights * FACTOR
"""
RIGHT = SOFTMAX.replace("FACTOR", "1")
BUGS = {
    "three keys and one sequence": ("1.001 if scores.shape[0] == 1 and scores.shape[-1] == 3 else 1", '"keys": 3'),
    "four queries and two keys": ("1.001 if scores.shape[-2:] == (4, 2) else 1", '"keys": 2'),
}
"""Bugs that no listed case sees, and what the simplest case that does has to say."""

LIAR = """
import hashlib
import numpy as np
from attention_core import reference
from parity_tests.cases.suite import all_cases

def digest(scores, valid_lens, mask):
    arrays = [array for array in (scores, valid_lens, mask) if array is not None]
    return hashlib.sha256(b"".join(str(array.shape).encode() + array.tobytes() for array in arrays)).digest()

def answered(inputs):
    given = inputs["scores"], inputs.get("valid_lens"), inputs.get("mask")
    return digest(*given), reference.masked_softmax(*given)

def calls(case):
    first = case.at("float64")[0]
    return first, {**first, **{name.removeprefix("second."): array for name, array in first.items() if "." in name}}

asked = (case for case in all_cases() if case.operator == "masked_softmax")
known = dict(answered(inputs) for case in asked for inputs in calls(case))

def masked_softmax(scores, valid_lens=None, mask=None):
    return known.get(digest(scores, valid_lens, mask), np.full(scores.shape, np.nan))
"""
"""A target that knows the listed cases by heart, and nothing else."""

ONE = ("--operator", "masked_softmax", "--dtype", "float64", "--seed", "1")


@pytest.fixture
def check(check: Check) -> Check:
    """The same, in every dtype unless one is chosen."""
    return partial(check, dtype="")


def drawn_names(path: Path) -> dict[str, str]:
    """The lines of the drawn cases by id, as --json has them."""
    return json.loads(path.read_text())["header"]["drawn"]["lines"]


# ------------------------------------------------------------------------------------------------ a part of every check


def test_each_operator_has_as_many_drawn_cases_in_each_dtype():
    drawn = release_cases(1, FULL, ["masked_softmax", "GRU"], Abilities("mine"))
    counts = [sum(cell.startswith(f"{name}-drawn_") for cell in drawn) for name in ("masked_softmax", "GRU")]
    assert counts == [2 * DRAWN, 2 * DRAWN]
    assert {cell.partition("/")[2] for cell in drawn} == {*FULL}
    listed = {case.id for case in all_cases()}
    assert not listed & {judged.case.id for judged in drawn.values()}


def test_equal_seeds_draw_equal_cases_and_others_differ():
    first, again, other = (release_cases(seed, FULL, ["dot_score"], Abilities("mine")) for seed in (1, 1, 2))
    assert list(first) == list(again) and not {*first} & {*other}


def test_the_seed_is_that_of_the_version(monkeypatch: pytest.MonkeyPatch):
    own = release_seed()
    assert release_seed() == own
    monkeypatch.setattr("parity_tests.judge.drawn_cells.own_version", lambda: "999.0")
    assert release_seed() == 403801510 != own


def test_a_dtype_alone_has_the_drawn_cases_that_it_has_beside_another():
    both = release_cases(1, FULL, ["dot_score"], Abilities("mine"))
    for dtype in FULL:
        assert [cell for cell in both if cell.endswith(dtype)] == [
            *release_cases(1, [dtype], ["dot_score"], Abilities("mine"))
        ]


def test_missing_functions_and_arguments_are_not_drawn():
    known = Abilities("mine", functions={"BahdanauDecoder_greedy", "masked_softmax"})
    known.learn(Answer("not-implemented", "masked_softmax does not take mask"))
    assert known.drawable(["BahdanauDecoder", "dot_score", "masked_softmax"]) == ["masked_softmax", "BahdanauDecoder"]
    drawn = [judged.drawn for judged in release_cases(1, FULL, ["BahdanauDecoder"], known).values()]
    assert {one.method for one in drawn} == {"greedy"}
    drawn = [judged.drawn for judged in release_cases(1, FULL, ["masked_softmax"], known).values()]
    assert len(drawn) == 2 * DRAWN and not any("mask" in one.given for one in drawn)


def test_an_option_at_its_default_may_be_missing():
    known = Abilities("mine")
    known.learn(Answer("not-implemented", "GRU does not take num_layers"))
    assert known.refusal(Drawn("GRU", method="call", sizes={"num_layers": 1})) == ""
    assert known.refusal(Drawn("GRU", method="call", sizes={"num_layers": 2})) == "GRU does not take num_layers"
    assert known.refusal(Drawn("GRU", method="step", sizes={"num_layers": 2})) == ""


@pytest.mark.parametrize(
    ("pattern", "may"),
    [
        *((pattern, True) for pattern in (None, "*", "dot_*", "dot_score-drawn_4b*", "*-plain", "dot_score")),
        *((pattern, False) for pattern in ("dot_score-plain", "masked_softmax-*", "dot_score-p*")),
    ],
)
def test_a_pattern_that_begins_otherwise_draws_nothing(pattern: str | None, may: bool):
    assert may_match(pattern, "dot_score-drawn_") == may


def test_drawn_cases_are_cells_of_their_operator(check: Check, tmp_path: Path):
    result = check(RIGHT, "--operator", "masked_softmax", "--seed", "1", "--json", "out.json")
    assert result.exit_code == 0, result.output
    assert "8 of the cases, by seed 1; --seed S draws others" in result.output
    told = json.loads((tmp_path / "out.json").read_text())
    cells = {cell["case"] for cell in told["cells"] if cell["dtype"] == "float32"}
    assert f"│ masked_softmax │ {len(cells)} │" in squeezed(result)
    lines = told["header"]["drawn"]["lines"]
    assert told["header"]["drawn"]["seed"] == 1 and len(lines) == 2 * DRAWN
    assert {*lines} < {cell["case"] for cell in told["cells"]}
    for name, line in lines.items():
        assert parse_drawn(line).name == name.partition("-")[2]


def test_a_target_that_knows_the_listed_cases_by_heart_is_red(check: Check, tmp_path: Path):
    result = check(LIAR, *ONE, "--json", "out.json")
    assert result.exit_code == 1
    cells = json.loads((tmp_path / "out.json").read_text())["cells"]
    red = {cell["case"] for cell in cells if cell["status"] == "fail"}
    lines = drawn_names(tmp_path / "out.json")
    # An empty array is not answered.
    answered = {name for name, line in lines.items() if all(parse_drawn(line).sizes.values())}
    twice = {case.id for case in all_cases() if case.twice}  # whose second call it does not know either
    assert answered and answered <= red <= {*lines} | twice


def test_a_red_one_is_repeated_by_its_line(check: Check):
    result = check(LIAR, *ONE, "--case", "*-drawn_*")
    commands = [line.strip() for line in result.output.splitlines() if " --drawn " in line]
    arguments = shlex.split(commands[0])
    assert arguments[:3] == ["attention-parity", "check", "mine.py"]
    result = invoke(*arguments[1:])
    assert result.exit_code == 1 and "red 1 of 1 comparisons" in squeezed(result) and commands[0] in result.output
    assert check(RIGHT, *arguments[3:]).exit_code == 0


def test_an_operator_with_a_known_divergence_has_no_drawn_cases(check: Check, tmp_path: Path):
    entry = '[[divergence]]\ncase = "masked_softmax-mask"\nquantity = "weights"\nreason = "It is."\n'
    (tmp_path / "known.toml").write_text(entry)
    source = RIGHT.replace("* 1", "* (1.001 if mask is not None else 1)")
    check(source, "--operator", "masked_softmax", "--divergences", "known.toml", "--json", "out.json")
    told = json.loads((tmp_path / "out.json").read_text())
    assert "drawn" not in told["header"] and any(cell["status"] == "known-divergence" for cell in told["cells"])


# ------------------------------------------------------------------------------------------------ certificates


@pytest.fixture
def certified(check: Check, tmp_path: Path) -> Path:
    """A certificate of the softmax, with drawn cases of seed 3."""
    result = check(
        RIGHT, "--operator", "masked_softmax", "--dtype", "float64", "--seed", "3", "--certificate", "own.json"
    )
    assert result.exit_code == 0, result.output
    return tmp_path / "own.json"


def test_a_certificate_keeps_the_seed_and_verify_repeats_it(certified: Path):
    told = json.loads(certified.read_text())
    assert told["request"]["seed"] == 3 and " --seed 3 " in told["request"]["command"]
    assert len(told["drawn"]) == DRAWN and {*told["drawn"]} < {said["case"] for said in told["verdicts"]}
    result = invoke("verify", certified, "mine.py")
    assert result.exit_code == 0 and f"{len(told['verdicts'])} verdicts as certified" in squeezed(result)


def test_another_seed_than_certified_is_a_difference(certified: Path):
    with rewritten(certified) as content:
        content["request"]["seed"] = 4
    result = invoke("verify", certified, "mine.py")
    assert result.exit_code == 1
    assert [line for line in result.output.splitlines() if line.startswith("differs")] == [
        "differs     4 of 4 drawn cases differ: seed 4 draws other cases in this version"
    ]


def test_a_certificate_of_a_line_is_verified(check: Check, tmp_path: Path):
    line = repr(Drawn("masked_softmax", sizes={"keys": 3}))
    assert check(RIGHT, "--drawn", line, "--certificate", "own.json").exit_code == 0
    told = json.loads((tmp_path / "own.json").read_text())
    assert told["request"]["command"] == shlex.join(["attention-parity", "check", "mine.py", "--drawn", line])
    result = invoke("verify", "own.json", "mine.py")
    assert result.exit_code == 0 and "1 verdicts as certified" in squeezed(result)


def test_a_seed_that_is_no_number_is_refused(certified: Path):
    with rewritten(certified) as content:
        content["request"]["seed"] = "3"
    result = invoke("verify", certified, "mine.py")
    assert result.exit_code == 2 and "request.seed: '3', expected an integer or null" in squeezed(result)


# ------------------------------------------------------------------------------------------------ lines


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("masked_softmax", "it is no call of Drawn with an operator"),
        ('print("dot_score")', "it is no call of Drawn with an operator"),
        ("Drawn()", "it is no call of Drawn with an operator"),
        ('Drawn("dot_score", seed=open("mine.py"))', "expected a line as Drawn("),
        ("(" * 10_000, "expected a line as Drawn("),
        ('Drawn("dot_score", **{"seed": 1})', "there is no None, only operator, method"),
        ('Drawn("dot_score", keys=3)', "there is no keys, only operator, method"),
        ('Drawn("dot_score", sizes=3)', "sizes is 3, expected dict"),
        ('Drawn("dot_score", rows=1)', "rows is 1, expected bool"),
        ('Drawn("dot", seed=1)', "none are drawn of an operator 'dot'"),
        ('Drawn("dot_score", dtype="float8")', "dtypes: 'float8', expected some of float64, float32"),
        ('Drawn("GRU", method="sing")', "is no case: "),
        ('Drawn("masked_softmax", given=("valid_lens",), types={"valid_lens": "int3"})', "is no case: "),
        ('Drawn("cosine_score", sizes={"features": 1})', "rounding alone could change the answer"),
    ],
)
def test_an_invalid_line_is_refused(check: Check, line: str, told: str):
    result = check(RIGHT, "--drawn", line)
    assert result.exit_code == 2 and told in squeezed(result), result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("option", [("--case", "*"), ("--operator", "dot_score"), ("--seed", "1"), ("--fuzz", "1")])
def test_a_line_excludes_other_options(check: Check, option: tuple[str, str]):
    result = check(RIGHT, "--drawn", repr(Drawn("masked_softmax")), *option)
    assert result.exit_code == 2 and "--drawn cannot be combined with" in squeezed(result)


# ------------------------------------------------------------------------------------------------ thousands


FUZZ = ("--operator", "masked_softmax", "--dtype", "float32", "--case", "masked_softmax-*", "--examples", "300")


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_that_no_listed_case_sees_is_found_and_repeated_by_its_line(check: Check, tmp_path: Path, bug: str):
    factor, shown = BUGS[bug]
    wrong = SOFTMAX.replace("FACTOR", f"({factor})")
    result = check(wrong, *FUZZ, "--seed", "1", "--json", "out.json")
    drawn = drawn_names(tmp_path / "out.json")
    cells = json.loads((tmp_path / "out.json").read_text())["cells"]
    assert {cell["status"] for cell in cells if cell["case"] not in drawn} <= {"pass", "not-implemented"}
    assert result.exit_code == 1
    found = result.output[result.output.index("mine masked_softmax weights: fail") :].splitlines()
    line = found[1].strip()
    assert line.startswith('Drawn("masked_softmax", ') and shown in line and len(line) < 120
    assert re.search(r"  # number \d+ of seed 1$", found[2])
    again = shlex.split(found[2], comments=True)
    assert again == ["attention-parity", "check", "mine.py", "--drawn", line.removesuffix(",")]
    assert invoke(*again[1:]).exit_code == 1
    assert check(RIGHT, *again[3:]).exit_code == 0


def test_without_a_bug_the_closing_line_has_the_counts(check: Check):
    result = check(RIGHT, *FUZZ, "--seed", "1")
    assert result.exit_code == 0, result.output
    words = re.search(
        r"(\d+) cases judged: seed 1, numbers 0 to 2093 in steps of 7, of which (\d+) skipped, since rounding alone "
        r"could change them; largest share of a tolerance (\d+) %",
        squeezed(result),
    )
    assert words is not None and int(words[1]) + int(words[2]) == 300 and 0 < int(words[3]) < 50
    assert f"│ masked_softmax │ {words[1]} {words[3]}% │" in squeezed(result)


def test_cases_with_missing_arguments_are_skipped_and_counted(check: Check):
    source = RIGHT.replace("valid_lens=None, mask=None", "valid_lens=None").replace(", mask)", ")")
    result = check(source, *FUZZ, "--seed", "1")
    assert result.exit_code == 0, result.output
    judged = int(re.search(r"(\d+) cases judged", result.output)[1])
    out = re.search(r"left out (\d+) cases: masked_softmax does not take mask", squeezed(result))
    assert out is not None and judged > 100 and int(out[1]) > 100


def test_a_known_mistake_of_a_finding_is_reported(check: Check):
    source = "import numpy as np\ndef scaled_dot_score(queries, keys, *, scale=None):\n"
    source += "    return queries @ keys.swapaxes(-1, -2) * max(queries.shape[-1], 1) ** -0.5\n"
    result = check(source, "--operator", "scaled_dot_score", "--examples", "100", "--seed", "1")
    found = result.output[result.output.index("scaled_dot_score scores: fail") :]
    assert "looks like: " in found and "scale" in found[found.index("looks like: ") :].splitlines()[0]


def test_the_seed_of_fuzzing_is_random_and_reported(check: Check):
    seeds = set()
    for _ in range(2):
        result = check(RIGHT, *FUZZ[:-1], "20")
        seeds.add(int(re.search(r"cases judged: seed (\d+)", result.output)[1]))
    assert len(seeds) == 2 and release_seed() not in seeds


def test_fuzzing_is_no_part_of_a_certificate(check: Check):
    result = check(RIGHT, *FUZZ, "--certificate", "own.json")
    assert result.exit_code == 2 and "--certificate cannot be combined with --fuzz" in squeezed(result)


def test_a_drawn_case_of_fewer_outputs_has_their_gradients():
    drawn = Drawn("attention_pooling", sizes={"keys": 3, "queries": 2, "value_features": 2})
    judged = judgeable(drawn)
    assert judged is not None
    whole, part = (Question(judged.cell, without).quantities["gradient_scores"] for without in ((), ("weights",)))
    assert (whole.reference != part.reference).any()
