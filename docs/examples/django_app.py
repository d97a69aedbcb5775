"""Uploads as a part of a Django project, here of one file: `python django_app.py migrate`, then
`python django_app.py createsuperuser`, then `uvicorn django_app:application`."""

import os

import django
from django.conf import settings

PAGE = """<!doctype html><title>Films</title>{{ form.media }}
<form method="post">{% csrf_token %}{{ form }}<button>Save</button></form>
{% if film %}<a href="{{ film.url }}">{{ film.stored.name }}, {{ film.size }} bytes</a>{% endif %}"""
settings.configure(
    SECRET_KEY=os.environ["SECRET_KEY"],
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    LOGIN_URL="/admin/login/",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "films.sqlite3"}},
    INSTALLED_APPS=[f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "messages", "sessions")],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ],
                "loaders": [
                    ("django.template.loaders.locmem.Loader", {"films.html": PAGE}),
                    "django.template.loaders.app_directories.Loader",
                ],
            },
        }
    ],
    STORAGES={
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
        "uploads": {
            "BACKEND": "uploader.contrib.django.UploaderStorage",
            "OPTIONS": {"uploader": f"{__name__}.uploads", "base_url": "/uploads"},
        },
    },
)
django.setup()

from django import forms  # noqa: E402
from django.contrib import admin  # noqa: E402
from django.contrib.auth.decorators import login_required  # noqa: E402
from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.management import execute_from_command_line  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.shortcuts import render  # noqa: E402
from django.urls import path  # noqa: E402

from uploader.asgi import Uploader  # noqa: E402
from uploader.contrib.django import UploadField, identify, mount, user_id_of  # noqa: E402

uploads = Uploader(identify=identify)


class FilmForm(forms.Form):
    title = forms.CharField()
    film = UploadField(to="films")


@login_required
def add_film(request: HttpRequest) -> HttpResponse:
    form = FilmForm(request.POST or None)
    form.fields["film"].user_id = user_id_of(request.user)
    film = form.cleaned_data["film"] if form.is_valid() else None
    return render(request, "films.html", {"form": form, "film": film})


urlpatterns = [path("admin/", admin.site.urls), path("films/", add_film)]
application = mount(uploads, "/uploads", get_asgi_application())

if __name__ == "__main__":
    execute_from_command_line()
