"""The exposure of a configuration: access that settings give to strangers. Worse settings stop the start.

Each rule is a function of the settings, listed in `RULES`. Nothing here connects: a host counts as local only by its
address or name.
"""

import ipaddress
from collections.abc import Iterator
from urllib.parse import urlsplit

from uploader.addresses import RedisAddress, RedisKind, parse_mysql_url, parse_redis_url
from uploader.domain.diagnosis import Diagnosis, Subject, error, note, warning
from uploader.settings import Settings
from uploader.sinks.configuration import EventSettings, KafkaSettings, StreamSettings, WebhookSettings
from uploader.units import split_host_and_port

# The shortest acceptable prefixes of public networks: proxies have few addresses, with IPv6 within one /64.
_LONGEST_PREFIXES = {4: 24, 6: 64}
# A secret with fewer different characters is a word or a repeated letter.
_LEAST_CHARACTERS = 8


def is_local(host: str) -> bool:
    """Return whether an address or name belongs to this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def outside_hosts(settings: Settings) -> Iterator[str]:
    """Yield the listening addresses that other machines can reach."""
    hosts = [settings.host]
    if settings.work_listen is not None:
        hosts.append(split_host_and_port(settings.work_listen)[0])
    return (host for host in hosts if not is_local(host))


def _is_of_the_world(host: str) -> bool:
    """Return whether an address is public. False for names, because their addresses are unknown."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_global
    except ValueError:
        return False


def diagnoses_of(settings: Settings, events: EventSettings) -> list[Diagnosis]:
    found = [diagnosis for rule in RULES for diagnosis in rule(settings)]
    return [*found, *_of_events(events)]


def _of_callers(settings: Settings) -> Iterator[Diagnosis]:
    if settings.auth == "none":
        yield warning(
            Subject.AUTHENTICATION,
            "with UPLOADER_AUTH=none each account of this machine is an administrator",
            "set UPLOADER_AUTH=token where others have accounts here",
        )
    if "*" in (settings.cors_origins or ()):
        yield note(
            Subject.AUTHENTICATION,
            "with UPLOADER_CORS_ORIGINS=* any page that has a token may use it",
            "name the origins of your pages",
        )
    if settings.auth == "jwt":
        yield from _of_jwts(settings)


def _of_jwts(settings: Settings) -> Iterator[Diagnosis]:
    keys = settings.jwt_jwks or ""
    if keys.startswith("http://"):
        host = urlsplit(keys).hostname or ""
        what = "UPLOADER_JWT_JWKS: over plain http an attacker on the way can put in keys of their own"
        level = note if is_local(host) else error
        yield level(Subject.AUTHENTICATION, what, "use https://, or a file")
    if settings.jwt_audience is None:
        what = "UPLOADER_JWT_AUDIENCE is not set: tokens that its issuer made for others are taken, too"
        # Only signers for this server share the secret, unless somebody uses the secret twice.
        level = note if settings.jwt_secret is not None else warning
        yield level(Subject.AUTHENTICATION, what, "set it to what `aud` names, and have it signed")
    if settings.jwt_issuer is None:
        what = "UPLOADER_JWT_ISSUER is not set: `iss` of a token is not compared"
        yield note(Subject.AUTHENTICATION, what, "set it where one key set is of several issuers")


def _of_secrets(settings: Settings) -> Iterator[Diagnosis]:
    secrets = {"JWT_SECRET": settings.jwt_secret, "SECRET": settings.secret, "LINK_SECRET": settings.link_secret}
    for name, secret in secrets.items():
        if secret is not None and len(set(secret)) < _LEAST_CHARACTERS:
            what = f"UPLOADER_{name} has {len(set(secret))} different characters, and can be guessed"
            yield error(Subject.SECRETS, what, "make one at random: openssl rand -hex 32")


def _of_instant(settings: Settings) -> Iterator[Diagnosis]:
    if settings.instant == "trust":
        what = "UPLOADER_INSTANT=trust: any user who knows the MD5 and size of a file can get it"
        yield warning(Subject.INSTANT, what, "set it to proof, unless all users may read all files")


def _of_transport(settings: Settings) -> Iterator[Diagnosis]:
    outside = ", ".join(outside_hosts(settings))
    if outside and settings.tls_certificate is None and not settings.trusted_proxies:
        yield warning(
            Subject.TRANSPORT,
            f"on {outside} tokens and contents go over plain HTTP, for all on the way to read",
            "set UPLOADER_TLS_CERTIFICATE and UPLOADER_TLS_KEY, or put a proxy with TLS before it and name that in "
            "UPLOADER_TRUSTED_PROXIES",
        )


