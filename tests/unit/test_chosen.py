from tests.support.chosen import chosen, is_in_share


def test_a_share_is_passed_on_each_kind_of_database() -> None:
    kinds = ["sqlite", "mysql", "mariadb"]
    tests = [f"tests/acceptance/test_shell.py::test_{number}" for number in range(300)]
    for kind in kinds:
        of_a_kind = [test for test in tests if chosen(kinds, 1, test) == [kind]]
        assert 0.1 < sum(is_in_share(3, test) for test in of_a_kind) / len(of_a_kind) < 0.6
