//! x
use meganeura_conformance::*;
#[test]
fn t() {
    let r = run(ReferenceBackend::new().device(), &Options::default());
    println!("{r}");
    let mut slow: Vec<_> = r.cases.iter().collect();
    slow.sort_by_key(|c| std::cmp::Reverse(c.elapsed));
    for c in slow.iter().take(12) { println!("{:?} {}", c.elapsed, c.id); }
    let r = run(ReferenceBackend::new().primitives_only().device(), &Options::default());
    println!("{r}");
}
