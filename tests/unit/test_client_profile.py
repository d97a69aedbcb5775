"""Where the client commands find their server and their token."""

from pathlib import Path

import pytest

from uploader.cli.client.profile import DEFAULT_URL, Profile, load_profile, profile_path, save_profile


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def test_without_anything_it_is_a_server_on_this_machine(environment: dict[str, str]) -> None:
    assert load_profile(environment) == Profile(DEFAULT_URL, None)


def test_what_was_kept_is_found_again(environment: dict[str, str]) -> None:
    profile = Profile('https://h\u00f6st.example:8443/up?"', "a.b-c\\d")
    path = save_profile(profile, environment)
    assert load_profile(environment) == profile
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    save_profile(Profile("http://other", None), environment)
    assert load_profile(environment) == Profile("http://other", None)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_the_environment_goes_before_it(environment: dict[str, str]) -> None:
    save_profile(Profile("http://kept", "kept"), environment)
    named = environment | {"UPLOADER_URL": "http://kept/", "UPLOADER_TOKEN": "named"}
    assert load_profile(named) == Profile("http://kept/", "named")
    assert load_profile(environment | {"UPLOADER_URL": "http://kept/"}) == Profile("http://kept/", "kept")


def test_a_kept_token_is_never_shown_to_another_server(environment: dict[str, str]) -> None:
    save_profile(Profile("http://kept", "kept"), environment)
    assert load_profile(environment | {"UPLOADER_URL": "http://other"}) == Profile("http://other", None)


def test_a_relative_directory_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profile_path({"XDG_CONFIG_HOME": "here"}) == tmp_path / ".config" / "uploader" / "client.toml"


def test_a_file_that_can_not_be_read_is_named(environment: dict[str, str]) -> None:
    path = save_profile(Profile("http://kept", None), environment)
    path.write_text("url = nothing")
    with pytest.raises(ValueError, match=r"client\.toml"):
        load_profile(environment)
