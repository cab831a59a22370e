//! The built-in chat page. It loads nothing from other servers.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

/// Content security policy: the page loads files from this server only, and sends requests only to it. Output of a
/// model that is interpreted as HTML can therefore do nothing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Returns the routes of the page at `/`, its style sheet and its script.
pub(crate) fn router() -> Router {
    let html = || async { file("text/html; charset=utf-8", include_str!("page/page.html")) };
    let css = || async { file("text/css; charset=utf-8", include_str!("page/page.css")) };
    let js = || async { file("text/javascript; charset=utf-8", include_str!("page/page.js")) };
    Router::new()
        .route("/", get(html))
        .route("/page.css", get(css))
        .route("/page.js", get(js))
}

fn file(kind: &'static str, text: &'static str) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // The files of another version would not fit each other.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text)
}
