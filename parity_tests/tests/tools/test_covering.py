"""The rows of the covering design have every setting."""

from __future__ import annotations

from collections import defaultdict

import pytest

from parity_tests.cases import covering
from tools.covering import rows_of
from tools.design import required_settings, settings

pytestmark = pytest.mark.once


def test_the_rows_of_every_kin_have_every_setting():
    missed = defaultdict(set)
    for call in covering.calls():
        missed[call.kin] |= required_settings(call)
    for call in covering.calls():
        missed[call.kin] -= {setting for row in rows_of(call) for _, setting in settings(call, row)}
    assert {name: settings for name, settings in missed.items() if settings} == {}, "python -m tools.covering adds rows"
