from django.apps import AppConfig


class McpConfig(AppConfig):
    name = "agents.mcp"
    label = "agents_mcp"
