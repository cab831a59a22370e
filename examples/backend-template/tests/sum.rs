use meganeura::{Graph, Mode, SessionConfig, build};

#[test]
fn a_sum_and_a_product() {
    meganeura::link_plugins!(my_backend).expect("it is linked");
    let mut g = Graph::new();
    let (x, y) = (g.input("x", &[3]), g.input("y", &[3]));
    let sum = g.add(x, y);
    let z = g.mul(sum, x);
    g.set_outputs(vec![z]);
    let config = SessionConfig {
        device: Some("mine".into()),
        mode: Mode::Inference,
        ..Default::default()
    };
    let (mut session, _) = build(&g, config).expect("it has both kernels");
    session.set_input("x", &[1.0, 2.0, 3.0]);
    session.set_input("y", &[10.0, 20.0, 30.0]);
    session.step();
    assert_eq!(session.read_output(3), [11.0, 44.0, 99.0]);
}
