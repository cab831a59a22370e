//! temp
use super::problem::*;
pub struct Budget { pub steps: u64, pub time: Option<std::time::Duration> }
pub struct Extraction { pub selection: Selection, pub cost: u64, pub exact: bool }
/// temp
pub fn extract(p: &Problem, _b: &Budget) -> crate::Result<Extraction> {
    let n = p.classes.len(); let mut best = vec![u64::MAX; n]; let mut sel: Selection = vec![None; n];
    loop { let mut ch = false; for c in 0..n { for (k, x) in p.classes[c].iter().enumerate() {
        if x.children.iter().any(|&y| best[y as usize]==u64::MAX) { continue; }
        let v = x.children.iter().fold(x.cost, |a,&y| a.saturating_add(best[y as usize]));
        if v < best[c] { best[c]=v; sel[c]=Some(k as u32); ch=true; } } } if !ch { break; } }
    let mut need = vec![false;n]; let mut st = p.roots.clone(); let mut cost = 0; 
    while let Some(c)=st.pop() { if std::mem::replace(&mut need[c as usize], true) { continue; } let x=&p.classes[c as usize][sel[c as usize].unwrap() as usize]; cost+=x.cost; st.extend(&x.children); }
    for c in 0..n { if !need[c] { sel[c]=None; } }
    Ok(Extraction { selection: sel, cost, exact: false })
}
