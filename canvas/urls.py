"""Addresses of the pages for people."""

from django.urls import path

from canvas import views

app_name = "canvas"
urlpatterns = [path("", views.start, name="start")]
