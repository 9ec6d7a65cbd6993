"""Input that is refused."""

import pytest

from soundingline.toolkit.errors import InputError


def refused(message, act):
    """Assert that `act` is refused in one line, in which the pattern `message` occurs."""
    with pytest.raises(InputError, match=message) as error:
        act()
    assert "\n" not in str(error.value)
