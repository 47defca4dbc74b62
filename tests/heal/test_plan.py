"""What may be asked of a recovery training, and how its steps follow from it."""

import json
import math
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ropepatch.errors import HealingError
from ropepatch.healing.goals import METRICS, Goal
from ropepatch.healing.plan import HealPlan, Stage

WORDS = [
    *("seq_len", "steps", "batch", "micro_batch", "learning_rate", "schedule", "warmup"),
    *("weight_decay", "max_grad_norm", "lora", "lora_alpha", "train_norms", "train_embeddings"),
    *("teacher_weight", "temperature", "hidden_weight", "packing", "min_doc_len", "long_share"),
    *("short_share", "short_len", "fade", "short_original", "check_every", "check_prompts"),
    *("check_windows", "save_every", "until", "best", "gradient_checkpointing", "precision"),
    *("seed", "stages", "faults"),
]


def plan(**words: Any) -> HealPlan:
    return HealPlan(**{"seq_len": 64, "steps": 100, **words})


# --- what is refused -----------------------------------------------------------------------------

FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"seq_len": 1}, "seq_len is 1, at least 2 is needed"),
    ({"batch": 0}, "batch is 0, at least 1"),
    ({"micro_batch": 0}, "micro_batch is 0, at least 1"),
    ({"min_doc_len": -1}, "min_doc_len is -1, at least 0"),
    ({"check_every": -1}, "check_every is below zero"),
    ({"check_prompts": -1}, "check_prompts is below zero"),
    ({"check_windows": -1}, "check_windows is below zero"),
    ({"save_every": -1}, "save_every is below zero"),
    ({"steps": -1}, "steps is below zero"),
    ({"steps": 0}, "steps are missing"),
    ({"steps": 5, "stages": (Stage(2), Stage(2))}, "steps is 5, but the stages have 4"),
    ({"batch": 8, "micro_batch": 3}, "micro_batch 3 does not divide batch 8"),
    ({"learning_rate": 0.0}, "learning_rate must be above 0"),
    ({"learning_rate": math.nan}, "learning_rate must be above 0"),
    ({"temperature": 0.0}, "temperature must be above 0"),
    ({"max_grad_norm": -1.0}, "max_grad_norm must be above 0"),
    ({"lora": 4, "lora_alpha": 0}, "lora_alpha must be above 0"),
    ({"teacher_weight": 1.1}, "teacher_weight must be between 0 and 1"),
    ({"teacher_weight": math.nan}, "teacher_weight must be between 0 and 1"),
    ({"long_share": -0.1, "min_doc_len": 5}, "long_share must be between 0 and 1"),
    ({"short_share": 1.5}, "short_share must be between 0 and 1"),
    ({"fade": 2.0}, "fade must be between 0 and 1"),
    ({"weight_decay": -1.0}, "weight_decay is below zero"),
    ({"hidden_weight": -1.0}, "hidden_weight is below zero"),
    ({"packing": "tight"}, "packing 'tight' is none of: restart, continue, single"),
    ({"schedule": "wavy"}, "schedule 'wavy' is none of: linear, cosine, constant"),
    ({"precision": "int8"}, "precision 'int8' is none of: auto, float32, bfloat16"),
    ({"lora": 0}, "lora 0: the rank"),
    ({"lora_alpha": 8}, "lora_alpha belongs to lora"),
    ({"long_share": 0.5}, "long_share needs min_doc_len"),
    ({"short_original": True}, "short_original is about short sequences"),
    ({"warmup": -1}, "warmup is below zero"),
    ({"best": "bleu"}, "best 'bleu' is none of: needle"),
    ({"until": "needle", "check_every": 5}, "until 'needle': write METRIC>=NUMBER"),
    ({"until": "needle>=0.9"}, "give check_every"),
    ({"stages": (Stage(0),), "steps": 0}, "stage 1: steps are missing"),
    ({"stages": (Stage(50), Stage(50, seq_len=7))}, "stage 2: seq_len 7 does not divide 64"),
    ({"stages": (Stage(50), Stage(50, seq_len=1))}, "stage 2: seq_len 1 does not divide 64"),
    ({"stages": (Stage(100, rate=0.0),)}, "stage 1: rate must be above 0"),
    ({"stages": (Stage(100, teacher_weight=2.0),)}, "stage 1: teacher_weight must be between"),
    ({"stages": (Stage(100, short_share=-1.0),)}, "stage 1: short_share must be between"),
    ({"stages": (Stage(100, hidden_weight=-1.0),)}, "stage 1: hidden_weight is below zero"),
    ({"short_share": 0.01}, "short_share 0.01 of batch 8 is 0.08 rows"),
    ({"short_share": 0.125, "micro_batch": 2}, "must be a whole multiple of micro_batch 2"),
    ({"stages": (Stage(100, short_share=0.01),)}, "short_share 0.01 of batch 8"),
    ({"short_len": 1}, "short_len 1 does not divide seq_len 64"),
    ({"short_len": 48}, "short_len 48 does not divide seq_len 64"),
]


