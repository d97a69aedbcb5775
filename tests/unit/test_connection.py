"""Where the client commands find their server and their token."""

from pathlib import Path

import pytest

from uploader.cli.client.connection import Profile, load_profile, profile_of_link, profile_path, save_profile


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.mark.parametrize(
    ("link", "profile"),
    [
        ("http://127.0.0.1:8000/#token=upl_a-b_c", Profile("http://127.0.0.1:8000", "upl_a-b_c")),
        ("https://files.example/admin/#token=a.b.c", Profile("https://files.example", "a.b.c")),
        ("https://files.example/up/#x=1&token=a%2Bb", Profile("https://files.example/up", "a+b")),
        ("https://files.example/", None),
        ("https://files.example/#token=", None),
        ("https://files.example/#folder", None),
    ],
)
def test_a_link_that_signs_in_has_a_server_and_a_token(link: str, profile: Profile | None) -> None:
    assert profile_of_link(link) == profile


def test_a_token_is_readable_on_the_way_to_another_machine_without_tls() -> None:
    for url in ("http://files.example:8000", "HTTP://192.0.2.1"):
        assert Profile(url, "token").is_readable_on_the_way
    for url in ("https://files.example", "http://localhost:8000", "http://127.9.9.9", "http://[::1]:8000"):
        assert not Profile(url, "token").is_readable_on_the_way
    assert not Profile("http://files.example", None).is_readable_on_the_way


def test_what_was_kept_is_found_again(environment: dict[str, str]) -> None:
    assert load_profile(environment | {"UPLOADER_TOKEN": "token"}) is load_profile(environment) is None
    profile = Profile('https://h\u00f6st.example:8443/up?"', "a.b-c\\d")
    path = save_profile(profile, environment)
    assert load_profile(environment) == profile
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    save_profile(Profile("http://other", None), environment)
    assert load_profile(environment) == Profile("http://other", None)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_the_environment_goes_before_what_was_kept(environment: dict[str, str]) -> None:
    save_profile(Profile("http://kept", "kept"), environment)
    # A kept token is never shown to another server.
    assert load_profile(environment | {"UPLOADER_URL": "http://other"}) == Profile("http://other", None)
    named = environment | {"UPLOADER_URL": "http://kept/", "UPLOADER_TOKEN": "named"}
    assert load_profile(named) == Profile("http://kept/", "named")
    assert load_profile(environment | {"UPLOADER_URL": "http://kept/"}) == Profile("http://kept/", "kept")


def test_a_relative_directory_is_ignored_and_a_file_that_can_not_be_read_named(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profile_path({"XDG_CONFIG_HOME": "here"}) == tmp_path / ".config" / "uploader" / "client.toml"
    save_profile(Profile("http://kept", None), environment).write_text("url = nothing")
    with pytest.raises(ValueError, match=r"client\.toml"):
        load_profile(environment)


def test_user_without_a_home_needs_none_but_to_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)

    def unknown(_uid: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert load_profile({}) is None
    assert load_profile({"UPLOADER_URL": "http://a", "UPLOADER_TOKEN": "t"}) == Profile("http://a", "t")
    with pytest.raises(OSError, match="HOME is not set"):
        save_profile(Profile("http://a", "t"), {})
