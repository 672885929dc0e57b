"""Static files under an asynchronous server: WhiteNoise, with answers of one piece.

WhiteNoise streams a file through a synchronous iterator. Django, served by ASGI, then reads the file whole all the same and
warns of it in the log with each file; here it is read whole in the first place. The largest is 1.4 MB (the API's docs page).
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> Any:  # type: ignore[override]
        streamed = WhiteNoiseMiddleware.serve(static_file, request)  # type: ignore[no-untyped-call]
        try:
            whole = HttpResponse(b"".join(streamed), status=streamed.status_code)
        finally:
            streamed.close()
        whole.headers = streamed.headers
        return whole
