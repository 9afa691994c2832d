"""The checks at the door: what they let through, and how their sentences read."""

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from workbench.errors import check_choice, check_count, check_flag, check_kind, check_number, shown


@pytest.mark.parametrize("error", [wb.ConfigError, wb.DataError, wb.CheckpointError])
def test_all_errors_are_ours_and_value_errors(error):
    assert issubclass(error, wb.WorkbenchError)
    assert issubclass(error, ValueError), "code that expects Python's own error would not catch ours"


@given(st.integers(1, 10**12))
def test_whole_numbers_of_any_library_are_counts(number):
    assert (
        check_count("n", number) == check_count("n", np.int64(number)) == check_count("n", np.array(number)) == number
    )


@given(st.floats(-1e30, 1e30, allow_subnormal=False).filter(lambda number: not 0 < abs(number) < 1e-37))
def test_numbers_of_any_library_are_numbers(number):
    assert check_number("x", number) == check_number("x", np.float64(number)) == check_number("x", np.array(number))
    assert type(check_number("x", np.float64(number))) is float


def test_jax_and_exact_numbers_are_numbers():
    assert check_number("x", jnp.float32(0.5)) == check_number("x", Fraction(1, 2)) == 0.5
    assert check_count("n", jnp.int32(3)) == 3


@pytest.mark.parametrize("number", [0, 0.0, -0.0])
def test_zero_is_not_too_small(number):
    assert check_number("x", number, minimum=0) == 0


@pytest.mark.parametrize(
    ("number", "limits", "says"),
    [
        (3, {"maximum": 2}, "x = 3 must be a finite number at most 2."),
        (0, {"above": 0, "maximum": 2}, "x = 0 must be a finite number greater than 0 and at most 2."),
        (float("nan"), {}, "x = nan must be a finite number."),
        (1e-60, {"above": 0}, "x = 1e-60 is too small for float32."),
        (-1e60, {}, "x = -1e+60 is too large for float32."),
        ("1", {}, "x = '1' must be a finite number."),
        (np.array([1.0]), {}, "x = array([1.]) must be a finite number."),
    ],
)
def test_wrong_numbers_get_one_clear_sentence(number, limits, says):
    with pytest.raises(wb.ConfigError) as caught:
        check_number("x", number, **limits)
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("count", "limits", "says"),
    [
        (0, {}, "n = 0 must be a whole number of at least 1."),
        (3.0, {}, "n = 3.0 must be a whole number of at least 1."),
        (True, {}, "n = True must be a whole number of at least 1."),
        (9, {"minimum": 0, "maximum": 8}, "n = 9 must be a whole number between 0 and 8."),
    ],
)
def test_wrong_counts_get_one_clear_sentence(count, limits, says):
    with pytest.raises(wb.ConfigError) as caught:
        check_count("n", count, **limits)
    assert str(caught.value) == says


def test_a_choice_far_from_any_gets_no_guess():
    with pytest.raises(wb.ConfigError) as caught:
        check_choice("color", "zzz", ["red", "blue"])
    assert str(caught.value) == "color = 'zzz' is unknown. Choose one of: red, blue."
    assert check_choice("color", "red", ["red", "blue"]) == "red"


def test_a_choice_in_capitals_is_recognised_but_not_taken():
    with pytest.raises(
        wb.ConfigError, match=r"color = 'RED' is unknown; did you mean 'red'\? Choose one of: red, blue\."
    ):
        check_choice("color", "RED", ["red", "blue"])


def test_flags_and_kinds_are_taken_exactly():
    assert check_flag("f", True) is True
    assert check_kind("d", {}, dict) == {}
    with pytest.raises(wb.ConfigError, match="f = 1 must be True or False"):
        check_flag("f", 1)
    with pytest.raises(wb.ConfigError, match=r"d = \[\] must be a dict"):
        check_kind("d", [], dict)


@given(st.one_of(st.text(max_size=300), st.lists(st.integers(), max_size=99), st.just(np.zeros((50, 50)))))
def test_shown_values_fit_on_a_line(value):
    text = shown(value)
    assert len(text) <= 80
    assert "\n" not in text
