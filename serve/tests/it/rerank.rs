//! Tests of `/v1/rerank` with an encoder.

use serde_json::json;

use crate::client::TestServer;
use crate::embeddings::of;

#[test]
fn documents_are_ordered_by_similarity() {
    let server = TestServer::with(of("bert"));
    let documents = ["down the rabbit hole", "Alice", "x"];
    let body = json!({"query": "Alice", "documents": documents, "top_n": 2});
    let json = server.post("/v1/rerank", &body).json();
    let results = json["results"].as_array().expect("results");
    assert_eq!(results.len(), 2, "{json}");
    assert_eq!(
        (&results[0]["index"], &results[0]["document"]["text"]),
        (&json!(1), &json!("Alice"))
    );
    let scores: Vec<f64> = results
        .iter()
        .map(|r| r["relevance_score"].as_f64().expect("a score"))
        .collect();
    assert!((scores[0] - 1.0).abs() < 1e-5 && scores[1] < scores[0], "{scores:?}");
    for (body, field) in [
        (json!({"documents": ["a"]}), "query"),
        (json!({"query": "a"}), "documents"),
        (json!({"query": "a", "documents": []}), "documents"),
        (json!({"query": "a", "documents": [5]}), "documents"),
        (json!({"query": "a", "documents": ["b"], "max_chunks": 3}), "max_chunks"),
    ] {
        let response = server.post("/v1/rerank", &body);
        assert_eq!(response.status, 400, "{}", response.body);
        assert_eq!(response.json()["error"]["param"], field, "{}", response.body);
    }
    assert_eq!(TestServer::new().post("/v1/rerank", &json!({})).status, 501);
}
