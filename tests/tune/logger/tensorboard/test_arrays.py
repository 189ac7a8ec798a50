"""Arrays in event files, read back by TensorBoard and by Pillow."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from tests.tune.logger.tensorboard_reading import accumulated, multiplexer, pictures_shown

from muster.tune.logger.tensorboard.events import array_value, delimited, frame, opening

tensorboard = pytest.importorskip("tensorboard")


@pytest.fixture
def shown(tmp_path):
    """Write a value as TensorBoard would find it; the accumulator over it."""

    def write(value):
        event = b"\x09" + bytes(8) + b"\x10\x05" + delimited(5, array_value("tag", value))
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "events.out.tfevents.1.h").write_bytes(opening(1.0) + frame(event))
        return accumulated(tmp_path / "run")

    return write


def picture(found):
    """(pixels as height, width, channel; the same from TensorBoard's own view)."""
    image = pytest.importorskip("PIL.Image")
    [event] = found.Images("tag")
    opened = image.open(io.BytesIO(event.encoded_image_string))
    assert (event.width, event.height) == opened.size
    pixels = np.asarray(opened)
    return pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]


def ramp(*shape):
    return (np.arange(math.prod(shape)) % 251).astype(np.uint8).reshape(shape)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_three_dimensions_are_a_picture_with_channels_first_or_last(shown, channels):
    pixels = ramp(5, 7, channels)
    assert np.array_equal(picture(shown(pixels)), pixels)
    assert np.array_equal(picture(shown(np.moveaxis(pixels, -1, 0))), pixels)


@pytest.mark.parametrize(
    ("value", "byte"), [(0.0, 0), (0.5, 127), (1.0, 255), (7.0, 255), (-1.0, 0), (math.nan, 0)]
)
def test_floats_are_taken_as_shares_of_full_light(shown, value, byte):
    assert np.unique(picture(shown(np.full((3, 2, 2), value, np.float32)))).tolist() == [byte]


def test_whole_numbers_and_flags_are_light_too(shown):
    assert np.unique(picture(shown(np.full((1, 6, 6), 300)))).tolist() == [255]
    assert np.unique(picture(shown(np.full((1, 6, 6), 77)))).tolist() == [77]
    assert np.unique(picture(shown(np.full((1, 6, 6), True)))).tolist() == [255]


def test_four_dimensions_are_a_sheet_of_eight_pictures_a_row(shown):
    pixels = ramp(10, 2, 3, 3)
    sheet = picture(shown(pixels))
    assert sheet.shape == (4, 24, 3)
    for number in range(10):
        top, left = number // 8 * 2, number % 8 * 3
        assert np.array_equal(sheet[top : top + 2, left : left + 3], pixels[number])
    assert not sheet[2:, 6:].any()


def test_five_dimensions_are_a_film(shown):
    image = pytest.importorskip("PIL.Image")
    films = ramp(2, 4, 3, 5, 6)  # two films of four frames
    [event] = shown(films).Images("tag")
    opened = image.open(io.BytesIO(event.encoded_image_string))
    assert (opened.n_frames, opened.info["duration"], opened.info["loop"]) == (4, 50.0, 0)
    for number in range(4):
        opened.seek(number)
        frame_pixels = np.asarray(opened.convert("RGB"))
        assert np.array_equal(frame_pixels[:, :6], np.moveaxis(films[0, number], 0, -1))
        assert np.array_equal(frame_pixels[:, 6:], np.moveaxis(films[1, number], 0, -1))


def test_the_images_tab_is_given_the_file(shown, tmp_path):
    [event] = shown(ramp(3, 4, 4)).Images("tag")
    assert pictures_shown(tmp_path, "run", "tag") == [(5, [event.encoded_image_string])]


def test_one_and_two_dimensions_are_histograms_of_the_finite_values(shown):
    [event] = shown(np.array([[0.0, 1.0, 2.0, 3.0], [math.nan, math.inf, -math.inf, 3.0]])).Histograms("tag")
    value = event.histogram_value
    assert (event.step, value.min, value.max, value.num, value.sum, value.sum_squares) == (5, 0, 3, 5, 9, 23)
    counts = {round(end, 6): n for end, n in zip(value.bucket_limit, value.bucket, strict=True) if n}
    assert (len(value.bucket), counts) == (30, {0.1: 1, 1.1: 1, 2.1: 1, 3.0: 2})


def test_the_histograms_tab_is_given_the_buckets(shown, tmp_path):
    shown([1, 2, 2, 4])
    [event] = multiplexer(tmp_path).Tensors("run", "tag")
    with np.errstate(all="ignore"):
        buckets = np.frombuffer(event.tensor_proto.tensor_content, "<f4").reshape(-1, 3)
    assert (buckets[0, 0], buckets[-1, 1], buckets[:, 2].sum()) == (1.0, 4.0, 4.0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.full(3, 2.5), (2.5, 2.5, 3)),
        (np.array([-1e308, 1e308]), (-1e308, 1e308, 2)),
        ([1, 2.5, True], (1.0, 2.5, 3)),
        (np.zeros((2, 2, 2)), (0.0, 0.0, 8)),
        (np.ones((1, 1, 1, 1, 1, 2)), (1.0, 1.0, 2)),
        (np.arange(4, dtype=np.float16), (0.0, 3.0, 4)),
    ],
)
def test_every_other_shape_and_every_span_is_a_histogram(shown, value, expected):
    [event] = shown(value).Histograms("tag")
    found = event.histogram_value
    assert (found.min, found.max, found.num) == expected
    assert sum(found.bucket) == expected[2]


class Broken:
    def __array__(self, *_, **__):
        raise RuntimeError("not today")


@pytest.mark.parametrize(
    "value",
    [
        np.array([]),
        np.array(3.0),
        np.array(["a"]),
        np.array([1j]),
        np.full(3, math.nan),
        [[1, 2], [3]],
        ["a"],
        [],
        Broken(),
        np.zeros((3, 0, 4)),
    ],
)
def test_what_cannot_be_shown_is_left_out(value):
    assert array_value("tag", value) == b""
