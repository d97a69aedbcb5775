"""CSV that is opened in a spreadsheet: no cell is run, and every figure stays as it is."""

import csv
import io

import pytest

from uploader.service.reports import csv_lines


def read(lines: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(lines)))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "\t=1", "\r=1", "＝1", "＋1", "－1", "＠sum", "="])
def test_text_that_begins_like_a_formula_is_put_behind_an_apostrophe(text: str) -> None:
    assert read(csv_lines([[text, "x"]])) == [[f"'{text}", "x"]]


@pytest.mark.parametrize("text", ["", "a=1", "'=1", 'quo"ted', "a,b", "名", " =1"])
def test_any_other_text_stays_as_it_is(text: str) -> None:
    assert read(csv_lines([["x", text]])) == [["x", text]]


def test_figures_stay_as_they_are() -> None:
    assert read(csv_lines([[-1, 2**63, 0.5, None]])) == [["-1", str(2**63), "0.5", ""]]