@pytest.mark.parametrize(("words", "said"), FAULTS)
def test_what_is_wrong_is_named(words: dict[str, Any], said: str) -> None:
    with pytest.raises(HealingError) as caught:
        plan(**words)
    assert said in str(caught.value)


def test_all_faults_are_said_at_once() -> None:
    wrong = {
        "seq_len": 1,
        "batch": 0,
        "packing": "tight",
        "steps": "many",
        "fade": 3,
        "colour": "red",
        "stages": [{"steps": 5, "hue": 1, "rate": -1}],
    }
    with pytest.raises(HealingError) as caught:
        HealPlan.from_words(wrong)
    said = str(caught.value)
    for part in (
        "seq_len is 1",
        "batch is 0",
        "packing 'tight'",
        "steps 'many'",
        "fade must be",
        "'colour' is unknown; these are known: seq_len, steps, batch",
        "stage 1: 'hue' is unknown; these are known: steps, seq_len, rate",
        "stage 1: rate must be above 0",
    ):
        assert part in said
    assert said.startswith("8 faults: ")


def test_one_fault_is_not_counted() -> None:
    with pytest.raises(HealingError) as caught:
        plan(batch=0)
    assert "faults" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "seq_len is missing"),
        ({"seq_len": None}, "seq_len is missing"),
        ({"seq_len": "8q"}, "seq_len '8q': '8q' is not a length"),
        ({"seq_len": True}, "seq_len True: "),
        ({"seq_len": 1.5}, "seq_len 1.5: "),
        ({"min_doc_len": False}, "min_doc_len False: "),
        ({"steps": True}, "steps True: write a whole number"),
        ({"steps": 2.5}, "steps 2.5: write a whole number"),
        ({"steps": math.inf}, "steps inf: write a whole number"),
        ({"steps": 10**400}, "steps 1000"),
        ({"steps": "1.5"}, "steps '1.5': "),
        ({"steps": [3]}, r"steps [3]: "),
        ({"lora": math.nan}, "lora nan: "),
        ({"learning_rate": "fast"}, "learning_rate 'fast': "),
        ({"learning_rate": math.inf}, "learning_rate inf: write a number"),
        ({"learning_rate": 10**400}, "learning_rate 1000"),
        ({"learning_rate": True}, "learning_rate True: write a number"),
        ({"train_norms": "yes"}, "train_norms 'yes': write true or false"),
        ({"train_norms": 1}, "train_norms 1: write true or false"),
        ({"gradient_checkpointing": 0}, "gradient_checkpointing 0: write true or false"),
        ({"stages": 3}, "stages: write a list of mappings, each with steps"),
        ({"stages": [3]}, "stages: write a list of mappings"),
        ({"stages": {"steps": 3}}, "stages: write a list of mappings"),
        ({"stages": [{}]}, "stage 1: steps are missing"),
        ({"stages": [{"stages": [], "steps": 1}]}, "stage 1: 'stages' is unknown"),
        ({"faults": ["x"]}, "'faults' is unknown"),
        ({"until": 5, "check_every": 1}, "until '5'"),
        ({"short_share": 1e308}, "short_share must be between 0 and 1"),
        ({"stages": [{"steps": 1, "short_share": -1e308}]}, "short_share must be between 0 and 1"),
    ],
)
def test_words_of_the_wrong_kind(words: dict[str, Any], said: str) -> None:
    given_ = {} if not words else {"seq_len": 64, **({} if "stages" in words else {"steps": 1})}
    with pytest.raises(HealingError) as caught:
        HealPlan.from_words({**given_, **words})
    assert said in str(caught.value)


def test_a_length_that_cannot_be_read_brings_no_other_faults() -> None:
    with pytest.raises(HealingError) as caught:
        HealPlan.from_words({"seq_len": "8q", "steps": 1, "short_len": "4k"})
    assert "short_len" not in str(caught.value)


