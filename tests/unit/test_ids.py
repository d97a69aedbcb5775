"""Ids sort by time and are told from anything else."""

import threading

from uploader.service.ids import ID, new_id


def test_ids_are_unique_increase_within_the_process_and_differ_in_their_random_part() -> None:
    ids = [new_id() for _ in range(10_000)]
    assert sorted(set(ids)) == ids
    assert len({identifier[14:] for identifier in ids}) == len(ids)
    assert all(map(ID.fullmatch, ids))
    zeros = "0" * 31
    for text in ("", zeros, f"{zeros}00", f"G{zeros}", "A" * 32, f"{zeros}\n", f"../{'0' * 29}"):
        assert not ID.fullmatch(text)


def test_ids_made_by_many_threads_at_once_never_share_their_time() -> None:
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.extend([new_id() for _ in range(500)])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({identifier[:14] for identifier in made}) == len(made) == 4000
