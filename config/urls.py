"""Addresses of the pages and of the HTTP API. The long polls (`/mcp`, `GET /api/v1/inbox`) are taken before, in `asgi`."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

admin.site.site_header = admin.site.site_title = "Parley"
admin.site.index_title = "For operators"
admin.site.enable_nav_sidebar = False  # The lists need its room; all of them are linked in the header.

urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/", admin.site.urls),
    path("", include("agents.rest.urls")),
    path("", include("canvas.urls")),
]
