"""tests/COMPLAINTS.md: every complaint has a test, and the page says which."""

from __future__ import annotations

import pytest
from complaints import COMPLAINTS, PAGE, by_complaint, page


@pytest.mark.parametrize("number", sorted(COMPLAINTS))
def test_every_complaint_has_a_test(number: int) -> None:
    assert by_complaint()[number], f"no test is marked complaint({number}): {COMPLAINTS[number][1]}"


def test_every_mark_is_of_a_complaint() -> None:
    assert set(by_complaint()) == set(COMPLAINTS)


def test_the_page_is_as_the_marks_are() -> None:
    assert PAGE.read_text() == page(), f"{PAGE} is out of date; tools/docs.py complaints writes it"
