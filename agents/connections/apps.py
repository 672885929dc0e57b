from django.apps import AppConfig


class ConnectionsConfig(AppConfig):
    name = "agents.connections"
    label = "connections"
