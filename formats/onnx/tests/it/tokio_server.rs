//! The server of `docs/batches-and-threads.md`: an ONNX model for TCP clients, with Tokio.

use std::io::{BufRead, BufReader, ErrorKind, Result, Write};
use std::path::PathBuf;

use meganeura_compiler::Builder;
use meganeura_cpu as _;
use meganeura_onnx::{Model, SharedRunner, Tensor};
use tokio::net::{TcpListener, TcpStream};

/// Answers each line of numbers with a line of results.
async fn answer(socket: TcpStream, runner: SharedRunner, dims: Vec<usize>) -> Result<()> {
    let mut received = Vec::new();
    loop {
        socket.readable().await?;
        let mut bytes = [0; 4096];
        match socket.try_read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(count) => received.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        while let Some(end) = received.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = received.drain(..=end).collect();
            let text = String::from_utf8_lossy(&line);
            let numbers: Vec<f32> = text
                .split(',')
                .filter_map(|number| number.trim().parse().ok())
                .collect();
            let row: usize = dims.iter().product();
            let mut shape = vec![numbers.len() / row];
            shape.extend(&dims);
            let text = if numbers.is_empty() || !numbers.len().is_multiple_of(row) {
                format!("error: expected a multiple of {row} numbers, found {}\n", numbers.len())
            } else {
                // Other tasks run while the model computes.
                match runner.run_async(vec![Tensor::f32(&shape, numbers)]).await {
                    Ok(results) => format!("{:?}\n", results[0].to_f32()),
                    Err(error) => format!("error: {error}\n"),
                }
            };
            send(&socket, text.as_bytes()).await?;
        }
    }
}

async fn send(socket: &TcpStream, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        socket.writable().await?;
        match socket.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn serve(listener: TcpListener, runner: SharedRunner, dims: Vec<usize>) {
    while let Ok((socket, _)) = listener.accept().await {
        tokio::spawn(answer(socket, runner.clone(), dims.clone()));
    }
}

/// Sends a line for each batch size, and checks the number of results.
fn client(address: std::net::SocketAddr, row: usize, of_row: usize) -> Result<()> {
    let mut stream = std::net::TcpStream::connect(address)?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    for batch in [1, 3, 2] {
        let numbers: Vec<String> = (0..batch * row).map(|i| (i % 7).to_string()).collect();
        writeln!(stream, "{}", numbers.join(","))?;
        let line = lines.next().expect("an answer")?;
        assert_eq!(line.matches(',').count() + 1, batch * of_row, "{line}");
    }
    writeln!(stream, "1,2")?;
    assert!(
        lines
            .next()
            .expect("an answer")?
            .starts_with("error: expected a multiple")
    );
    Ok(())
}

#[test]
fn many_clients_get_their_answers() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/convnet/model.onnx");
    let runner = SharedRunner::new(&Model::open(path).expect("a model"), &Builder::new().device("cpu"));
    let runner = runner.expect("a runner");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .build();
    runtime.expect("a runtime").block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let one = runner
            .run(&[Tensor::f32(&[1, 1, 8, 8], vec![0.0; 64])])
            .expect("it runs");
        let of_row = one[0].len();
        tokio::spawn(serve(listener, runner, vec![1, 8, 8]));
        let clients = (0..4).map(|_| tokio::task::spawn_blocking(move || client(address, 64, of_row)));
        for client in clients.collect::<Vec<_>>() {
            client.await.expect("no panic").expect("answers");
        }
    });
}
