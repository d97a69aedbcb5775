"""Builds stores, services and application from the settings: the only place that wires them.

Makes no decision beyond the wiring. Serves no request and runs no job by itself.
"""

from uploader.bootstrap.application import build_application, closing_services, reset_redis, running, serving
from uploader.bootstrap.installation import (
    check_settings,
    examine,
    look_again,
    prepare_database,
    prepare_installation,
    prepare_start,
    tell_worst,
    upgrade_database,
)
from uploader.bootstrap.server import connection_state, create_app, failure_of, server_config, serving_probes
from uploader.bootstrap.services import Services, database_url, redis_directory
from uploader.bootstrap.starting import ends_command, is_final, patiently, starting

__all__ = [
    "Services",
    "build_application",
    "check_settings",
    "closing_services",
    "connection_state",
    "create_app",
    "database_url",
    "ends_command",
    "examine",
    "failure_of",
    "is_final",
    "look_again",
    "patiently",
    "prepare_database",
    "prepare_installation",
    "prepare_start",
    "redis_directory",
    "reset_redis",
    "running",
    "server_config",
    "serving",
    "serving_probes",
    "starting",
    "tell_worst",
    "upgrade_database",
]
