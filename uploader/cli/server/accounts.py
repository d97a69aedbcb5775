"""Commands for users and their tokens."""

import sys
from typing import TYPE_CHECKING

import click

from uploader.cli.server.services import EXIT_FAILED, load_settings, with_services
from uploader.cli.terminal import SIZE, fail, say
from uploader.units import format_size

if TYPE_CHECKING:
    from uploader.bootstrap import Services


@click.group()
def token() -> None:
    """Make, list and revoke tokens."""


@token.command("create")
@click.argument("user")
@click.option("--admin", is_flag=True, help="Let the token use /admin.")
@click.option("--metrics", is_flag=True, help="Let the token read /metrics, and nothing else.")
@click.option("--queue", metavar="NAME", help="Let the token take the tasks of this queue, and nothing else.")
@click.option("--total-space", type=SIZE, help="Quota of a user seen for the first time, such as 10GiB.")
def token_create(user: str, admin: bool, metrics: bool, queue: str | None, total_space: int | None) -> None:
    """Make a token for USER, and a missing user; print the token as the last word.

    A second call adds a token and keeps the quota. It is stored as its SHA-256 only.
    """
    if admin + metrics + (queue is not None) > 1:
        raise click.UsageError("--admin, --metrics and --queue exclude each other")

    async def run(services: "Services") -> str:
        from uploader.service.access import METRICS_SCOPE, QUEUE_SCOPE

        if queue is not None:
            services.work.queue(queue)  # refuse a token for a missing queue
        scope = METRICS_SCOPE if metrics else None if queue is None else f"{QUEUE_SCOPE}{queue}"
        return await services.accounts.create_token(user, admin=admin, total_space=total_space, scope=scope)

    made = with_services(load_settings(), run)
    say(f"token of {user}: {made}" if sys.stdout.isatty() else made)


@token.command("list")
@click.argument("user", required=False)
def token_list(user: str | None) -> None:
    """List the tokens of USER, or of everybody: id, user, rights, time of creation, and creator."""

    async def run(services: "Services") -> None:
        for row in await services.accounts.tokens(user):
            kind = "revoked" if row.revoked_at else "admin" if row.admin else row.scope or "user"
            made = f"{row.created_at:%Y-%m-%dT%H:%M:%SZ}" + (f"  by {row.made_by}" if row.made_by else "")
            say(f"{row.token_id}  {row.user_id}  {kind}  {made}")

    with_services(load_settings(), run)


@token.command("revoke")
@click.argument("token_or_id")
def token_revoke(token_or_id: str) -> None:
    """Revoke a token, named by its id (see `token list`) or by itself. Takes effect within 2 s."""
    if not with_services(load_settings(), lambda services: services.accounts.revoke(token_or_id)):
        fail("there is no such token in force", EXIT_FAILED)
    say("revoked")


@click.group()
def user() -> None:
    """Set quotas and administrators."""


@user.command("set-quota")
@click.argument("user_id", metavar="USER")
@click.argument("total_space", type=SIZE)
def user_set_quota(user_id: str, total_space: int) -> None:
    """Set the quota of USER, such as 50GiB, and make a missing user. Files stay."""
    account = with_services(load_settings(), lambda services: services.accounts.set_total_space(user_id, total_space))
    say(f"{user_id} has {format_size(account.total_space)}")


@user.command("set-admin")
@click.argument("user_id", metavar="USER")
@click.argument("right", metavar="YES_OR_NO", type=click.Choice(["yes", "no"]))
def user_set_admin(user_id: str, right: str) -> None:
    """Make USER an administrator, or one no more."""
    with_services(load_settings(), lambda services: services.accounts.change_user(user_id, admin=right == "yes"))
    say(f"{user_id} is {'an' if right == 'yes' else 'no'} administrator")