def _of_metrics(settings: Settings) -> Iterator[Diagnosis]:
    outside = ", ".join(outside_hosts(settings))
    if settings.metrics == "open" and (outside or settings.trusted_proxies):
        where = outside if settings.trusted_proxies is None else "what its proxies let through"
        what = f"with UPLOADER_METRICS=open all who reach {where} can read what others store, by their sums"
        yield warning(Subject.METRICS, what, "set it to admin, and give Prometheus a token (`token create --metrics`)")


def _of_proxies(settings: Settings) -> Iterator[Diagnosis]:
    for text in settings.trusted_proxies or ():
        network = ipaddress.ip_network(text)
        is_wide = network.prefixlen < _LONGEST_PREFIXES[network.version] and not network.is_private
        if not (is_wide or network.prefixlen == 0):
            continue
        believed = "who the user is" if settings.trusted_header is not None else "where a request comes from"
        what = f"UPLOADER_TRUSTED_PROXIES: each of the many addresses of {network} is believed {believed}"
        level = error if settings.trusted_header is not None or network.prefixlen == 0 else warning
        yield level(Subject.PROXIES, what, "name the addresses of your proxies alone")


def _of_stores(settings: Settings) -> Iterator[Diagnosis]:
    if settings.redis_url is not None:
        yield from _of_redis(parse_redis_url(settings.redis_url), Subject.REDIS, "UPLOADER_REDIS_URL")
    url = settings.database_url or ""
    if url.startswith("mysql") and "unix_socket=" not in url:
        host = urlsplit(url).hostname or ""
        if not is_local(host) and parse_mysql_url(url) is None:
            level = warning if _is_of_the_world(host) else note
            what = "UPLOADER_DATABASE_URL: what goes to the database and back is not encrypted"
            yield level(Subject.DATABASE, what, "add ssl_ca=… to the URL, unless the network is theirs alone")
    endpoint = urlsplit(settings.s3_endpoint or "")
    if endpoint.scheme == "http" and not is_local(endpoint.hostname or ""):
        what = "UPLOADER_S3_ENDPOINT: over plain http contents can be read on the way to the bucket"
        yield warning(Subject.BUCKET, what, "use https://")


def _of_redis(address: RedisAddress, subject: Subject, name: str) -> Iterator[Diagnosis]:
    hosts = [host for host, _ in address.hosts if not is_local(host)]
    if address.kind is RedisKind.SOCKET or not hosts:
        return
    if address.password is None:
        what = f"{name}: Redis at {', '.join(hosts)} asks for no password, so all who reach it can write accounts"
        yield warning(subject, what, "give it one (`requirepass`, or a user with an ACL), and put it into the URL")
    if address.tls is None:
        level = warning if any(map(_is_of_the_world, hosts)) else note
        what = f"{name}: what goes to Redis and back, its password too, is not encrypted"
        yield level(subject, what, "use rediss://, unless the network is theirs alone")


def _of_events(events: EventSettings) -> Iterator[Diagnosis]:
    addresses = {
        f"[sinks.{name}]": sink.to.url for name, sink in events.sinks.items() if isinstance(sink, WebhookSettings)
    }
    if events.pre_create is not None:
        addresses["[pre_create]"] = events.pre_create.to.url
    for place, url in addresses.items():
        parts = urlsplit(url)
        if parts.scheme == "http" and not is_local(parts.hostname or ""):
            what = f"UPLOADER_EVENTS: {place} tells {parts.hostname} of users and names over plain http"
            yield warning(Subject.EVENTS, what, "use https://")
    for name, sink in events.sinks.items():
        if isinstance(sink, StreamSettings) and sink.url is not None:
            yield from _of_redis(parse_redis_url(sink.url), Subject.EVENTS, f"UPLOADER_EVENTS: [sinks.{name}]")
        elif isinstance(sink, KafkaSettings) and not _is_kafka_closed(sink):
            what = f"UPLOADER_EVENTS: [sinks.{name}] tells Kafka of users and names without TLS"
            yield warning(Subject.EVENTS, what, 'set "security.protocol" to SSL or SASL_SSL in its options')


def _is_kafka_closed(sink: KafkaSettings) -> bool:
    servers = [server.rpartition(":")[0] or server for server in str(sink.options["bootstrap.servers"]).split(",")]
    speaks_tls = str(sink.options.get("security.protocol", "")).upper().endswith("SSL")
    return speaks_tls or all(is_local(server.strip()) for server in servers)


RULES = (_of_callers, _of_secrets, _of_instant, _of_transport, _of_metrics, _of_proxies, _of_stores)
