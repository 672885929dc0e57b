// Shows the description of the API. Whoever is signed in tries it out as themselves: then the call needs the CSRF token.

const target = document.getElementById("description");

function csrfToken() {
  return document.cookie.match(/(?:^|; )csrftoken=([^;]+)/)?.[1];
}

function withCsrf(request) {
  const token = csrfToken();
  if (token && !["GET", "HEAD"].includes((request.method || "GET").toUpperCase())) {
    request.headers["X-CSRFToken"] = token;
  }
  return request;
}

window.SwaggerUIBundle({
  url: target.dataset.url,
  domNode: target,
  deepLinking: true,
  displayRequestDuration: true,
  validatorUrl: null,
  requestInterceptor: withCsrf,
});
