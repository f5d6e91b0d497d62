"""Checks of what users hand in: what passes comes back right, what fails says why."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from rad_jax import checks


def rejected(function, *args, says, **kwargs):
    """Asserts one line of ValueError that holds every string of `says`."""
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
        function(*args, **kwargs)
    for text in says:
        assert str(text) in str(caught.value), f"{text!r} is not in: {caught.value}"
    return str(caught.value)


# --- features -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [bool, np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64]
)
def test_features_of_every_numeric_dtype_come_back_as_float32(dtype):
    values = np.array([[0, 1, 1], [1, 0, 1]], dtype)
    out = checks.features("x", values)
    assert type(out) is np.ndarray
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, values.astype(np.float64))


def test_features_accepts_lists_and_jax_arrays():
    np.testing.assert_array_equal(
        checks.features("x", [[1, 2.5], [3, -4]]), np.float32([[1, 2.5], [3, -4]])
    )
    out = checks.features("x", jnp.arange(6.0).reshape(3, 2))
    assert type(out) is np.ndarray
    np.testing.assert_array_equal(out, np.arange(6).reshape(3, 2))


def test_features_accepts_images_and_keeps_their_shape():
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), np.uint8)
    out = checks.features("x", images, row_shape=(4, 5, 3), dtype=np.dtype(np.uint8))
    assert out.shape == (3, 4, 5, 3)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, images)
    assert out.max() > 200  # not scaled, not wrapped


def test_features_accepts_one_row_and_one_column():
    assert checks.features("x", [[7]]).shape == (1, 1)


def test_features_accepts_the_largest_allowed_and_subnormals():
    largest = np.float32(1e15)
    out = checks.features("x", np.array([[largest, -largest, 1e-300]], np.float64))
    np.testing.assert_array_equal(out, np.float32([[largest, -largest, 0]]))


def test_features_refuses_values_whose_squares_would_overflow():
    rejected(checks.features, "my_x", [[1.0], [2e15]], says=["my_x", "1e+15", "rows 1"])


def test_masked_arrays_are_refused():
    hidden = np.ma.masked_array(np.ones((2, 2)), mask=np.eye(2, dtype=bool))
    rejected(checks.features, "my_x", hidden, says=["my_x", "masked"])


def test_features_leaves_what_it_was_given_alone():
    values = np.ones((2, 2), np.float32)
    checks.features("x", values)
    np.testing.assert_array_equal(values, np.ones((2, 2), np.float32))


@pytest.mark.parametrize("values", [3.0, [1.0, 2.0], None, [], ""])
def test_features_without_rows_and_columns(values):
    rejected(checks.features, "my_x", values, says=["my_x", "[N, D]", "shape ("])


@pytest.mark.parametrize("shape", [(0, 4), (0, 2, 2)])
def test_features_without_rows(shape):
    rejected(checks.features, "my_x", np.zeros(shape), says=["my_x", "no rows"])


def test_features_without_columns():
    rejected(checks.features, "my_x", np.zeros((3, 0)), says=["my_x", "(3, 0)"])


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([["a", "b"]], "<U1"),
        ([[b"a"]], "|S1"),
        (np.array([[1, None]], object), "object"),
        (np.zeros((2, 2), complex), "complex128"),
        (np.zeros((2, 2), "M8[s]"), "datetime64[s]"),
    ],
)
def test_features_that_are_no_numbers(values, dtype):
    rejected(checks.features, "my_x", values, says=["my_x", "numbers", dtype])


def test_features_of_ragged_rows_name_the_argument():
    rejected(checks.features, "my_x", [[1.0, 2.0], [3.0]], says=["my_x"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_name_the_rows(bad):
    values = np.zeros((9, 3))
    values[[4, 7], [0, 2]] = bad
    message = rejected(
        checks.features, "my_x", values, says=["my_x", "finite", "2 of 9"]
    )
    assert re.findall(r"\d+", message.split("rows", 1)[1])[:2] == ["4", "7"]


def test_features_in_images_that_are_not_finite_name_the_row():
    values = np.zeros((3, 2, 2))
    values[1, 1, 0] = np.nan
    rejected(checks.features, "my_x", values, says=["my_x", "rows 1 ", "1 of 3"])


@pytest.mark.parametrize("bad", [1e39, -1e300])
def test_features_too_large_for_float32(bad):
    rejected(
        checks.features, "my_x", [[1.0], [bad]], says=["my_x", "float32", "1 of 2"]
    )


def test_features_with_many_bad_rows_shows_a_few():
    message = rejected(
        checks.features, "my_x", np.full((1000, 2), np.nan), says=["…", "1000 of 1000"]
    )
    assert len(message) < 300


@pytest.mark.parametrize(
    ("shape", "row_shape"),
    [((2, 5), (4,)), ((2, 3), (4,)), ((2, 4, 1), (4,)), ((2, 16), (4, 4))],
)
def test_features_of_another_width(shape, row_shape):
    rejected(
        checks.features,
        "my_x",
        np.zeros(shape),
        row_shape=row_shape,
        says=["my_x", row_shape, shape[1:]],
    )


def test_features_of_another_dtype():
    for dtype, came in [(np.float32, np.float64), (np.uint8, np.float32)]:
        rejected(
            checks.features,
            "my_x",
            np.zeros((2, 3), came),
            dtype=np.dtype(dtype),
            says=["my_x", np.dtype(dtype), np.dtype(came)],
        )
    expected = np.dtype(np.float64)
    assert checks.features("x", [[0.5]], dtype=expected).dtype == np.float32


# --- labels ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [np.int8, np.int32, np.int64, np.float16, np.float32, np.float64]
)
def test_labels_of_every_whole_dtype_come_back_as_int32(dtype):
    out = checks.labels("y", np.array([2, -1, 0], dtype), 3, 3, missing=True)
    assert type(out) is np.ndarray
    assert out.dtype == np.int32
    np.testing.assert_array_equal(out, [2, -1, 0])


def test_labels_of_unsigned_dtype():
    for dtype in (np.uint8, np.uint64):
        out = checks.labels("y", np.array([2, 0], dtype), 2, 3, missing=True)
        assert out.dtype == np.int32
        np.testing.assert_array_equal(out, [2, 0])


def test_labels_accepts_lists_and_jax_arrays():
    np.testing.assert_array_equal(
        checks.labels("y", [1, 0], 2, 2, missing=False), [1, 0]
    )
    out = checks.labels("y", jnp.array([1, 0]), 2, 2, missing=False)
    assert type(out) is np.ndarray
    np.testing.assert_array_equal(out, [1, 0])


@pytest.mark.parametrize("bad", [-2, 3, 100, -1000])
@pytest.mark.parametrize("dtype", [np.int64, np.float64])
@pytest.mark.parametrize("missing", [True, False])
def test_labels_outside_the_classes(bad, dtype, missing):
    values = np.array([0, 1, bad, 2, bad], dtype)
    rejected(
        checks.labels,
        "my_y",
        values,
        5,
        3,
        missing=missing,
        says=["my_y", "0..2", bad, "2 of 5"],
    )


def test_labels_may_be_missing_only_where_allowed():
    message = rejected(
        checks.labels, "my_y", [0, -1], 2, 3, missing=False, says=["my_y", "0..2", "-1"]
    )
    assert "no label" not in message
    rejected(checks.labels, "my_y", [-3], 1, 3, missing=True, says=["0..2 or -1"])


@pytest.mark.parametrize("bad", [1.5, np.nan, np.inf, -np.inf, -0.5])
def test_labels_that_are_not_whole(bad):
    rejected(
        checks.labels,
        "my_y",
        [0.0, bad, 2.0],
        3,
        3,
        missing=True,
        says=["my_y", "whole numbers", "0..2 or -1", bad],
    )


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (["a", "b"], "<U1"),
        (["0", "1"], "<U1"),
        ([True, False], "bool"),
        (np.array([0, None], object), "object"),
        (np.zeros(2, complex), "complex128"),
    ],
)
def test_labels_that_are_no_numbers(values, dtype):
    rejected(
        checks.labels,
        "my_y",
        values,
        2,
        3,
        missing=True,
        says=["my_y", "whole numbers", "0..2", dtype],
    )


@pytest.mark.parametrize(
    "values", [[0], [0, 1, 2], [[0], [1]], 0, [], None, np.zeros((2, 3))]
)
def test_labels_that_do_not_match_the_rows(values):
    rejected(
        checks.labels,
        "my_y",
        values,
        2,
        3,
        missing=True,
        says=["my_y", "2 rows", np.shape(values)],
    )


def test_labels_of_ragged_rows_name_the_argument():
    rejected(checks.labels, "my_y", [[0], 1], 2, 3, missing=True, says=["my_y"])


def test_labels_too_large_for_any_integer():
    for value in (2**40, 1e300, np.uint64(2**64 - 1)):
        rejected(
            checks.labels,
            "my_y",
            np.array([value]),
            1,
            3,
            missing=True,
            says=["my_y", "0..2"],
        )


def test_labels_with_many_bad_rows_shows_a_few():
    message = rejected(
        checks.labels,
        "my_y",
        np.arange(1000) + 3,
        1000,
        3,
        missing=True,
        says=["3, 4", "…", "1000 of 1000"],
    )
    assert len(message) < 300


# --- row ids --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_row_ids_come_back_as_int32(dtype):
    out = checks.row_ids("ids", np.array([5, 0, 120], dtype), 3)
    assert type(out) is np.ndarray
    assert out.dtype == np.int32
    np.testing.assert_array_equal(out, [5, 0, 120])


def test_row_ids_up_to_the_largest_int32():
    np.testing.assert_array_equal(
        checks.row_ids("ids", [2**31 - 1, 0], 2), [2**31 - 1, 0]
    )


@pytest.mark.parametrize("bad", [-1, 2**31, 2**63 - 1])
def test_row_ids_out_of_range(bad):
    rejected(checks.row_ids, "ids", [3, bad], 2, says=["ids", "0..2^31-1", bad])


def test_row_ids_that_occur_twice():
    message = rejected(
        checks.row_ids, "ids", [3, 8, 3, 8, 5], 5, says=["ids", "differ"]
    )
    assert "3, 8" in message
    assert "5" not in message


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([1.0, 2.0], "float64"), (["a", "b"], "<U1"), ([True, False], "bool")],
)
def test_row_ids_that_are_not_whole(values, dtype):
    rejected(checks.row_ids, "ids", values, 2, says=["ids", "whole numbers", dtype])


@pytest.mark.parametrize("values", [[1], [1, 2, 3], [[1], [2]], 1, []])
def test_row_ids_that_do_not_match_the_rows(values):
    rejected(
        checks.row_ids, "ids", values, 2, says=["ids", "2 whole", np.shape(values)]
    )
