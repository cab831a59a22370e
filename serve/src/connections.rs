//! Connections: how many there are, how slow they may be, and how they end.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

/// See [`ServerOptions`](crate::ServerOptions).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    /// Time in which the head of a request has to come.
    pub(crate) head_timeout: Duration,
    /// Time in which a client has to read something of what is sent.
    pub(crate) write_timeout: Duration,
    pub(crate) shutdown_timeout: Duration,
}

/// Accepts connections until `stop` is done; returns whether all requests were completed then.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    stop: impl Future<Output = ()>,
) -> bool {
    let graceful = GracefulShutdown::new();
    let free = Arc::new(Semaphore::new(limits.connections));
    tokio::pin!(stop);
    loop {
        let accepted = async {
            // Nobody closes the semaphore.
            let place = free.clone().acquire_owned().await.ok()?;
            Some((listener.accept().await, place))
        };
        let (accepted, place) = tokio::select! {
            () = &mut stop => break,
            Some(accepted) = accepted => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Too many open files, for one: it passes.
                log::warn!("a connection cannot be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // Tokens are small, and wanted at once.
        let _ = stream.set_nodelay(true);
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(limits.write_timeout));
        let router = router.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let mut router = router.clone();
            async move {
                use axum::extract::Request as AxumRequest;
                let request: AxumRequest = request.map(Body::new);
                let response = tower_call(&mut router, request).await;
                Ok::<_, Infallible>(response)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_timeout)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                log::debug!("a connection ended: {error}");
            }
            drop(place);
        });
    }
    drop(listener);
    tokio::time::timeout(limits.shutdown_timeout, graceful.shutdown())
        .await
        .is_ok()
}

/// Calls a router, which is always ready and never fails.
async fn tower_call(router: &mut Router, request: axum::extract::Request) -> axum::response::Response {
    use tower_service::Service;
    match router.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Done when the process is told to end.
pub(crate) async fn signal() {
    let interrupt = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminate = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<()>();
    tokio::select! {
        () = interrupt => {}
        () = terminate => {}
    }
}
