"""What the trail tells of the end of an upload."""

from datetime import datetime

from uploader.domain.trail.acts import Act, Action, Via
from uploader.domain.upload import Reason, Upload
from uploader.service.trail.acting import act, actor

_ACTIONS = {Reason.EXPIRED: Action.UPLOAD_EXPIRED, Reason.CANCELLED: Action.UPLOAD_CANCELLED}


def act_of_ending(upload: Upload, reason: Reason, now: datetime) -> Act | None:
    """The act of each expiry, and of a cancellation by a command; what users end themselves, or what fails, is none."""
    action, by = _ACTIONS.get(reason), actor()
    if action is None or (reason is Reason.CANCELLED and by.via is Via.REQUEST):
        return None
    return act(action, now, subject=upload.id, user_id=upload.user_id, by=by)
