"""The handlers of tokens: of anybody's for administrators, of one's own for everybody."""

import logging
from dataclasses import dataclass

from starlette.responses import Response

from uploader.errors import TokensUnused
from uploader.http.admin import schemas as wire
from uploader.http.admin.handlers import user_of
from uploader.http.shared.operation import Call, or_none
from uploader.http.shared.responses import Json
from uploader.service.access import Accounts, new_token

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenHandlers:
    """Tokens, as far as callers are known by them: `auth` is how this server knows its callers."""

    accounts: Accounts
    auth: str

    async def own(self, call: Call) -> Response:
        self._check_used()
        return Json(wire.TokenList([wire.token_of(token) for token in await self.accounts.tokens_of(call.user_id)]))

    async def tokens(self, call: Call) -> Response:
        self._check_used()
        return Json(wire.TokenList([wire.token_of(token) for token in await self.accounts.tokens_of(user_of(call))]))

    async def make(self, call: Call) -> Response:
        self._check_used()
        user_id = user_of(call)
        body = await call.json(wire.MakeToken, optional=True)
        secret = new_token()
        made = await self.accounts.add_token(
            secret, user_id, admin=body.admin, total_space=or_none(body.total_space), scope=or_none(body.scope)
        )
        logger.info("token made", extra={"token_id": made.token_id, "of": user_id, "admin": made.admin})
        return Json(wire.new_token_of(made, secret), 201)

    async def revoke(self, call: Call) -> Response:
        self._check_used()
        token_id = call.request.path_params["token_id"]
        await self.accounts.revoke_for(call.identity, token_id)
        logger.info("token revoked", extra={"token_id": token_id})
        return Response(status_code=204)

    def _check_used(self) -> None:
        """Raises TokensUnused where callers are known by something else."""
        if self.auth != "token":
            raise TokensUnused()
