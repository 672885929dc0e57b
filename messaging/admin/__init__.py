"""What operators see of the network, and the few things they do to it.

One module for each subject; `looking` holds what all pages have in common.
"""

from messaging.admin import channels, messages, profiles, questions  # Importing them registers them.

__all__ = ["channels", "messages", "profiles", "questions"]
