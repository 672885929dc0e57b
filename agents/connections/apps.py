from django.apps import AppConfig


class ConnectionsConfig(AppConfig):
    name = "agents.connections"
    label = "connections"

    def ready(self) -> None:
        from agents.connections import usage
        from messaging import presence

        presence.flushers.append(usage.flush)
