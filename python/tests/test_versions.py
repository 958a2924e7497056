"""Which torchtitan is refused, and how."""

import pytest

from hansa.errors import Unfit
from hansa.torchtitan.versions import check


@pytest.mark.parametrize(
    "found",
    [
        {"torchtitan": "0.2.2", "torch": "2.13.0"},
        {"torchtitan": "0.3.0", "torch": "2.9.1+rocm6.3"},
        {"torchtitan": "0.4.0", "torch": "2.16.0"},
    ],
)
def test_other_versions_are_refused_by_name(found: dict[str, str]) -> None:
    with pytest.raises(Unfit, match=found["torchtitan"]):
        check(found)


def test_the_right_ones_are_named() -> None:
    words = check({"torchtitan": "0.3.0", "torch": "2.15.0+cu132"})
    assert words == "torchtitan 0.3.0, torch 2.15.0+cu132"