LOOSE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 0, 1, 2, 8, "8k", "4k", "restart", "needle>=0.9"])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(WORDS)
        | st.sampled_from([word.replace("_", "-") for word in WORDS])
        | st.text(max_size=3)
        | st.integers(),
        LOOSE,
        max_size=8,
    )
)
@settings(deadline=None, max_examples=300)
def test_any_words_make_a_plan_or_are_refused(words: dict[Any, Any]) -> None:
    try:
        made = HealPlan.from_words(words)
    except HealingError:
        return
    assert made.steps >= 1
    assert HealPlan.from_words(made.to_dict()) == made


# --- what is understood --------------------------------------------------------------------------


def test_words_as_in_a_file() -> None:
    text = """
        seq-len: 8k
        steps: 30.0
        learning-rate: 1e-4
        min_doc_len: "2k"
        long-share: 0.5
        short-len: 1k
        lora: 16
        train-norms: false
        until: needle>=0.95
        check-every: 10
        warmup: null
        stages:
          - {steps: 10, seq-len: 4k, teacher-weight: 0}
          - {steps: 20, rate: 0.5}
    """
    made = HealPlan.from_words(yaml.safe_load(text))
    assert made == HealPlan(
        8192,
        steps=30,
        learning_rate=1e-4,
        min_doc_len=2048,
        long_share=0.5,
        short_len=1024,
        lora=16,
        train_norms=False,
        until="needle>=0.95",
        check_every=10,
        stages=(Stage(10, seq_len=4096, teacher_weight=0.0), Stage(20, rate=0.5)),
    )


@pytest.mark.parametrize(
    "made",
    [
        plan(),
        plan(lora=4, lora_alpha=7, gradient_checkpointing=False, best="loss_short", fade=0.5),
        HealPlan(
            64,
            stages=(Stage(3, 32, 0.5, 0.25, 2.0, 0.5), Stage(4)),
            until="loss<=2",
            check_every=1,
            short_share=0.25,
            short_original=True,
            short_len=16,
        ),
    ],
)
def test_a_plan_survives_its_words(made: HealPlan) -> None:
    words = made.to_dict()
    assert "faults" not in words
    assert HealPlan.from_words(words) == made
    assert HealPlan.from_words(json.loads(json.dumps(words))) == made
    assert HealPlan.from_words(yaml.safe_load(yaml.safe_dump(words))) == made


def test_stages_say_how_many_steps() -> None:
    made = HealPlan(64, stages=(Stage(3), Stage(4, seq_len=32)))
    assert made.steps == 7
    assert [made.stage_at(i).seq_len for i in range(8)] == [None] * 3 + [32] * 5
    assert list(made.lengths()) == [64, 32]
    assert HealPlan(64, steps=7, stages=(Stage(3), Stage(4))).steps == 7


def test_without_stages_there_is_one() -> None:
    assert plan(steps=9).stages == (Stage(9),)


def test_tokens() -> None:
    assert plan(seq_len=64, steps=10, batch=4).tokens == 2560
    # tokens per step stay the same in a stage of shorter sequences
    assert HealPlan(64, stages=(Stage(5, seq_len=32), Stage(5)), batch=4).tokens == 2560


def test_rates_where_none_is_asked_for() -> None:
    assert plan().rate == 2e-5
    assert plan(lora=8).rate == 2e-4
    assert plan(lora=8, learning_rate=3e-3).rate == 3e-3


def test_the_metric_of_the_best_checkpoint() -> None:
    assert plan().metric == "loss"
    assert plan(until="needle_short>=1", check_every=1).metric == "needle_short"
    assert plan(until="needle>=1", check_every=1, best="loss").metric == "loss"
    assert plan(best="needle").metric == "needle"


# --- over the steps ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "warmup", "wanted"),
    [(1000, None, 20), (100, None, 10), (9, None, 0), (100, 0, 0), (100, 50, 50)],
)
def test_warmup(steps: int, warmup: int | None, wanted: int) -> None:
    made = plan(steps=steps, warmup=warmup, schedule="constant")
    shares = [made.share_of_rate(i) for i in range(steps)]
    assert made.warmup_steps == wanted
    assert shares[wanted:] == [1.0] * (steps - wanted)
    assert shares[:wanted] == pytest.approx([(i + 1) / (wanted + 1) for i in range(wanted)])
    assert all(share > 0 for share in shares)


def test_a_linear_schedule() -> None:
    made = plan(steps=10, warmup=2, schedule="linear")
    shares = [made.share_of_rate(i) for i in range(11)]
    assert shares == pytest.approx([1 / 3, 2 / 3, *(1 - i / 8 for i in range(9))])


