"""Settings → stores → services → application: the only wiring.

Decides nothing but what is given to whom; refuses to serve a request or to run a job by itself.
"""

from uploader.bootstrap.application import (
    build_application,
    connection_state,
    create_app,
    reset_redis,
    running,
    server_config,
)
from uploader.bootstrap.installation import (
    begin_installation,
    check_redis,
    check_settings,
    examine,
    look_again,
    prepare_database,
    prepare_installation,
    tell_worst,
    upgrade_database,
)
from uploader.bootstrap.services import Services, database_url, redis_directory

__all__ = [
    "Services",
    "begin_installation",
    "build_application",
    "check_redis",
    "check_settings",
    "connection_state",
    "create_app",
    "database_url",
    "examine",
    "look_again",
    "prepare_database",
    "prepare_installation",
    "redis_directory",
    "reset_redis",
    "running",
    "server_config",
    "tell_worst",
    "upgrade_database",
]
