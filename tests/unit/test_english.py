"""No package gets more sentences that a reader has to decode."""

from tests.support.english import is_opaque, opaque_sentences, recorded


def test_each_package_has_no_more_opaque_sentences_than_recorded() -> None:
    counts = {package: len(sentences) for package, sentences in opaque_sentences().items()}
    allowed = recorded()
    assert {package: count for package, count in counts.items() if count > allowed.get(package, 0)} == {}, (
        "python -m tests.support.english lists them"
    )
    assert set(allowed) <= set(counts), "recorded, and gone: python -m tests.support.english --record"


def test_counter_tells_clear_sentences_from_opaque_ones() -> None:
    assert is_opaque("Return those of which it is known, and the rows of all that are there locked")
    assert not is_opaque("Lock the rows of all digests, and keep other transactions from deleting the blobs")
    assert not is_opaque("Those who know it")