def test_a_cosine_schedule() -> None:
    made = plan(steps=8, warmup=0)
    shares = [made.share_of_rate(i) for i in range(9)]
    root = math.sqrt(2) / 4
    assert shares[0] == 1
    assert shares[2] == pytest.approx(0.5 + root)
    assert shares[4] == pytest.approx(0.5)
    assert shares[6] == pytest.approx(0.5 - root)
    assert shares[8] == pytest.approx(0)  # asked for after the last step, and never used
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_stage_multiplies_the_rate(schedule: Any) -> None:
    alike = plan(steps=40, warmup=5, schedule=schedule)
    staged = HealPlan(
        64, stages=(Stage(3, rate=2.0), Stage(37, rate=0.25)), warmup=5, schedule=schedule
    )
    for step in range(40):
        factor = 2.0 if step < 3 else 0.25
        assert staged.share_of_rate(step) == pytest.approx(factor * alike.share_of_rate(step))


@given(st.integers(1, 60), st.integers(0, 80), st.sampled_from(["linear", "cosine", "constant"]))
def test_every_step_learns_and_none_more_than_asked(steps: int, warmup: int, schedule: Any) -> None:
    made = plan(steps=steps, warmup=warmup, schedule=schedule)
    shares = [made.share_of_rate(i) for i in range(steps)]
    assert all(0 < share <= 1 for share in shares)
    peak = shares.index(max(shares))
    assert shares[: peak + 1] == sorted(shares[: peak + 1])
    assert shares[peak:] == sorted(shares[peak:], reverse=True)
    assert 0 <= made.share_of_rate(steps) <= 1


@pytest.mark.parametrize("fade", [0.1, 0.5, 1.0])
def test_a_change_fades_in(fade: float) -> None:
    made = plan(steps=50, fade=fade)
    shares = [made.faded_in(i) for i in range(51)]
    rising = round(fade * 50)
    assert shares[:rising] == pytest.approx([(i + 1) / (rising + 1) for i in range(rising)])
    assert shares[rising:] == [1.0] * (51 - rising)


def test_without_a_fade_the_change_is_there_at_once() -> None:
    assert [plan().faded_in(i) for i in range(3)] == [1.0] * 3


def test_short_rows_of_a_step() -> None:
    made = HealPlan(
        64,
        stages=(Stage(2), Stage(2, short_share=0.0), Stage(2, short_share=1.0)),
        short_share=0.25,
        batch=8,
    )
    assert [made.short_rows(i) for i in range(6)] == [2, 2, 0, 0, 8, 8]
    assert plan(batch=3, short_share=1 / 3).short_rows(0) == 1


# --- goals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("needle>=0.95", Goal("needle", True, 0.95)),
        ("  needle_short > 1e-1 ", Goal("needle_short", True, 0.1)),
        ("loss<=2.5", Goal("loss", False, 2.5)),
        ("loss_short<3", Goal("loss_short", False, 3.0)),
    ],
)
def test_a_goal_is_read(text: str, wanted: Goal) -> None:
    assert Goal.parse(text) == wanted
    assert Goal.parse(str(wanted)) == wanted
    assert wanted.metric in METRICS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "write METRIC>=NUMBER"),
        ("needle", "write METRIC>=NUMBER"),
        ("needle=1", "write METRIC>=NUMBER"),
        ("needle>=", "write METRIC>=NUMBER"),
        ("needle>=a", "write METRIC>=NUMBER"),
        ("needle>=1-2", "write METRIC>=NUMBER"),
        ("needle>=nan", "write METRIC>=NUMBER"),
        ("needle>=1 and loss<=2", "write METRIC>=NUMBER"),
        ("bleu>=1", "bleu is not measured; these are: needle, needle_short, loss, loss_short"),
        ("needle<=0.5", "of needle, more is better"),
        ("loss>=0.5", "of loss, less is better"),
    ],
)
def test_what_is_no_goal(text: str, said: str) -> None:
    with pytest.raises(HealingError) as caught:
        Goal.parse(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("goal", "below", "above"), [("needle>=0.5", False, True), ("loss<=0.5", True, False)]
)
def test_when_a_goal_is_reached(goal: str, below: bool, above: bool) -> None:
    made = Goal.parse(goal)
    assert made.reached({made.metric: 0.4999}) is below
    assert made.reached({made.metric: 0.5001}) is above
    assert made.reached({made.metric: 0.5})
    assert not made.reached({made.metric: math.nan})
    assert not made.reached({"other": 0.4, "another": 0.6})
    assert not made.reached({})
