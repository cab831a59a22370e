//! The chat page, which loads nothing from elsewhere.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

/// Only files of this server are loaded, and only it is asked: text of a model that came to be read as HTML could do nothing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page at `/`, with its style and its script.
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
