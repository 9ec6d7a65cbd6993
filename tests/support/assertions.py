"""What many tests assert: input is refused in one line, something happens in time, and a text is
read in linear time."""

import time

import pytest

from soundingline.toolkit.errors import InputError


def refused(message, act, /, *arguments, **settings):
    """The line in which `act(*arguments, **settings)` is refused, in which the pattern `message`
    must occur."""
    with pytest.raises(InputError, match=message or None) as error:
        act(*arguments, **settings)
    line = str(error.value)
    assert "\n" not in line
    return line


def until(condition, seconds=60.0):
    """Wait for what other threads or processes do."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def told(capsys):
    """The one line in which a command was refused."""
    error = capsys.readouterr().err
    assert "Traceback" not in error
    (line,) = [each for each in error.splitlines() if "soundingline: " in each]
    return line


_FACTOR = 8
# Eight times the text: 8 times the time if linear, 64 times if quadratic.
_MOST_GROWTH = 24.0
# Seconds below which a clock's resolution and constant costs decide.
_NEGLIGIBLE = 0.02
_ATTEMPTS = 6


def assert_linear(read, text_of, *, smallest=512, largest=1 << 14):
    """Fail where `read` takes more than 24 times as long on 8 times the text.

    `text_of(n)` gives about n characters; n grows from `smallest` to at most `largest`, so that a
    cubic reader fails on a short text. Times are processor time of this thread, which other
    processes do not lengthen, and the least of several attempts.
    """
    size, text = smallest, text_of(smallest)
    seconds = _seconds(read, text)
    while (size := size * _FACTOR) <= largest:
        short, text = text, text_of(size)
        seconds = _assert_growth(read, short, seconds, text)


def _assert_growth(read, short, least_short, long):
    """The least time that the long text took."""
    least_long = float("inf")
    for attempt in range(_ATTEMPTS):
        if attempt:
            least_short = min(least_short, _seconds(read, short))
        least_long = min(least_long, _seconds(read, long))
        most = max(_NEGLIGIBLE, _MOST_GROWTH * least_short)
        if least_long <= most:
            return least_long
        if attempt and least_long > 4 * most:  # neither noise nor a cache that was filled
            break
    raise AssertionError(
        f"{len(long)} characters such as {long[:40]!r} took {least_long:.3f} s, "
        f"{len(short)} took {least_short:.4f} s"
    )


def _seconds(read, text):
    began = time.thread_time()
    read(text)
    return time.thread_time() - began
