"""What the protocols have in common: where they are, which upload a request means, how one ends."""

from starlette.requests import Request

from uploader.errors import UploadNotFound
from uploader.http.shared.operation import Call
from uploader.service.append import Appends
from uploader.service.ids import ID
from uploader.service.results import Complete, Target
from uploader.service.status import Uploads

PREFIX = "/resumable"


def override_method(request: Request) -> None:
    """Some clients and proxies know GET and POST alone."""
    override = request.headers.get("x-http-method-override")
    if override:
        # Not for the server: what it sends is framed by the method that the client knows of.
        request.scope = {**request.scope, "method": override.upper()}


def take_off_slash(request: Request) -> None:
    """Others have their uploads at an address that ends with a slash, and so have the examples of some clients."""
    if request.scope["path"] == f"{PREFIX}/":
        request.scope = {**request.scope, "path": PREFIX}


def target_of(call: Call) -> Target:
    """Raises UploadNotFound."""
    upload_id = call.request.path_params["id"]
    if not ID.fullmatch(upload_id):
        raise UploadNotFound()
    return Target(call.user_id, upload_id=upload_id)


async def end_upload(uploads: Uploads, appends: Appends, target: Target) -> None:
    """Cancel it. Of a finished upload nothing is known any more then; its file stays, as its owner has it by other means.
    Raises UploadNotFound, UploadGone, UploadBusy."""
    match await uploads.find(target):
        case Complete():
            await uploads.forget(target)
        case _:
            await appends.cancel(target)
