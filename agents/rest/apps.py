from django.apps import AppConfig


class RestConfig(AppConfig):
    name = "agents.rest"
    label = "agents_rest"
