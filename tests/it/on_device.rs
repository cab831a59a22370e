//! Tests of tensors in device memory that other code reads and writes without a copy.

use meganeura::{Graph, build_inference_session};

#[test]
fn inputs_are_written_and_outputs_read_where_they_are() {
    let mut g = Graph::new();
    let x = g.input("x", &[4, 3]);
    let y = g.square(x);
    g.set_outputs(vec![y]);
    let mut session = build_inference_session(&g);
    let input = session.try_input_on_device("x").expect("an address");
    assert_eq!((input.buffer.bytes, input.ty.shape.to_vec()), (48, vec![4, 3]));
    assert_eq!(input.buffer.stream, None, "all is done when a call returns");
    for step in 1..4 {
        // SAFETY: there are twelve numbers, and no step runs meanwhile: the session's device is the host.
        let numbers = unsafe { std::slice::from_raw_parts_mut(input.buffer.address as *mut f32, 12) };
        numbers
            .iter_mut()
            .enumerate()
            .for_each(|(i, number)| *number = (i + step) as f32);
        session.step();
        session.wait();
        let output = session.try_output_on_device(0).expect("an address");
        // SAFETY: as above.
        let found = unsafe { std::slice::from_raw_parts(output.buffer.address as *const f32, 12) };
        let expected: Vec<f32> = (0..12).map(|i| ((i + step) * (i + step)) as f32).collect();
        assert_eq!(found, expected);
        let mut copied = vec![0.0; 12];
        session.read_output_by_index(0, &mut copied);
        assert_eq!(copied, expected);
    }
    let error = session.try_input_on_device("z").expect_err("no such input").to_string();
    assert!(error.contains("'z'") && error.contains("x"), "{error}");
    assert!(session.try_output_on_device(1).is_err());
}
